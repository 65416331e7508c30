"""Writes the digests of many files as one Markdown page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from taskframework.cli.demo.digest import Digest
from taskframework.model.wording import pluralize

_SPECIAL = re.compile(r"([\\`*_\[\]<|~]|&(?=#?\w+;))")


def write_report(outcomes: Mapping[str, Digest | str], path: Path) -> None:
    """Write the digest of each file, or the reason why there is none; missing folders above the report are made.

    Raises:
        OSError: if the report cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_lines(outcomes)) + "\n", encoding="utf-8", newline="\n")


def escape(text: str) -> str:
    """Escape a text so that Markdown shows it unchanged, in a line or a table cell."""
    # Control characters, and bytes of a file name that are not text, become the replacement character.
    printable = "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))
    return _SPECIAL.sub(r"\\\1", printable)


def _lines(outcomes: Mapping[str, Digest | str]) -> Iterator[str]:
    yield f"# Digest of {pluralize(len(outcomes), 'file')}"
    for file, outcome in outcomes.items():
        yield from ("", f"## {escape(file)}", "")
        yield from _section(outcome) if isinstance(outcome, Digest) else [f"No digest: {escape(outcome)}"]


def _section(digest: Digest) -> Iterator[str]:
    if digest.title:
        yield from (f"**{escape(digest.title)}**", "")
    sizes = ((digest.words, "word"), (digest.lines, "line"), (digest.characters, "character"))
    yield " · ".join(pluralize(*size) for size in sizes)
    if digest.frequent_words:
        words = (f"{escape(word)} ({count:,})" for word, count in digest.frequent_words.items())
        yield from ("", f"Frequent words: {', '.join(words)}")
    if digest.beginning:
        yield from ("", f"Begins: {escape(digest.beginning)}")
