"""What the commands write: text for people, JSON for programs, errors with the next step. Results go to standard
output, everything about them to standard error.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from taskframework.cli.ending import INTERRUPTED
from taskframework.errors import TaskframeworkError

Value = TypeVar("Value")

#: Width of tables in a pipe or a file, where nobody's window cuts anything off.
_WIDE = 200


def out() -> Console:
    """Standard output."""
    return _console(stderr=False)


def err() -> Console:
    """Standard error."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def say(text: str, *, style: str = "") -> None:
    """One line about what was done; never cut or wrapped."""
    out().print(Text(text, style=style), soft_wrap=True)


def note(text: str) -> None:
    """One line beside the result, on standard error."""
    err().print(Text(text, style="dim"), soft_wrap=True)


def show_error(error: TaskframeworkError) -> None:
    """The error in red, and what to do next."""
    console = err()
    console.print(
        Text("error: ", style="bold red").append(error.message.rstrip(), style="not bold red"), soft_wrap=True
    )
    if error.hint:
        console.print(Text(f"  {error.hint}"), soft_wrap=True)


def printable(text: str) -> str:
    """The text without control characters: what tasks and files are called must not steer a terminal."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in text)


def print_json(value: object) -> None:
    """A whole JSON document."""
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode())


def print_json_line(value: object) -> None:
    """One line of a stream of JSON documents, at once."""
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE).decode())
    sys.stdout.flush()


def as_json_text(value: object) -> str:
    """JSON for people: short values on one line, others indented."""
    line = orjson.dumps(value).decode()
    return line if len(line) <= 80 else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def table(*columns: str) -> Table:
    """An empty table in the look of all our tables."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column)
    return made


def facts(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Names and values below each other."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value if isinstance(value, Text) else Text(printable(value)))
    return grid


def counted(number: int, what: str) -> str:
    """`1 task`, `1,000 tasks`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(length: timedelta) -> str:
    """A length of time in the two units that matter."""
    seconds = length.total_seconds()
    if seconds < 60:
        return f"{seconds:.3f} s" if seconds < 1 else f"{seconds:.1f} s"
    for name, size, below in (("d", 86_400, 3_600), ("h", 3_600, 60), ("min", 60, 1)):
        if seconds >= size:
            rest = int(seconds % size) // below
            return f"{int(seconds // size)} {name}" + (f" {rest} {_BELOW[name]}" if rest else "")
    raise AssertionError("unreachable: a minute is the smallest unit")


_BELOW = {"d": "h", "h": "min", "min": "s"}


def ago(moment: datetime, now: datetime) -> str:
    """How long ago, or how far ahead, in one unit."""
    seconds = (now - moment).total_seconds()
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return (
                f"{int(abs(seconds) // size)} {name} ago" if seconds > 0 else f"in {int(abs(seconds) // size)} {name}"
            )
    return f"{max(0, int(seconds))} s ago" if seconds > -1 else f"in {int(-seconds)} s"


def run(main: Coroutine[Any, Any, Value]) -> Value:
    """Run a command's coroutine; Ctrl-C ends it with the usual code and no traceback.

    Raises:
        SystemExit: 130 after Ctrl-C.
    """
    try:
        return asyncio.run(_interruptible(main))
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def forget_threads() -> None:
    """Let threads end without a word: one whose event loop was closed early would print a traceback about that."""
    threading.excepthook = lambda _: None


async def _interruptible(main: Coroutine[Any, Any, Value]) -> Value:
    """What a cancelled command raises in the end is no news."""
    task = asyncio.current_task()
    try:
        return await main
    except Exception as error:
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from error
        raise
    finally:
        if task is not None and task.cancelling():
            forget_threads()
