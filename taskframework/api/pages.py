"""Pages of entries that may be large, such as tasks: read in parts, and ended early, so that none fills the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import orjson
from fastapi import Response

from taskframework.model.query import Page

Entry = TypeVar("Entry")


class ReadPage(Protocol[Entry]):
    """Reads a page of a list."""

    async def __call__(self, *, limit: int, cursor: str | None) -> Page[Entry]: ...


#: Bytes at which a page ends, with the entry that reaches them. 500 ordinary tasks have less than 2 MiB, and one task
#: with the largest parameters and result has about as many.
PAGE_BYTES = 16 * 1024 * 1024
#: Entries that are read together. More would need more memory, fewer more calls of the store.
_READ_BATCH_SIZE = 25


async def large_page_response(
    read: ReadPage[Entry], view: Callable[[Entry], Any], *, limit: int, cursor: str | None = None
) -> Response:
    """Answer with a page of `limit` entries, or with fewer entries once they have `PAGE_BYTES` together.

    Args:
        read: reads a part of the list.
        view: what callers see of an entry.
        limit: most entries.
        cursor: where the page begins; None: at the beginning.
    """
    entries: list[bytes] = []
    size = 0
    while True:
        wanted = min(_READ_BATCH_SIZE, limit - len(entries))
        part = await read(limit=wanted, cursor=cursor)
        cursor = part.next_cursor
        shown = [orjson.dumps(view(entry)) for entry in part.items]
        entries += shown
        size += sum(map(len, shown))
        if cursor is None or len(shown) < wanted or len(entries) == limit or size >= PAGE_BYTES:
            break
    body = b'{"items":[%b],"next_cursor":%b}' % (b",".join(entries), orjson.dumps(cursor))
    return Response(body, media_type="application/json")
