"""The file of a batch. It is read line by line while its items are stored, with a live line on a terminal. Errors name
the line of the file.
"""

from __future__ import annotations

import asyncio
import os
import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import typer
from pydantic_core import from_json
from rich.status import Status

from taskframework.cli.output import counted, err, note
from taskframework.submission.batches import STORE_BATCH_SIZE
from taskframework.submission.refusals import BatchConflictError, BatchItemError

#: Items between two updates of the live line.
_UPDATE_EVERY = 100
_ONE_A_LINE = "Write one item per line; for a JSON array, `jq -c '.[]' FILE` makes such lines."
_WITH_KEY = "Run the same command again to continue where it stopped."
_WITHOUT = "The stored part is cancelled. With --idempotency-key, the same command could continue where it stopped."


class ItemFile:
    """The values of a file's lines; empty lines are ignored."""

    def __init__(self, name: str) -> None:
        """Prepare; `-` is standard input."""
        self._name = name
        self._file = "standard input" if name == "-" else name
        self._items = 0
        #: For each empty line, the number of items before it.
        self._gaps: list[int] = []
        self._is_array = False
        self._read = 0
        self._size = 0
        self._status: Status | None = None

    def __iter__(self) -> Iterator[Any]:
        try:
            with nullcontext(sys.stdin.buffer) if self._name == "-" else Path(self._name).open("rb") as lines:
                self._size = 0 if self._name == "-" else os.fstat(lines.fileno()).st_size
                for number, line in enumerate(lines, 1):
                    self._read += len(line)
                    if text := line.strip():
                        value = self._value(number, text)
                        self._is_array = isinstance(value, list)
                        self._count()
                        yield value
                    else:
                        self._gaps.append(self._items)
        except OSError as error:
            raise typer.BadParameter(f"{self._file} cannot be read: {error.strerror}.") from error

    @contextmanager
    def uploading(self, key: str | None) -> Iterator[None]:
        """Show the progress of the upload; if it does not reach its end, say what became of the stored part.

        Args:
            key: the idempotency key, if there is one.
        """
        console = err()
        line = console.status("Uploading") if console.is_terminal else nullcontext()
        try:
            with line as self._status:
                yield
        except BatchItemError as error:
            error.message = f"Line {self._line_of(error.index)} of {self._file}: {error.cause.message}"
            if self._items <= 1 and self._is_array:
                error.hint = _ONE_A_LINE
            error.hint += self._left(key)
            raise
        except BatchConflictError as error:
            if error.index < self._items:
                error.message = f"Line {self._line_of(error.index)} of {self._file}: {error.message}"
            raise
        except typer.BadParameter as error:
            error.message += self._left(key)
            raise
        except asyncio.CancelledError:
            note(_WITH_KEY if key else _WITHOUT)
            raise

    def _count(self) -> None:
        self._items += 1
        if self._status is not None and self._items % _UPDATE_EVERY == 0:
            share = f" ({self._read / self._size:.0%})" if self._size else ""
            self._status.update(f"Uploading · {counted(self._items, 'item')}{share}")

    def _left(self, key: str | None) -> str:
        """A sentence about the stored part of an upload with an error; empty if nothing was stored."""
        return f" {_WITH_KEY if key else _WITHOUT}" if self._items > STORE_BATCH_SIZE else ""

    def _line_of(self, index: int) -> int:
        """The line of an item, from 1."""
        return index + 1 + bisect_right(self._gaps, index)

    def _value(self, number: int, text: bytes) -> Any:
        try:
            return from_json(text)
        except ValueError as error:
            reason = str(error).replace(" at line 1 column", " at column")
            raise typer.BadParameter(f"line {number} of {self._file} is not JSON: {reason}. {_ONE_A_LINE}") from error
