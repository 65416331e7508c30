"""The number of this release."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    RELEASE = version("taskframework")
except PackageNotFoundError:  # run from a folder, not installed
    RELEASE = "unknown"
