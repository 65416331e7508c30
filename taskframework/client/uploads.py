"""Sends the items of a batch: as one JSON body if they fit, otherwise as lines while they are iterated."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from taskframework.client.bulk import MAX_BODY_BYTES, MAX_ITEMS_PER_REQUEST
from taskframework.client.requests import JSON, Call, as_json

Items = Iterable[Any] | AsyncIterable[Any]

#: Lines are sent together until they have so many bytes, or until so many seconds have passed since lines were sent.
#: Items that come one by one are sent at once. Of a burst the last ones wait for the next item.
_PIECE_BYTES, _PIECE_SECONDS = 65_536, 0.05


class Upload:
    """The lines of a batch. Items that can be iterated only once can be sent only once."""

    def __init__(self, items: Items) -> None:
        self._items = items
        #: Whether items were taken that cannot be iterated again.
        self.is_consumed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.is_consumed = isinstance(self._items, AsyncIterable) or iter(self._items) is self._items
        lines: list[bytes] = []
        size, since = 0, time.monotonic()
        index = 0
        async for item in _iterate_items(self._items):
            lines.append(as_json(item, f"item {index}"))
            index += 1
            size += len(lines[-1])
            if size >= _PIECE_BYTES or time.monotonic() - since >= _PIECE_SECONDS:
                yield _join_lines(lines)
                lines, size, since = [], 0, time.monotonic()
        if lines:
            yield _join_lines(lines)


def whole_call(items: Items, options: Mapping[str, Any], error_context: Mapping[str, Any]) -> Call | None:
    """Make the call that submits a batch in one body; None if it has to be uploaded.

    Args:
        items: the parameters of each task.
        options: all other fields of the request.
        error_context: the facts about the call that its errors need.

    Raises:
        ValueNotStorableError: if an item cannot be written as JSON.
    """
    if not isinstance(items, Sequence) or len(items) > MAX_ITEMS_PER_REQUEST:
        return None
    body = as_json({**options, "items": list(items)})
    if len(body) > MAX_BODY_BYTES:
        return None
    return Call("POST", "/batches", headers=JSON, body=body, error_context=error_context)


def upload_call(items: Items, options: Mapping[str, Any], error_context: Mapping[str, Any]) -> Call:
    """Make the call that submits a batch line by line; the arguments are those of `whole_call`."""
    return Call(
        "POST",
        "/batches",
        query=from_json(as_json(options)),
        headers={"Content-Type": "application/x-ndjson"},
        body=Upload(items),
        error_context=error_context,
    )


async def _iterate_items(items: Items) -> AsyncIterator[Any]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def _join_lines(lines: Sequence[bytes]) -> bytes:
    return b"\n".join(lines) + b"\n"
