"""Which pages there are, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from reference import command_line, errors, events, http, metrics, python
from taskframework.settings import reference as settings

DOCS = Path(__file__).parents[1] / "docs"

#: Each page by its name, with what makes its text.
PAGES: Mapping[str, Callable[[], str]] = {
    "command-line": command_line.markdown,
    "errors": errors.markdown,
    "events": events.markdown,
    "http": http.markdown,
    "metrics": metrics.markdown,
    "python": python.markdown,
    "settings": settings.markdown,
}


def file_of(name: str) -> Path:
    """Where a page is."""
    return DOCS / "reference" / f"{name}.md"


def picture_of(name: str) -> Path:
    """Where a picture is."""
    return DOCS / "images" / f"{name}.svg"
