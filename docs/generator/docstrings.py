"""Docstrings as Markdown: paragraphs stay, sections such as `Args:` become lists."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields):$")
_ENTRY = re.compile(r"(\*{0,2}\w[\w., ]*?): +(.*)")


def described(value: Any) -> str:
    """The docstring of something, with an empty line before it; empty if it has none of its own."""
    text = inspect.cleandoc(_own(value))
    if not text:
        return ""
    return "\n" + "\n".join(_lines(text.splitlines())).strip() + "\n"


def _own(value: Any) -> str:
    text = getattr(value, "__doc__", None) or ""
    # A dataclass without a docstring gets its signature for one, and a class without `__init__` that of object.
    is_made_up = isinstance(value, type) and text.startswith(f"{value.__name__}(")
    return "" if is_made_up or text == object.__init__.__doc__ else text


def _lines(lines: list[str]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if found := _SECTION.match(line):
            section = [*_indented(lines, at)]
            at += len(section)
            yield from (f"**{found[1]}**", "", *_content(found[1], section), "")
        elif line.endswith("::"):
            block = [*_indented(lines, at)]
            at += len(block)
            code = inspect.cleandoc("\n".join(block)).splitlines()
            if line != "::":
                yield from (line.removesuffix(":"), "")
            yield from ("```python", *code, "```", "")
        else:
            yield line


def _indented(lines: list[str], at: int) -> Iterator[str]:
    for line in lines[at:]:
        if line and not line.startswith(" "):
            return
        yield line


def _content(section: str, lines: list[str]) -> Iterator[str]:
    """Of what is returned there is one thing to say, of the others a list."""
    if section in ("Returns", "Yields"):
        return iter([" ".join(line.strip() for line in lines).strip()])
    return _entries(lines)


def _entries(lines: list[str]) -> Iterator[str]:
    """One item of a list for each entry; what is indented deeper goes on with it."""
    entries: list[str] = []
    for line in filter(str.strip, lines):
        if line.startswith("     ") and entries:
            entries[-1] += f" {line.strip()}"
        else:
            entries.append(line.strip())
    for entry in entries:
        found = _ENTRY.match(entry)
        yield f"- `{found[1]}`: {found[2]}" if found else f"- {entry}"
