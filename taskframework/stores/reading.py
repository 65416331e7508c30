"""Reading many records."""

from __future__ import annotations

from typing import TypeVar

from taskframework.model.records import RecordKind
from taskframework.stores.base import Records

Content = TypeVar("Content")

_TOGETHER = 500


async def all_records(records: Records, kind: RecordKind[Content]) -> list[Content]:
    """What all records of a kind say, in the order of their ids; for kinds of which there are not many.

    Raises:
        StoreUnavailableError: if the store cannot be asked.
    """
    contents: list[Content] = []
    after = ""
    while True:
        found = await records.list_records(kind.name, limit=_TOGETHER, after=after)
        contents += map(kind.content, found)
        if len(found) < _TOGETHER:
            return contents
        after = found[-1].id
