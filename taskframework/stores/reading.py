"""Reads of one record, a page of the records of a kind, or all of them; and joint reads of single tasks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from taskframework.errors import TaskUnreadableError
from taskframework.grouping import BULK_LIMIT, Grouping, together_or_alone
from taskframework.model.query import Page
from taskframework.model.records import Record, RecordKind, parts_of
from taskframework.model.scope import EVERYONE
from taskframework.model.streams import Turn
from taskframework.model.task import SCHEMA_VERSION, Task
from taskframework.stores.base import Records, TaskStore

Content = TypeVar("Content")

#: How many records one read gets when all records of a kind are read.
_READ_BATCH_SIZE = 500


async def read_record(records: Records, record_id: str) -> Record | None:
    """The record of this id, if there is one.

    Raises:
        StoreUnavailableError: if the store cannot be asked.
    """
    return (await records.read_records([record_id])).get(record_id)


async def read_page(records: Records, kind: RecordKind[Content], *, limit: int, after: str | None) -> Page[Content]:
    """The contents of some records of a kind, in the order of their names, without those that cannot be read.

    Args:
        records: the store of the records.
        kind: their kind; a name alone makes the id.
        limit: the most records of a page.
        after: the name before the first record; None: from the beginning.

    Raises:
        StoreUnavailableError: if the store cannot be asked.
    """
    place = "" if after is None else kind.id_of(after)
    found = await records.list_records(kind.name, limit=limit + 1, after=place)
    page = kind.contents(found[:limit])
    return Page(tuple(page.values()), parts_of(found[limit - 1].id)[0] if len(found) > limit else None)


async def read_all_records(records: Records, kind: RecordKind[Any]) -> list[Record]:
    """All records of a kind, in the order of their ids; for kinds of which there are not many.

    Raises:
        StoreUnavailableError: if the store cannot be asked.
    """
    found: list[Record] = []
    while True:
        page = await records.list_records(kind.name, limit=_READ_BATCH_SIZE, after=found[-1].id if found else "")
        found += page
        if len(page) < _READ_BATCH_SIZE:
            return found


async def read_all_contents(records: Records, kind: RecordKind[Content]) -> list[Content]:
    """The contents of all records of a kind that this release can read; see `read_all_records`."""
    return list(kind.contents(await read_all_records(records, kind)).values())


def unreadable(document: Any, task_id: str, error: Exception) -> TaskUnreadableError:
    """The error for a document whose reading ended with one of `UNREADABLE`."""
    version = document.get("schema_version") if isinstance(document, dict) else None
    is_newer = isinstance(version, int) and version > SCHEMA_VERSION
    return TaskUnreadableError(task_id, repr(error)[:200], is_newer=is_newer)


def turn_of(task_id: str, generation: object, position: object) -> Turn:
    """The turn of a task of which only these fields were read.

    Raises:
        TaskUnreadableError: if one of them is no number. With such a turn, the record of its stream could not be read.
    """
    if isinstance(generation, int) and isinstance(position, int):
        return Turn(task_id, generation, position)
    raise unreadable(None, task_id, TypeError("a wrong type in its generation or position"))


class JointReads:
    """Reads single tasks of any user. Tasks that are requested during one read are read together by the next."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self._group: Grouping[str, Task | None] = Grouping(partial(together_or_alone, self._get_all), limit=BULK_LIMIT)

    async def get(self, task_id: str) -> Task | None:
        """`TaskStore.get`."""
        return await self._group(task_id)

    async def _get_all(self, task_ids: Sequence[str]) -> Sequence[Task | None]:
        found = await self._store.get_many(task_ids, EVERYONE)
        return [found.get(task_id) for task_id in task_ids]
