"""The files that the architecture tests look at."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "taskframework"


def modules() -> list[Path]:
    """Return every module of the package; never none. The project that `init` makes is not a part of it."""
    found = sorted(path for path in PACKAGE.rglob("*.py") if (path.parent / "__init__.py").exists())
    assert found, f"no modules in {PACKAGE}"
    return found
