"""The writes: grouped under load, alone when idle, and settled by reading back when a reply was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from taskframework.errors import StoreError, StoreUnavailableError
from taskframework.grouping import Grouping
from taskframework.model.marks import Mark
from taskframework.model.task import Task
from taskframework.model.transitions import Transition
from taskframework.stores.base import Inserted
from taskframework.stores.mongo.client import Collection, DuplicateDocumentError, encoded, time_limit
from taskframework.stores.mongo.documents import Document, document_of, readable, task_of
from taskframework.stores.mongo.transitions import write_of
from taskframework.stores.replies import reply_point

Value = TypeVar("Value")
Asked = TypeVar("Asked", bound=Transition | Mark)

_INSERTS_IN_A_GROUP = 500


@dataclass(frozen=True, slots=True)
class _Update:
    """A transition or mark and the write that makes it, checked to be storable."""

    asked: Any
    guard: Document
    stages: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _New:
    task: Task
    document: Any


class TaskWriter:
    """Inserts, transitions and marks on the collection of tasks.

    A value that cannot be stored is refused before its request joins a group. An attempt to write gets half of the
    time, so that there is time to look whether a write without a reply was made.
    """

    def __init__(self, tasks: Collection, timeout: timedelta) -> None:
        self._tasks = tasks
        self._timeout = timeout
        self._patience = timeout * 0.9  # so that callers hear the reason before their own time is over
        self._inserts = Grouping(self._insert_group, limit=_INSERTS_IN_A_GROUP)
        self._claims = Grouping(self._move_group, key=_task_id)
        self._settlements = Grouping(self._move_group, key=_task_id)
        self._marks = Grouping(self._mark_group, key=_task_id)

    async def drain(self) -> None:
        """Wait until everything asked for is written."""
        for grouping in (self._inserts, self._claims, self._settlements, self._marks):
            await grouping.drain()

    async def insert(self, task: Task) -> Inserted:
        new = _New(task, encoded(document_of(task), "the task"))
        return await self._in_time(self._inserts(new))

    async def apply(self, transition: Transition) -> Task | None:
        update = _update(transition)
        if transition.group == "claim":
            return await self._in_time(self._claims(update))
        if transition.group == "settle":
            return await self._in_time(self._settlements(update))
        return _task(await self._tasks.update_one(update.guard, update.stages, _points([update])))

    async def mark(self, mark: Mark) -> None:
        await self._in_time(self._marks(_update(mark)))

    async def _move_group(self, updates: Sequence[_Update]) -> Sequence[Task | Exception | None]:
        with time_limit(self._patience):
            if len(updates) == 1:
                try:
                    with time_limit(self._patience / 2):
                        alone = updates[0]
                        return [_task(await self._tasks.update_one(alone.guard, alone.stages, _points(updates)))]
                except StoreUnavailableError:
                    over = set[str]()  # made or not: what follows finds out
            else:
                over = await self._patiently(lambda: self._settled_before(updates))
            return await self._patiently(lambda: self._move_together(updates, over))

    async def _settled_before(self, updates: Sequence[_Update]) -> set[str]:
        """Tasks whose claim is over already: it would show as won whatever became of this second settlement."""
        claims = [update.asked.fence.claim_id for update in updates if update.asked.group == "settle"]
        if not claims:
            return set()
        settled = {"_id": {"$in": _ids(updates)}, "last_claim_id": {"$in": claims}}
        return {document["_id"] for document in await self._tasks.find(settled, fields=("_id",))}

    async def _move_together(self, updates: Sequence[_Update], over: set[str]) -> Sequence[Task | Exception | None]:
        """Write all, then read all: the totals of a bulk write do not say which guards held.

        Made a second time, a move that was made finds its guard closed by itself, and the reading shows it as won.
        """
        refused = await self._update_each(updates)
        found = readable(await self._tasks.find({"_id": {"$in": _ids(updates)}}), task_of)
        tasks = {task.task_id: task for task in found if task.task_id not in over}
        return [refused.get(at) or _won(update.asked, tasks) for at, update in enumerate(updates)]

    async def _mark_group(self, updates: Sequence[_Update]) -> Sequence[Exception | None]:
        with time_limit(self._patience):
            refused = await self._update_each(updates)
        return [refused.get(at) for at in range(len(updates))]

    async def _update_each(self, updates: Sequence[_Update]) -> dict[int, StoreError]:
        return await self._tasks.update_each([(update.guard, update.stages) for update in updates], _points(updates))

    async def _insert_group(self, news: Sequence[_New]) -> Sequence[Inserted | Exception]:
        unsure = False

        async def insert_together() -> Sequence[Inserted | Exception]:
            nonlocal unsure
            try:
                refused = await self._tasks.insert_each([new.document for new in news], ("submit.reply",))
            except StoreUnavailableError:
                unsure = True
                raise
            return await self._inserted(news, refused, unsure)

        with time_limit(self._patience):
            return await self._patiently(insert_together)

    async def _inserted(
        self, news: Sequence[_New], refused: dict[int, StoreError], unsure: bool
    ) -> Sequence[Inserted | Exception]:
        """The replies to a group of inserts. `unsure`: an earlier attempt of this group may have stored tasks."""
        duplicates = [at for at, error in refused.items() if isinstance(error, DuplicateDocumentError)]
        there = await self._there_already([news[at].task for at in duplicates])
        replies: list[Inserted | Exception] = [
            refused.get(at) or Inserted(new.task, True) for at, new in enumerate(news)
        ]
        for at, task in zip(duplicates, there, strict=True):
            replies[at] = Inserted(task, unsure and task.task_id == news[at].task.task_id)
        return replies

    async def _there_already(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """The stored task of the same id, or of the same user and idempotency key, for each of these."""
        if not tasks:
            return []
        keys = [{"user_id": task.user_id, "idempotency_key": task.idempotency_key} for task in tasks if _key(task)]
        found = await self._tasks.find({"$or": [{"_id": {"$in": [task.task_id for task in tasks]}}, *keys]})
        stored = [task_of(document) for document in found]
        by_id = {task.task_id: task for task in stored}
        by_key = {_key(task): task for task in stored}
        there = [by_id.get(task.task_id) or by_key.get(_key(task)) for task in tasks]
        if missing := [task.task_id for task, other in zip(tasks, there, strict=True) if other is None]:
            raise StoreUnavailableError(f"A majority of MongoDB does not know the twin of {missing[0]} yet.")
        return [task for task in there if task is not None]

    async def _patiently(self, write: Callable[[], Awaitable[Value]]) -> Value:
        """Try again while MongoDB is away: a server restarts or steps down within seconds."""

        async def attempt() -> Value:
            with time_limit(self._patience / 2):
                return await write()

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(StoreUnavailableError),
            stop=stop_after_delay(self._patience),
            wait=wait_random_exponential(multiplier=0.05, max=1),
            reraise=True,
        )
        return await retrying(attempt)

    async def _in_time(self, reply: Awaitable[Value]) -> Value:
        """The reply of a group, without waiting for ever for the groups before it."""
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                return await reply
        except TimeoutError as error:
            seconds = self._timeout.total_seconds()
            raise StoreUnavailableError(f"MongoDB did not answer within {seconds:g} s.") from error


def _update(asked: Transition | Mark) -> _Update:
    write = write_of(asked)
    what = f"a value in {type(asked).__name__} of task {asked.task_id}"
    return _Update(asked, write.guard, tuple(encoded(stage, what) for stage in write.stages))


def _points(updates: Sequence[_Update]) -> Iterator[str]:
    return (reply_point(update.asked) for update in updates)


def _task_id(update: _Update) -> str:
    return str(update.asked.task_id)


def _ids(updates: Sequence[_Update]) -> list[str]:
    return [_task_id(update) for update in updates]


def _task(document: Document | None) -> Task | None:
    return None if document is None else task_of(document)


def _won(transition: Transition, tasks: dict[str, Task]) -> Task | None:
    task = tasks.get(transition.task_id)
    return task if task is not None and transition.won(task) else None


def _key(task: Task) -> tuple[str, str] | None:
    return None if task.idempotency_key is None else (task.user_id, task.idempotency_key)
