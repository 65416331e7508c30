"""Where the pages and the pictures are."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[1]


def file_of(name: str) -> Path:
    """Where a page is."""
    return DOCS / "reference" / f"{name}.md"


def picture_of(name: str) -> Path:
    """Where a picture is."""
    return DOCS / "images" / f"{name}.svg"
