"""The files that the architecture tests look at."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "taskframework"


def modules() -> list[Path]:
    """Return every Python file of the package; never none."""
    found = sorted(PACKAGE.rglob("*.py"))
    assert found, f"no modules in {PACKAGE}"
    return found
