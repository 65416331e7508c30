"""Sends the items of a batch: as one JSON body if they fit, otherwise as lines while they are iterated."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from taskframework.client.bulk import MOST_BYTES, MOST_TOGETHER
from taskframework.client.connection import JSON, Call, as_json

Items = Iterable[Any] | AsyncIterable[Any]

#: Bytes of lines that are sent together, and seconds for which a line waits for others.
_PIECE_BYTES, _PIECE_SECONDS = 65_536, 1.0


class Upload:
    """The lines of a batch. Items that can be iterated only once can be sent only once."""

    def __init__(self, items: Items) -> None:
        self._items = items
        #: Whether items were taken that cannot be iterated again.
        self.is_spent = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.is_spent = isinstance(self._items, AsyncIterable) or iter(self._items) is self._items
        lines: list[bytes] = []
        size, since = 0, time.monotonic()
        index = 0
        async for item in _one_by_one(self._items):
            lines.append(as_json(item, f"item {index}"))
            index += 1
            size += len(lines[-1])
            if size >= _PIECE_BYTES or time.monotonic() - since >= _PIECE_SECONDS:
                yield _text(lines)
                lines, size, since = [], 0, time.monotonic()
        if lines:
            yield _text(lines)


def batch_call(items: Items, options: Mapping[str, Any], about: Mapping[str, Any]) -> Call:
    """Make the call that submits a batch.

    Args:
        items: the parameters of each task.
        options: all other fields of the request.
        about: the facts about the call that its errors need.

    Raises:
        ValueNotStorableError: if an item of a batch that is sent as a whole cannot be written as JSON.
    """
    if isinstance(items, Sequence) and len(items) <= MOST_TOGETHER:
        body = as_json({**options, "items": list(items)})
        if len(body) <= MOST_BYTES:
            return Call("POST", "/batches", headers=JSON, body=body, about=about)
    headers = {"Content-Type": "application/x-ndjson"}
    return Call("POST", "/batches", query=to_jsonable_python(options), headers=headers, body=Upload(items), about=about)


async def _one_by_one(items: Items) -> AsyncIterator[Any]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def _text(lines: Sequence[bytes]) -> bytes:
    return b"\n".join(lines) + b"\n"
