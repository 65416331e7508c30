"""The writes: grouped under load, alone when idle, and settled by reading back when a reply was lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from taskframework.errors import StoreError, StoreUnavailableError, TaskframeworkError, ValueNotStorableError
from taskframework.grouping import Grouping
from taskframework.model.marks import Mark
from taskframework.model.task import Task
from taskframework.model.transitions import Complete, Fail, RecordStep, Release, ReportProgress, Transition
from taskframework.stores.base import Inserted
from taskframework.stores.mongo.client import Collection, DuplicateDocumentError, encoded, time_limit
from taskframework.stores.mongo.documents import document_of, readable, task_of
from taskframework.stores.mongo.transitions import JOINT, Write, write_of
from taskframework.stores.replies import reply_point

Value = TypeVar("Value")

_ENDINGS = (Complete, Fail, Release)
_SETTLEMENTS = (*_ENDINGS, ReportProgress, RecordStep)
#: How many of the last endings are remembered: far more than can wait for a reply at once.
_REMEMBERED = 20_000
_PAUSE = wait_random_exponential(multiplier=0.05, max=1)
_INSERTS_IN_A_GROUP = 500
_MARKS_IN_A_GROUP = 500


@dataclass(frozen=True, slots=True)
class _New:
    task: Task
    document: Any


class TaskWriter:
    """Inserts, transitions and marks on the collection of tasks.

    An attempt to write gets half of the time, so that there is time to look whether a write without a reply was made.
    """

    def __init__(self, tasks: Collection, timeout: timedelta) -> None:
        self._tasks = tasks
        self._timeout = timeout
        self._asked_to_end: dict[str, None] = {}
        self._patience = timeout * 0.9  # so that callers hear the reason before their own time is over
        limits: Any = {"timeout": timeout.total_seconds(), "on_timeout": self._too_late}
        self._inserts = Grouping(self._insert_group, limit=_INSERTS_IN_A_GROUP, **limits)
        self._claims = Grouping(self._move_group, key=_task_id, **limits)
        self._settlements = Grouping(self._move_group, key=_task_id, **limits)

    async def drain(self) -> None:
        """Wait until everything asked for is written."""
        for grouping in (self._inserts, self._claims, self._settlements):
            await grouping.drain()

    async def insert(self, task: Task) -> Inserted:
        return await self._inserts(_new(task))

    async def insert_many(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        replies: dict[int, Inserted | Exception] = {}
        news: dict[int, _New] = {}
        for at, task in enumerate(tasks):
            try:
                news[at] = _new(task)
            except ValueNotStorableError as error:
                replies[at] = error
        for start in range(0, len(news), _INSERTS_IN_A_GROUP):
            places = list(news)[start : start + _INSERTS_IN_A_GROUP]
            try:
                inserted = await self._insert_group([news[at] for at in places])
            except StoreError as error:
                inserted = [error] * len(places)
            replies |= zip(places, inserted, strict=True)
        return [replies[at] for at in range(len(tasks))]

    async def apply(self, transition: Transition) -> Task | None:
        _check_id(transition)
        if transition.group == "claim":
            return await self._claims(transition)
        if transition.group == "settle":
            return await self._settlements(transition)
        return await self._alone(transition)

    async def mark(self, marks: Sequence[Mark]) -> None:
        for mark in marks:
            _check_id(mark)
        # Two marks on a task are two writes, in their order: of one write the document would take the first alone.
        for group in _each_task_once(marks):
            await self._mark_group(group)

    async def _alone(self, transition: Transition) -> Task | None:
        write = _encoded(transition)
        document = await self._tasks.update_one(write.guard, write.stages, (reply_point(transition),))
        return None if document is None else task_of(document)

    async def _move_group(self, transitions: Sequence[Transition]) -> Sequence[Task | Exception | None]:
        asked_before = self._remember_endings(transitions)
        over = set[str]()
        with time_limit(self._patience):
            if len(transitions) == 1:
                # Made or not when there is no reply: what follows finds out.
                with contextlib.suppress(StoreUnavailableError), time_limit(self._patience / 2):
                    return [await self._alone(transitions[0])]
            elif asked_before:
                over = await self._patiently(lambda: self._settled_before(transitions, asked_before))
            return await self._patiently(lambda: self._move_together(transitions, over))

    def _remember_endings(self, transitions: Sequence[Transition]) -> list[str]:
        """Which of these claims were asked to end before. A claim is known to one process alone, hence to this one."""
        settlements = [asked for asked in transitions if isinstance(asked, _SETTLEMENTS)]
        asked_before = [asked.fence.claim_id for asked in settlements if asked.fence.claim_id in self._asked_to_end]
        self._asked_to_end |= dict.fromkeys(
            asked.fence.claim_id for asked in settlements if isinstance(asked, _ENDINGS)
        )
        while len(self._asked_to_end) > _REMEMBERED:
            del self._asked_to_end[next(iter(self._asked_to_end))]
        return asked_before

    async def _settled_before(self, transitions: Sequence[Transition], claims: Sequence[str]) -> set[str]:
        """Tasks whose claim is over already: it would show as won whatever became of this second settlement."""
        settled = {"_id": {"$in": _ids(transitions)}, "last_claim_id": {"$in": claims}}
        return {document["_id"] for document in await self._tasks.find(settled, fields=("_id",))}

    async def _move_together(
        self, transitions: Sequence[Transition], over: set[str]
    ) -> Sequence[Task | Exception | None]:
        """Write all, then read all: the totals of a bulk write do not say which guards held.

        Made a second time, a move that was made finds its guard closed by itself, and the reading shows it as won.
        """
        refused = await self._write(transitions)
        found = readable(await self._tasks.find({"_id": {"$in": _ids(transitions)}}), task_of)
        tasks = {task.task_id: task for task in found if task.task_id not in over}
        return [refused.get(at) or _won(asked, tasks) for at, asked in enumerate(transitions)]

    async def _mark_group(self, marks: Sequence[Mark]) -> None:
        with time_limit(self._patience):
            refused = await self._write(marks)
        for error in refused.values():
            raise error

    async def _write(self, group: Sequence[Transition | Mark]) -> dict[int, TaskframeworkError]:
        """Make the writes of a group, a kind in one command where that is possible; what was refused, by position."""
        kinds: dict[type[Any], dict[int, Transition | Mark]] = defaultdict(dict)
        for at, asked in enumerate(group):
            kinds[type(asked)][at] = asked
        # A kind whose reply is lost does not keep the others from being written.
        replies = await asyncio.gather(*map(self._write_kind, kinds.values()), return_exceptions=True)
        refused: dict[int, TaskframeworkError] = {}
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
            refused |= reply
        return refused

    async def _write_kind(self, group: dict[int, Transition | Mark]) -> dict[int, TaskframeworkError]:
        if len(group) > 1 and await self._write_jointly(list(group.values())):
            return {}
        return await self._write_each(group)

    async def _write_jointly(self, asked: Sequence[Transition | Mark]) -> bool:
        """Whether one command made all of them.

        One value that cannot be stored, or one document that the server refuses, ends it half-way. Alone, the others
        are made, and one that was made already finds its guard closed.
        """
        if type(asked[0]) not in JOINT:
            return False
        try:
            write = write_of(asked)
            await self._tasks.update_these(write.guard, write.stages, map(reply_point, asked))
        except StoreUnavailableError:
            raise
        except (StoreError, ValueNotStorableError):
            return False
        return True

    async def _write_each(self, group: dict[int, Transition | Mark]) -> dict[int, TaskframeworkError]:
        refused: dict[int, TaskframeworkError] = {}
        writes: dict[int, Write] = {}
        for at, asked in group.items():
            try:
                writes[at] = _encoded(asked)
            except ValueNotStorableError as refusal:
                refused[at] = refusal
        if not writes:
            return refused
        updates = [(write.guard, write.stages) for write in writes.values()]
        places = list(writes)
        found = await self._tasks.update_each(updates, [reply_point(group[at]) for at in places])
        return refused | {places[at]: error for at, error in found.items()}

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

        with contextlib.suppress(StoreUnavailableError):
            return await attempt()
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(StoreUnavailableError),
            stop=stop_after_delay(self._patience),
            wait=_PAUSE,
            reraise=True,
        )
        await asyncio.sleep(_PAUSE.multiplier)
        return await retrying(attempt)

    def _too_late(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"MongoDB did not answer within {self._timeout.total_seconds():g} s.")


def _new(task: Task) -> _New:
    return _New(task, encoded(document_of(task), "the task"))


def _encoded(asked: Transition | Mark) -> Write:
    """The write for this request alone, checked to be storable."""
    write = write_of([asked])
    what = f"a value in {type(asked).__name__} of task {asked.task_id}"
    return Write(write.guard, [encoded(stage, what) for stage in write.stages])


def _check_id(asked: Transition | Mark) -> None:
    """An id that is no text would fail the read of the whole group."""
    try:
        asked.task_id.encode()
    except UnicodeEncodeError as error:
        raise ValueNotStorableError("a task id", str(error)) from error


def _each_task_once(marks: Sequence[Mark]) -> Iterator[list[Mark]]:
    group: dict[str, Mark] = {}
    for mark in marks:
        if mark.task_id in group or len(group) == _MARKS_IN_A_GROUP:
            yield list(group.values())
            group = {}
        group[mark.task_id] = mark
    if group:
        yield list(group.values())


def _task_id(asked: Transition | Mark) -> str:
    return asked.task_id


def _ids(group: Sequence[Transition | Mark]) -> list[str]:
    return [asked.task_id for asked in group]


def _won(transition: Transition, tasks: dict[str, Task]) -> Task | None:
    task = tasks.get(transition.task_id)
    return task if task is not None and transition.won(task) else None


def _key(task: Task) -> tuple[str, str] | None:
    return None if task.idempotency_key is None else (task.user_id, task.idempotency_key)
