"""Which pages there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docs.generator import command_line, errors, events, http, metrics, python
from taskframework.settings import reference as settings

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
