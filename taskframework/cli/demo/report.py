"""Writes the digests of many files as one Markdown page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from taskframework.cli.demo.digest import Digest

_SPECIAL = re.compile(r"([\\`*_\[\]<|~]|&(?=#?\w+;))")
_AT_START = re.compile(r"^(\d+)([.)])(?=\s|$)|^([-+#=>])")


@dataclass(frozen=True, slots=True)
class ReportRow:
    """What became of one file: its digest, or the reason why there is none."""

    file: str
    digest: Digest | None = None
    reason: str = ""


def write_report(rows: Sequence[ReportRow], path: Path) -> None:
    """Write the report; folders above it are made.

    Raises:
        OSError: if it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_lines(rows)) + "\n", encoding="utf-8", newline="\n")


def escape(text: str) -> str:
    """The text so that Markdown shows it as it is, on one line and in a table cell too."""
    # Control characters, and the bytes of a file name that are no text, get the sign that stands for them.
    shown = "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))
    plain = _SPECIAL.sub(r"\\\1", shown)
    return _AT_START.sub(lambda start: f"{start[1]}\\{start[2]}" if start[1] else f"\\{start[3]}", plain)


def _lines(rows: Sequence[ReportRow]) -> Iterator[str]:
    digested = [(row.file, row.digest) for row in rows if row.digest is not None]
    failed = [row for row in rows if row.digest is None]
    yield f"# Digest of {_counted(len(rows), 'file')}"
    yield ""
    yield from _totals([digest for _, digest in digested], len(failed))
    for file, digest in digested:
        yield ""
        yield from _section(file, digest)
    if failed:
        yield from ("", "## Without a digest", "", "| File | Reason |", "|---|---|")
        yield from (f"| {escape(row.file)} | {escape(row.reason)} |" for row in failed)


def _totals(digests: Sequence[Digest], others: int) -> Iterator[str]:
    yield "| Digested | Not digested | Words | Sentences | Characters | Reading time |"
    yield "|---:|---:|---:|---:|---:|---:|"
    words, sentences, characters = (
        sum(getattr(digest, name) for digest in digests) for name in ("words", "sentences", "characters")
    )
    minutes = sum(digest.reading_minutes for digest in digests)
    yield f"| {len(digests):,} | {others:,} | {words:,} | {sentences:,} | {characters:,} | {_duration(minutes)} |"


def _section(file: str, digest: Digest) -> Iterator[str]:
    yield f"## {escape(file)}"
    if digest.title:
        yield from ("", f"**{escape(digest.title)}**")
    counts = (_counted(digest.words, "word"), _counted(digest.sentences, "sentence"), _counted(digest.lines, "line"))
    yield from ("", f"{' · '.join(counts)} · {_duration(digest.reading_minutes)}")
    if digest.key_words:
        listed = ", ".join(f"{escape(key_word.word)} ({key_word.count:,})" for key_word in digest.key_words)
        yield from ("", f"Key words: {listed}")
    if digest.summary:
        yield ""
        yield from (f"- {escape(sentence)}" for sentence in digest.summary)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _duration(minutes: float) -> str:
    if minutes < 1:
        return "under a minute"
    hours, rest = divmod(round(minutes), 60)
    return f"{hours} h {rest} min" if hours else f"{rest} min"
