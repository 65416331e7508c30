"""The output of commands: text for people, JSON for programs, errors with the next step. Results go to standard output,
all remarks about them to standard error.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import re
import sys
import threading
from collections.abc import Coroutine, Iterable
from datetime import datetime
from typing import Any, TypeVar

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from taskframework.cli.ending import INTERRUPTED_EXIT_CODE
from taskframework.errors import TaskframeworkError

Value = TypeVar("Value")

#: Width of tables in a pipe or a file, where no window cuts anything off.
_PIPE_WIDTH = 200


def out() -> Console:
    """Standard output."""
    return _console(stderr=False)


def err() -> Console:
    """Standard error."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def say(text: str, *, style: str = "") -> None:
    """Print one line about a result; it is never cut or wrapped."""
    out().print(Text(printable(text), style=style), soft_wrap=True)


def note(text: str) -> None:
    """Print one remark beside the result, on standard error."""
    err().print(Text(printable(text), style="dim"), soft_wrap=True)


def show_error(error: TaskframeworkError) -> None:
    """Print the error in red, and what to do next."""
    console = err()
    message = printable(error.message.rstrip())
    console.print(Text("error: ", style="bold red").append(message, style="not bold red"), soft_wrap=True)
    if error.hint:
        console.print(Text(printable(f"  {error.hint}")), soft_wrap=True)


def printable(text: str) -> str:
    """Replace control characters: the names of tasks and files must not control a terminal."""
    return "".join(
        character if character.isprintable() or character == "\n" else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def print_json(value: object) -> None:
    """Print a whole JSON document."""
    _write_json(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def print_json_line(value: object) -> None:
    """Print one line of a stream of JSON documents, and flush it."""
    _write_json(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
    sys.stdout.flush()


def _write_json(document: bytes) -> None:
    """Write JSON so that any program can read it: the encoding of the output may lack characters."""
    text = document.decode()
    if codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8":
        text = re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0]).strip('"'), text)
    sys.stdout.write(text)


def as_json_text(value: object) -> str:
    """Format JSON for people: short values on one line, others indented."""
    line = orjson.dumps(value).decode()
    return line if len(line) <= 80 else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def table(*columns: str) -> Table:
    """Make an empty table in the style of all our tables."""
    new_table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        new_table.add_column(column)
    return new_table


def facts(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Make a table of names and values below each other."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value if isinstance(value, Text) else Text(printable(value)))
    return grid


def ago(moment: datetime, now: datetime) -> str:
    """Format how long ago a time was, or how far ahead it is, in one unit; less than a second is now."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return (
                f"{int(abs(seconds) // size)} {name} ago" if seconds > 0 else f"in {int(abs(seconds) // size)} {name}"
            )
    return f"{int(seconds)} s ago" if seconds > 0 else f"in {int(-seconds)} s"


def run(main: Coroutine[Any, Any, Value]) -> Value:
    """Run a command's coroutine; Ctrl-C ends it with the usual code and no traceback.

    Raises:
        SystemExit: 130 after Ctrl-C.
    """
    try:
        return asyncio.run(_hide_cancellation_errors(main))
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED_EXIT_CODE) from None


def silence_thread_errors() -> None:
    """Let threads end silently: a thread whose event loop was closed early would print a traceback."""
    threading.excepthook = lambda _: None


async def _hide_cancellation_errors(main: Coroutine[Any, Any, Value]) -> Value:
    """Run a command; if it is cancelled, hide the errors that it raises because of that."""
    task = asyncio.current_task()
    try:
        return await main
    except Exception as error:
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from error
        raise
    finally:
        if task is not None and task.cancelling():
            silence_thread_errors()
