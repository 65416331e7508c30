"""The file of a batch. It is read line by line while its items are stored, with a live line on a terminal. Errors name
the line of the file.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import sys
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import typer
from pydantic_core import from_json
from rich.status import Status

from taskframework.background import iterate_in_thread
from taskframework.cli.output import err, note
from taskframework.model.wording import pluralize
from taskframework.submission.parts import STORE_BATCH_SIZE
from taskframework.submission.refusals import BatchConflictError, BatchItemError

#: Items between two updates of the live line.
_UPDATE_EVERY = 100
_ONE_ITEM_PER_LINE_HINT = "Write one item per line; for a JSON array, `jq -c '.[]' FILE` makes such lines."
_CONTINUE_HINT = "Run the same command again to continue where it stopped."
_CANCELLED_HINT = (
    "The stored part is cancelled. With --idempotency-key, the same command could continue where it stopped."
)


class ItemFile:
    """The values of a file's lines; empty lines are ignored."""

    def __init__(self, name: str) -> None:
        """Look at the file, which may take its time; `-` is standard input."""
        self._name = name
        self._file_text = "standard input" if name == "-" else name
        self._is_regular = name != "-" and Path(name).is_file()
        self._item_count = 0
        #: For each empty line, the number of items before it.
        self._items_before_empty_lines: list[int] = []
        self._is_last_item_array = False
        self._bytes_read = 0
        self._file_size = 0
        self._status: Status | None = None

    def values(self) -> Iterable[Any] | AsyncIterable[Any]:
        """The values: for a regular file as often as they are iterated, otherwise once, because a pipe that is read
        again continues where it was. A pipe may be silent for long, so it is read beside the event loop.
        """
        return self if self._is_regular else self._iterate_pipe()

    def __iter__(self) -> Iterator[Any]:
        self._item_count = self._bytes_read = 0
        self._items_before_empty_lines = []
        with self._naming_file():
            for number, line in enumerate(self._lines(), 1):
                yield from self._values_in(number, line)

    async def _iterate_pipe(self) -> AsyncGenerator[Any, None]:
        with self._naming_file():
            async with aclosing(iterate_in_thread(enumerate(self._lines(), 1))) as lines:
                async for number, line in lines:
                    for value in self._values_in(number, line):
                        yield value

    def _lines(self) -> Iterator[bytes]:
        is_stdin = self._name == "-"
        # Not `sys.stdin.buffer`: Python closes it at the end, and aborts if a thread still waits in it.
        with open(sys.stdin.fileno() if is_stdin else self._name, "rb", closefd=not is_stdin) as lines:
            self._file_size = 0 if is_stdin else os.fstat(lines.fileno()).st_size
            yield from lines

    def _values_in(self, number: int, line: bytes) -> Iterator[Any]:
        """Yield the value of a line, or nothing if it is empty."""
        self._bytes_read += len(line)
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)  # some editors write it
        if text := line.strip():
            value = self._parse(number, text)
            self._is_last_item_array = isinstance(value, list)
            self._count_item()
            yield value
        else:
            self._items_before_empty_lines.append(self._item_count)

    @contextmanager
    def _naming_file(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise typer.BadParameter(f"{self._file_text} cannot be read: {error.strerror}.") from error

    @contextmanager
    def uploading(self, key: str | None) -> Iterator[None]:
        """Show the progress of the upload; if it does not reach its end, say what happens to the stored part.

        Args:
            key: the idempotency key, if there is one.
        """
        console = err()
        line = console.status("Uploading") if console.is_terminal else nullcontext()
        try:
            with line as self._status:
                yield
        except BatchItemError as error:
            error.message = f"Line {self._line_number_of(error.index)} of {self._file_text}: {error.cause.message}"
            if self._item_count <= 1 and self._is_last_item_array:
                error.hint = _ONE_ITEM_PER_LINE_HINT
            error.hint += _stored_part_hint(key, error.index)
            raise
        except BatchConflictError as error:
            if error.index < self._item_count:
                error.message = f"Line {self._line_number_of(error.index)} of {self._file_text}: {error.message}"
            raise
        except typer.BadParameter as error:
            error.message += _stored_part_hint(key, self._item_count)
            raise
        except asyncio.CancelledError:
            note(_CONTINUE_HINT if key else _CANCELLED_HINT)
            raise

    def _count_item(self) -> None:
        self._item_count += 1
        if self._status is not None and self._item_count % _UPDATE_EVERY == 0:
            share = f" ({self._bytes_read / self._file_size:.0%})" if self._file_size else ""
            self._status.update(f"Uploading · {pluralize(self._item_count, 'item')}{share}")

    def _line_number_of(self, index: int) -> int:
        """The line of an item, from 1."""
        return index + 1 + bisect_right(self._items_before_empty_lines, index)

    def _parse(self, number: int, text: bytes) -> Any:
        try:
            return from_json(text)
        except ValueError as error:
            reason = str(error).replace(" at line 1 column", " at column")
            raise typer.BadParameter(
                f"line {number} of {self._file_text} is not JSON: {reason}. {_ONE_ITEM_PER_LINE_HINT}"
            ) from error


def _stored_part_hint(key: str | None, items_before: int) -> str:
    """A sentence about the stored part of an upload with an error after so many items; empty if maybe nothing was
    stored.
    """
    return f" {_CONTINUE_HINT if key else _CANCELLED_HINT}" if items_before >= STORE_BATCH_SIZE else ""
