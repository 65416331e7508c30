"""Reads the items of an upload in parts: many together, but no item waits long."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Sequence
from typing import Any

from taskframework.background import end
from taskframework.tasks.values import own_copy

#: The most items that are stored together.
STORE_BATCH_SIZE = 500
#: The most seconds for which an item waits to be stored together with other items.
_MAX_HELD_BACK_SECONDS = 0.5
#: Comes in the queue after the last item of a source.
_END = object()


def in_parts(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Sequence[Any], None]:
    """Yield items in parts for `BatchSubmissionService.upload`: many together, but no item waits long.

    Close the generator when you have left it, so that the source is closed too.
    """
    return _in_timely_parts(items) if isinstance(items, AsyncIterable) else _in_parts(items)


async def _in_parts(items: Iterable[Any]) -> AsyncGenerator[Sequence[Any], None]:
    part: list[Any] = []
    began = time.monotonic()
    for item in items:
        part.append(own_copy(item))
        if len(part) == STORE_BATCH_SIZE or time.monotonic() - began > _MAX_HELD_BACK_SECONDS:
            yield part
            part, began = [], time.monotonic()
    if part:
        yield part


async def _in_timely_parts(items: AsyncIterable[Any]) -> AsyncGenerator[Sequence[Any], None]:
    """Yield the items that came in time, also while the source pauses.

    An asyncio task of its own reads the source, from its beginning to its end: a time limit that the source sets for
    itself belongs to the asyncio task in which it began.
    """
    came: asyncio.Queue[Any] = asyncio.Queue()
    room = asyncio.Semaphore(STORE_BATCH_SIZE)

    async def read() -> None:
        async for item in items:
            await room.acquire()
            came.put_nowait(own_copy(item))

    reading = asyncio.create_task(read())
    reading.add_done_callback(lambda _: came.put_nowait(_END))
    is_over = False
    try:
        while not is_over:
            part, is_over = await _next_part(came)
            if is_over:
                reading.result()  # raises the error of the source
            if part:
                yield part
            for _ in part:  # only now, so that no more is read before these items are stored
                room.release()
    finally:
        await end(reading)


async def _next_part(came: asyncio.Queue[Any]) -> tuple[list[Any], bool]:
    """Wait for an item and those that soon follow; return them, and whether the source has ended."""
    part, item = [], await came.get()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_MAX_HELD_BACK_SECONDS):
            while item is not _END:
                part.append(item)
                if len(part) == STORE_BATCH_SIZE:
                    break
                item = await came.get()
    return part, item is _END
