"""The pages of the documentation as their readers take them: what they save, paste and type, in order.

- A block right after a paragraph that ends with a file's name and a colon is saved under that name.
- Any other `python` block is a program of its own.
- In a `console` block each line that begins with `$ ` is typed; what follows it, up to the next such line, is shown
  output, in which `…` stands for anything. A comment `# … until Ctrl-C` says that the command goes on while the reader
  goes on, `# … exit code 1` that it ends with that code.
- "the `shop.py` of the [quickstart](quickstart.md)" means: take that file from that page.
- A paragraph that says "Stop … with Ctrl-C" means every command that still goes on, "Stop only `NAME` with Ctrl-C" the
  one in which that name is.
- A `json` block is an example of what the framework sends.
- Chinese pages say the same in Chinese: 用 Ctrl-C 停止, 直到 Ctrl-C, 退出码 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Why things were decided, what was measured once, and what is looked up: nobody walks through these.
_RECORDS = ("docs/decisions/", "docs/performance/", "docs/reference/")
#: Translations, and the originals whose steps they take (tests/architecture/test_translations.py).
TRANSLATIONS = {
    "docs/zh/README.md": "README.md",
    "docs/zh/quickstart.md": "docs/quickstart.md",
    "docs/zh/tutorial.md": "docs/tutorial.md",
    "docs/zh/architecture.md": "docs/architecture.md",
}
#: Languages of blocks that are looked at only: drawings, and excerpts of output.
_LOOKED_AT = ("", "text")

_FENCE = re.compile(r"```(\w*)$")
_FILE = re.compile(r"`([\w.-]+\.\w+)`[:：]$")  # noqa: RUF001 - the colon of Chinese text
_COPY = re.compile(r"`([\w.-]+\.\w+)` of (?:the )?\[[^\]]+\]\(([^)#]+)")
_STOP = re.compile(r"\bStop(?: only `([^`]+)`|\b[^.]*) with Ctrl-C\b|用 Ctrl-C 停止")
_GOES_ON = re.compile(r"(?:until|直到) Ctrl-C")
_EXIT_CODE = re.compile(r"#.*(?:exit code|退出码) (\d+)")


class Kind(StrEnum):
    """What a reader does."""

    SAVE = "save"
    COPY = "copy"
    PROGRAM = "program"
    TYPE = "type"
    READ_JSON = "read json"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a reader does.

    Attributes:
        line: where it stands on the page.
        text: of the file, program, command or example; the page to copy from.
        name: of the file; of the only command to stop.
        shown: the output that the page shows.
    """

    kind: Kind
    line: int
    text: str
    name: str = ""
    shown: tuple[str, ...] = ()

    @property
    def goes_on(self) -> bool:
        return bool(_GOES_ON.search(self.text))

    @property
    def exit_code(self) -> int:
        found = _EXIT_CODE.search(self.text)
        return int(found[1]) if found else 0


def pages() -> list[Path]:
    """README and every page that people follow."""
    found = sorted(ROOT.glob("docs/**/*.md"))
    left_out = (*_RECORDS, *TRANSLATIONS)
    return [ROOT / "README.md", *(page for page in found if not name_of(page).startswith(left_out))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def steps_of(text: str) -> list[Step]:
    """What a reader of this page does, from its beginning to its end."""
    return list(_steps(text.splitlines()))


def file_of(page: Path, name: str) -> str:
    """What a page says is in a file."""
    [text] = [step.text for step in steps_of(page.read_text()) if step.kind is Kind.SAVE and step.name == name]
    return text


def programs_of(page: Path) -> dict[str, str]:
    """The Python files that a reader of this page has in the end, by name.

    Raises:
        ValueError: if the page saves two different files under one name, of which only one would be left.
    """
    programs: dict[str, str] = {}
    for step in steps_of(page.read_text()):
        match step.kind:
            case Kind.SAVE:
                name, text = step.name, step.text
            case Kind.COPY:
                name, text = step.name, file_of(page.parent / step.text, step.name)
            case Kind.PROGRAM:
                name, text = f"line_{step.line}.py", step.text
            case _:
                continue
        if name.endswith(".py") and programs.setdefault(name, text) != text:
            raise ValueError(f"{name_of(page)} has two files {name}")
    return programs


def _steps(lines: list[str]) -> Iterator[Step]:
    paragraph, at = "", 0
    while at < len(lines):
        first, line = at, lines[at]
        at += 1
        if fence := _FENCE.match(line):
            at = lines.index("```", at) + 1
            named = _FILE.search(paragraph)
            yield from _block(fence[1], named[1] if named else "", lines[first + 1 : at - 1], first + 2)
            paragraph = ""
        elif line and not line.startswith("#"):
            while at < len(lines) and lines[at] and not _FENCE.match(lines[at]):
                at += 1
            paragraph = " ".join(lines[first:at])
            yield from _asked(paragraph, first + 1)


def _asked(paragraph: str, at: int) -> Iterator[Step]:
    for name, page in _COPY.findall(paragraph):
        yield Step(Kind.COPY, at, page, name)
    if stop := _STOP.search(paragraph):
        yield Step(Kind.STOP, at, paragraph, stop[1] or "")


def _block(language: str, name: str, lines: list[str], at: int) -> Iterator[Step]:
    text = "\n".join(lines) + "\n"
    if language == "console":
        yield from _typed(lines, at)
    elif name:
        yield Step(Kind.SAVE, at, text, name)
    elif language == "python":
        yield Step(Kind.PROGRAM, at, text)
    elif language == "json":
        yield Step(Kind.READ_JSON, at, text)
    elif language not in _LOOKED_AT:
        raise ValueError(f"line {at}: a block of {language} needs a file's name before it")


def _typed(lines: list[str], first: int) -> Iterator[Step]:
    command, shown, at = "", list[str](), first
    for number, line in enumerate([*lines, "$ "], first):
        if line.startswith("$ "):
            if command:
                yield Step(Kind.TYPE, at, command, shown=tuple(shown))
            command, shown, at = line[2:], [], number
        elif command.endswith("\\"):
            command += "\n" + line
        elif line.strip():
            shown.append(line)
