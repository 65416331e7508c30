"""Finds the prose of a text: its title, its headings, its sentences. Knows Markdown and no particular language."""
# ruff: noqa: RUF001 - the punctuation of other scripts is meant

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_LONGEST_TITLE = 120
_LONGEST_FRONT_MATTER = 100  # lines
#: A line of a paragraph at least this wide was wrapped by an editor; a shorter one ends what it says.
_WRAPPED_WIDTH = 50

_FENCE = re.compile(r"\s*(`{3,}(?!.*`)|~{3,})")
_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.*)")
_UNDERLINE = re.compile(r"\s{0,3}(=+|-+)\s*$")
_RULE = re.compile(r"\s*([-*_=/~])(\s*\1){2,}\s*$")
_ITEM = re.compile(r"(?:\s*(?:[-*+•·▪◦]|\(?\d{1,3}[.)、])\s+(?:\[[ xX]\]\s+)?)+")
_QUOTE = re.compile(r"\s*(>\s?)+")
_TABLE = re.compile(r"\s*[|+]")
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_LINK_TARGET = re.compile(r"\s{0,3}\[[^\]]+\]:\s")
#: What lines of program code have and sentences do not, outside of back-quotes.
_CODE = re.compile(
    r"[{}]|=>|==|&&|\);|-->|::|^\s*[\w.\[\]\"']+(?:: [\w\[\], |.]+)? [-+|]?= |^\s*@\w+(?:\(.*)?$|"
    r"^\s*(?:from [\w.]+ import |import [\w.]+$|(?:async )?def \w+\(|class \w+[(:]|"
    r"(?:return|yield|raise)\b.*[()\[\]]|[\w.]+\(.*\)$)"
)
_LONGEST_CODE_LINE = 300  # a longer one is a whole text without line breaks
_FRONT_TITLE = re.compile(r"title:\s*(.+)", re.IGNORECASE)

# Every pattern has bounds, so that no input can make it look through the whole text again for each character.
_LABEL, _TARGET = r"\[([^\[\]]{0,300})\]", r"\([^()]{0,500}\)"
_LINKS = (
    (re.compile(rf"!{_LABEL}{_TARGET}"), ""),
    (re.compile(rf"{_LABEL}(?:{_TARGET}|\[[^\[\]]{{0,200}}\])"), r"\1"),
)
_INLINE = (
    (re.compile(r" ?\[\^?[\w-]{1,8}\](?!\()"), ""),  # footnote, citation
    (re.compile(r"<!--.{0,200}?-->|</?[a-zA-Z][^<>]{0,200}>"), ""),
    (re.compile(r"<(https?://[^<>]{0,500})>"), r"\1"),
    (re.compile(r"\\([!-/:-@\[-`{-~])"), r"\1"),  # escaped punctuation
    (re.compile(r"\*\*|~~|`|\"\"\""), ""),
    (re.compile(r"(?<![\w*_])([*_]{1,3})(?=\S)([^*_]{1,500}?)(?<=\S)\1(?![\w*_])"), r"\2"),
)
_CODE_SPAN = re.compile(r"``?([^`]+)``?")

# Scripts that end a sentence without a space have marks of their own; the others need the space, or 3.14 would be two.
_END = re.compile(r"[。！？｡։؟।॥።]+[”’」』）)\"']*|[.!?…]+[”’»\"')\]]*(?=\s)")
_AROUND = " -–•·*"  # left over from lists that were run together
_BEFORE_STOP = re.compile(r"[\s(\[„“\"'-]")
#: A letter alone, letters with full stops between them (e.g, z.B, U.S), a few letters without a vowel (Dr, Mrs, Nr).
_ABBREVIATION = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]|[^\W\d_aeiouyäöüаеёиоуыэюя]{2,3}", re.IGNORECASE)
_DEPTH = {"(": 1, ")": -1, "（": 1, "）": -1}  # what is in parentheses ends no sentence around it
_LONGEST_WORD = 40
_LONGEST_ORDINAL = 2  # digits of a number that a full stop turns into an ordinal, as in 3. Oktober
_NO_SPACE = r"\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef"
_JOINED_WITHOUT_SPACE = re.compile(rf"(?<=[{_NO_SPACE}，。、；：！？])\n(?=[{_NO_SPACE}，。、；：！？])")


@dataclass(frozen=True, slots=True)
class Prose:
    """What a person reads of a text, in order."""

    title: str
    headings: tuple[str, ...]
    sentences: tuple[str, ...]
    cells: tuple[str, ...]  # of tables


@dataclass(slots=True)
class _Blocks:
    """Lines gathered into headings and paragraphs."""

    front_title: str = ""
    headings: list[str] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    before_heading: int = 0  # paragraphs before the first heading

    def add_heading(self, text: str) -> None:
        if not self.headings:
            self.before_heading = len(self.paragraphs)
        self.headings.append(text)

    def close(self) -> None:
        if self.open:
            self.paragraphs.append("\n".join(self.open))
            self.open.clear()


def read_prose(text: str) -> Prose:
    """Separate the prose from headings, code, tables and markup."""
    blocks = _Blocks()
    lines = text.splitlines()
    for line in _without_code(_without_front_matter(lines, blocks)):
        _add_line(line, blocks)
    blocks.close()
    sentences = tuple(sentence for paragraph in blocks.paragraphs for sentence in split_sentences(paragraph))
    headings = tuple(plain for heading in blocks.headings if (plain := strip_markup(heading)))
    cells = tuple(plain for cell in blocks.cells if (plain := strip_markup(cell)))
    return Prose(_shortened(_title(blocks, headings), _LONGEST_TITLE), headings, sentences, cells)


def _title(blocks: _Blocks, headings: tuple[str, ...]) -> str:
    above = "\n".join(blocks.paragraphs[: blocks.before_heading])
    first_line = strip_markup(blocks.paragraphs[0].split("\n")[0]).rstrip(":：") if blocks.paragraphs else ""
    # Below whole sentences a heading is that of a section; a logo or a line of badges may well stand above the title.
    first_heading = () if _END.search(above + "\n") else headings[:1]
    return next(filter(None, (*first_heading, blocks.front_title, first_line, *headings[:1])), "")


def split_sentences(paragraph: str) -> Iterator[str]:
    """The sentences of a paragraph, without markup; a line break counts as an end unless the line was wrapped."""
    for piece in _unwrap(paragraph):
        plain = strip_markup(piece)
        start = seen = depth = 0
        for end in _END.finditer(plain):
            depth += sum(_DEPTH.get(character, 0) for character in plain[seen : end.end()])
            seen = end.end()
            if depth <= 0 and _is_end(plain, end):
                yield plain[start : end.end()].strip(_AROUND)
                start, depth = end.end(), 0
        if rest := plain[start:].strip(_AROUND):
            yield rest


def strip_markup(text: str) -> str:
    """The text as it would be read: without emphasis, links, tags, escapes; what is in back-quotes stays as it is."""
    for pattern, replacement in _LINKS:
        text = pattern.sub(replacement, text)
    parts = _CODE_SPAN.split(text)
    for number in range(0, len(parts), 2):
        for pattern, replacement in _INLINE:
            parts[number] = pattern.sub(replacement, parts[number])
    return " ".join("".join(parts).split())


def _without_front_matter(lines: list[str], blocks: _Blocks) -> list[str]:
    if not lines or lines[0].strip() != "---":
        return lines
    for number, line in enumerate(lines[1:_LONGEST_FRONT_MATTER], start=1):
        if match := _FRONT_TITLE.match(line):
            blocks.front_title = match[1].strip().strip("\"'")
        if line.strip() in ("---", "..."):
            return lines[number + 1 :]
    blocks.front_title = ""
    return lines


def _without_code(lines: list[str]) -> Iterator[str]:
    fence = ""
    indented = False  # in a block of indented code, which starts after an empty line
    before = ""
    for line in lines:
        if match := _FENCE.match(line):
            if not fence:
                fence = match[1]
                yield ""
                continue
            if match[1].startswith(fence) and line.strip() == match[1]:
                fence = ""
                continue
        indented = line.startswith(("    ", "\t")) and (indented or not before.strip()) and not _ITEM.match(line)
        before = line
        if not fence and not indented:
            yield line


def _add_line(line: str, blocks: _Blocks) -> None:
    if match := _HEADING.match(line):
        blocks.close()
        blocks.add_heading(match[1].rstrip("# \t"))
    elif _UNDERLINE.match(line) and len(blocks.open) == 1:
        blocks.add_heading(blocks.open.pop())
    elif _is_no_prose(line):
        blocks.close()
        if _TABLE.match(line):
            blocks.cells.extend(cell for cell in _CELL_BORDER.split(line) if any(map(str.isalpha, cell)))
    elif match := _ITEM.match(line):
        blocks.close()
        blocks.open.append(line[match.end() :])
    else:
        quote = _QUOTE.match(line)
        blocks.open.append(line[quote.end() :].strip() if quote else line.strip())
        if line.endswith(("  ", "\\")):  # Markdown's own line break
            blocks.close()


def _is_no_prose(line: str) -> bool:
    return (
        not line.strip()
        or any(pattern.match(line) for pattern in (_RULE, _TABLE, _LINK_TARGET))
        or (len(line) <= _LONGEST_CODE_LINE and _CODE.search(_CODE_SPAN.sub("", line)) is not None)
    )


def _unwrap(paragraph: str) -> Iterator[str]:
    lines: list[str] = []
    for line in paragraph.split("\n"):
        lines.append(line)
        if _width(line) < _WRAPPED_WIDTH:
            yield _JOINED_WITHOUT_SPACE.sub("", "\n".join(lines))
            lines.clear()
    if lines:
        yield _JOINED_WITHOUT_SPACE.sub("", "\n".join(lines))


def _width(line: str) -> int:
    return len(line) + sum(character > "\u2e80" for character in line)


def _is_end(text: str, end: re.Match[str]) -> bool:
    """Whether the mark ends a sentence; a full stop may also follow an initial, an abbreviation or an ordinal."""
    if end[0][0] not in ".…":
        return True
    following = text[end.end() : end.end() + 2].lstrip()
    if following.islower() or (end[0][0] == "…" and following.isdigit()):
        return False
    word = _BEFORE_STOP.split(text[max(0, end.start() - _LONGEST_WORD) : end.start()])[-1]
    if word.isdigit():
        return len(word) > _LONGEST_ORDINAL
    return not _ABBREVIATION.fullmatch(word)


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"
