"""The inserts: grouped under load, one statement for many, and settled by reading back when a reply was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from taskframework.errors import StoreError, StoreUnavailableError, TaskUnreadableError, ValueNotStorableError
from taskframework.grouping import Grouping
from taskframework.model.task import Task
from taskframework.stores.base import Inserted
from taskframework.stores.mongo.client import Collection, encoded, time_limit
from taskframework.stores.mongo.documents import Document, document_of, task_of
from taskframework.stores.mongo.faults import DuplicateDocumentError
from taskframework.stores.mongo.retrying import patiently

_IN_A_GROUP = 500


@dataclass(frozen=True, slots=True)
class _New:
    task: Task
    document: Any


class TaskInserter:
    """Inserts into the collection of tasks."""

    def __init__(self, tasks: Collection, patience: timedelta, **limits: Any) -> None:
        """Prepare without writing.

        Args:
            tasks: the collection.
            patience: how long a group is tried again while MongoDB is away.
            limits: time limits of `Grouping`, for each caller.
        """
        self._tasks = tasks
        self._patience = patience
        self._group = Grouping(self._insert_group, limit=_IN_A_GROUP, **limits)

    async def drain(self) -> None:
        """Wait until everything asked for is written."""
        await self._group.drain()

    async def insert(self, task: Task) -> Inserted:
        return await self._group(_new(task))

    async def insert_many(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        groups = [tasks[at : at + _IN_A_GROUP] for at in range(0, len(tasks), _IN_A_GROUP)]
        keys = [key for task in tasks if (key := _key(task)) is not None]
        if len(keys) > len(set(keys)):  # of two tasks with one key the first is to win
            replies = [await self._insert_some(group) for group in groups]
        else:  # while MongoDB takes one group, the next is encoded
            replies = await asyncio.gather(*map(self._insert_some, groups))
        return [reply for group in replies for reply in group]

    async def _insert_some(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        replies: dict[int, Inserted | Exception] = {}
        news: dict[int, _New] = {}
        for at, task in enumerate(tasks):
            try:
                news[at] = _new(task)
            except ValueNotStorableError as error:
                replies[at] = error
        try:
            inserted = await self._insert_group(list(news.values())) if news else []
        except StoreError as error:
            inserted = [error] * len(news)
        replies |= zip(news, inserted, strict=True)
        return [replies[at] for at in range(len(tasks))]

    async def _insert_group(self, news: Sequence[_New]) -> Sequence[Inserted | Exception]:
        unsure = False

        async def insert_together() -> Sequence[Inserted | Exception]:
            nonlocal unsure
            try:
                refused = await self._refused([new.document for new in news])
            except StoreUnavailableError:
                unsure = True
                raise
            return await self._inserted(news, refused, unsure)

        with time_limit(self._patience):
            return await patiently(insert_together, self._patience)

    async def _refused(self, documents: Sequence[Any]) -> dict[int, StoreError]:
        points = ("submit.reply",)
        if len(documents) == 1:
            return await self._tasks.insert_once(documents[0], points)
        return await self._tasks.insert_each(documents, points)

    async def _inserted(
        self, news: Sequence[_New], refused: dict[int, StoreError], unsure: bool
    ) -> Sequence[Inserted | Exception]:
        """The replies to a group of inserts. `unsure`: an earlier attempt of this group may have stored tasks."""
        duplicates = [at for at, error in refused.items() if isinstance(error, DuplicateDocumentError)]
        there = await self._there_already([news[at].task for at in duplicates])
        replies: list[Inserted | Exception] = [
            refused.get(at) or Inserted(new.task, True) for at, new in enumerate(news)
        ]
        for at, twin in zip(duplicates, there, strict=True):
            is_ours = unsure and isinstance(twin, Task) and twin.task_id == news[at].task.task_id
            replies[at] = Inserted(twin, is_ours) if isinstance(twin, Task) else twin
        return replies

    async def _there_already(self, tasks: Sequence[Task]) -> Sequence[Task | TaskUnreadableError]:
        """The stored task of the same id, or of the same user and idempotency key, for each of these."""
        if not tasks:
            return []
        keys = [{"user_id": task.user_id, "idempotency_key": task.idempotency_key} for task in tasks if _key(task)]
        found = await self._tasks.find({"$or": [{"_id": {"$in": [task.task_id for task in tasks]}}, *keys]})
        by_key: dict[object, str] = {(twin.get("user_id"), twin.get("idempotency_key")): twin["_id"] for twin in found}
        stored = {twin["_id"]: _read(twin) for twin in found}
        there = [stored.get(task.task_id) or stored.get(by_key.get(_key(task), "")) for task in tasks]
        if missing := [task.task_id for task, other in zip(tasks, there, strict=True) if other is None]:
            raise StoreUnavailableError(f"A majority of MongoDB does not know the twin of {missing[0]} yet.")
        return [twin for twin in there if twin is not None]


def _read(document: Document) -> Task | TaskUnreadableError:
    """One that a newer release wrote is the trouble of those who ask for it, not of all that are inserted with them."""
    try:
        return task_of(document)
    except TaskUnreadableError as error:
        return error


def _new(task: Task) -> _New:
    return _New(task, encoded(document_of(task), "the task"))


def _key(task: Task) -> tuple[str, str] | None:
    return None if task.idempotency_key is None else (task.user_id, task.idempotency_key)
