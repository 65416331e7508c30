"""The writes to tasks that are there: grouped under load, alone when idle, and sure even when a reply was lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from taskframework.errors import StoreError, StoreUnavailableError, TaskframeworkError, ValueNotStorableError
from taskframework.grouping import Grouping
from taskframework.model.marks import Mark
from taskframework.model.task import Task
from taskframework.model.transitions import Complete, Fail, Transition
from taskframework.stores.mongo.client import BY_ID, Collection, Points, encoded, time_limit
from taskframework.stores.mongo.documents import Document, moment, readable, task_of
from taskframework.stores.mongo.held import HeldTasks
from taskframework.stores.mongo.retrying import patiently
from taskframework.stores.mongo.together import Together, both
from taskframework.stores.mongo.transitions import JOINT, Write, write_of
from taskframework.stores.replies import reply_point

Value = TypeVar("Value")
Asked = TypeVar("Asked", bound=Transition | Mark)
#: One for each transition: the task after it, None if its guard refused, or what kept it from being written.
Replies = Sequence[Task | Exception | None]
#: Of a collection: the document after an update of one.
Update = Callable[[Document, Sequence[Any], Points], Awaitable[Document | None]]

#: What ends an attempt in a way that the rule alone knows, if the task before it is known.
_KNOWN_ENDS: tuple[type[Transition], ...] = (Complete, Fail)
_MARKS_IN_A_GROUP = 500
_RESERVATIONS_IN_A_GROUP = 500


class TaskWriter:
    """Transitions and marks on the collection of tasks."""

    def __init__(self, tasks: Collection, patience: timedelta, **limits: Any) -> None:
        """Prepare without writing.

        Args:
            tasks: the collection.
            patience: how long a group is tried again while MongoDB is away.
            limits: time limits of `Grouping`, for each caller.
        """
        self._tasks = tasks
        self._patience = patience
        self._held = HeldTasks()
        self._claims = Grouping(self._move_group, key=_task_id, **limits)
        self._settlements = Grouping(self._move_group, key=_task_id, **limits)
        self._reservations = Grouping(self._reserve_group, key=_task_id, limit=_RESERVATIONS_IN_A_GROUP, **limits)

    async def drain(self) -> None:
        """Wait until everything asked for is written."""
        for grouping in (self._claims, self._settlements, self._reservations):
            await grouping.drain()

    async def apply(self, transition: Transition) -> Task | None:
        _check_id(transition)
        if transition.group == "claim":
            return await self._claims(transition)
        if transition.group == "settle":
            return await self._settlements(transition)
        if transition.group == "reserve":
            return await self._reservations(transition)
        return await self._alone(transition, self._tasks.update_one)

    async def mark(self, marks: Sequence[Mark]) -> None:
        for mark in marks:
            _check_id(mark)
        # Two marks on a task are two writes, in their order: of one write the document would take the first alone.
        for group in _each_task_once(marks):
            await self._mark_group(group)
            self._held.marked(group)

    async def _alone(self, transition: Transition, update: Update) -> Task | None:
        write = _encoded(transition)
        document = await update(write.guard, write.stages, (reply_point(transition),))
        return None if document is None else task_of(document)

    async def _reserve_group(self, reservations: Sequence[Transition]) -> Replies:
        """A few round trips for all of a kind: a repair that reserves hundreds of tasks waits for these alone."""
        if len(reservations) == 1:
            return [await self._alone(reservations[0], self._tasks.update_one)]
        with time_limit(self._patience):
            tasks = {task.task_id: task for kind in _by_kind(reservations) for task in await self._reserve_kind(kind)}
        return [_won(reservation, tasks) for reservation in reservations]

    async def _reserve_kind(self, reservations: Sequence[Transition]) -> Sequence[Task]:
        """The totals of a write do not say which guards held, so a read says first which will.

        Another process that comes between the two may have some of the tasks as well: that costs a second message.
        """
        found = await self._tasks.find(write_of(reservations).guard, fields=("_id",), index=BY_ID)
        free = {document["_id"] for document in found}
        reservations = [reservation for reservation in reservations if reservation.task_id in free]
        if not reservations:
            return []
        write = write_of(reservations)
        if not await self._tasks.update_these(write.guard, write.stages, map(reply_point, reservations)):
            return []  # another process was faster
        return readable(await self._tasks.find({"_id": {"$in": _ids(reservations)}}), task_of)

    async def _move_group(self, transitions: Sequence[Transition]) -> Replies:
        before = self._held.take(transitions)
        replies = await self._moved(transitions, before)
        self._held.hold(replies)
        return replies

    async def _moved(self, transitions: Sequence[Transition], before: dict[str, Task]) -> Replies:
        asked_before = self._held.asked_before(transitions)
        over = set[str]()
        with time_limit(self._patience):
            if len(transitions) == 1:
                # Made or not when there is no reply: what follows finds out.
                with contextlib.suppress(StoreUnavailableError), time_limit(self._patience / 2):
                    return [await self._alone(transitions[0], self._tasks.update_once)]
            elif asked_before:
                over = await patiently(lambda: self._settled_before(transitions, asked_before), self._patience)
                before = {}
            return await patiently(lambda: self._move_together(transitions, before, over), self._patience)

    async def _settled_before(self, transitions: Sequence[Transition], claims: Sequence[str]) -> set[str]:
        """Tasks whose claim is over already: it would show as won whatever became of this second settlement."""
        settled = {"_id": {"$in": _ids(transitions)}, "last_claim_id": {"$in": claims}}
        return {document["_id"] for document in await self._tasks.find(settled, fields=("_id",))}

    async def _move_together(
        self, transitions: Sequence[Transition], before: dict[str, Task], over: set[str]
    ) -> Replies:
        """Write all, then read what is not known by then: the totals of a bulk write do not say which guards held.

        Made a second time, a move that was made finds its guard closed by itself, and the reading shows it as won.
        """
        tasks = await self._end_known(transitions, before)
        asked = [transition for transition in transitions if transition.task_id not in tasks]
        refused = await self._write(asked)
        found = readable(await self._tasks.find({"_id": {"$in": _ids(asked)}}), task_of) if asked else []
        tasks |= {task.task_id: task for task in found if task.task_id not in over}
        return [refused.get(transition.task_id) or _won(transition, tasks) for transition in transitions]

    async def _end_known(self, transitions: Sequence[Transition], before: dict[str, Task]) -> dict[str, Task]:
        """End those whose task is known; the tasks after it, of each kind all or none."""
        known = [asked for asked in transitions if isinstance(asked, _KNOWN_ENDS) and asked.task_id in before]
        kinds = [ends for ends in _by_kind(known) if len(ends) > 1]
        ended = await _all(self._end_kind(ends, before) for ends in kinds)
        return {task.task_id: task for tasks in ended for task in tasks}

    async def _end_kind(self, ends: Sequence[Transition], before: dict[str, Task]) -> Sequence[Task]:
        """Nothing is read of these but the time: reading and decoding them took a tenth of a worker's time.

        If not every one was as it is known, nobody can tell which; then it is as if this had not been tried.
        """
        as_known = Together(ends).where(
            revision=lambda end: before[end.task_id].revision,
            not_before=lambda end: before[end.task_id].not_before,
            deadline=lambda end: before[end.task_id].deadline,
            published_sequence=lambda end: before[end.task_id].published_sequence,
        )
        if await self._write_jointly(ends, as_known) != len(ends):
            return ()
        first = before[ends[0].task_id]
        written = await self._tasks.find({"_id": first.task_id, "revision": first.revision + 1}, fields=("updated_at",))
        if not written:  # it has moved on
            return ()
        now = moment(written[0]["updated_at"])  # the server's clock stands still within one command
        return [after for end in ends if (after := end.apply(before[end.task_id], now)) is not None]

    async def _mark_group(self, marks: Sequence[Mark]) -> None:
        with time_limit(self._patience):
            refused = await self._write(marks)
        for error in refused.values():
            raise error

    async def _write(self, group: Sequence[Transition | Mark]) -> dict[str, TaskframeworkError]:
        """Make the writes of a group, a kind in one command where that is possible; what was refused, by task."""
        # A kind whose reply is lost does not keep the others from being written.
        refused = await _all(map(self._write_kind, _by_kind(group)))
        return {task_id: error for errors in refused for task_id, error in errors.items()}

    async def _write_kind(self, group: Sequence[Transition | Mark]) -> dict[str, TaskframeworkError]:
        if len(group) > 1 and await self._write_jointly(group) is not None:
            return {}
        return await self._write_each(group)

    async def _write_jointly(self, asked: Sequence[Transition | Mark], and_if: Document | None = None) -> int | None:
        """Make all of them in one command, if `and_if` holds as well.

        One value that cannot be stored, or one document that the server refuses, ends it half-way. Alone, the others
        are made, and one that was made already finds its guard closed.

        Returns:
            How many guards held; None if it cannot be done, or was not done whole.
        """
        if type(asked[0]) not in JOINT:
            return None
        try:
            write = write_of(asked)
            guard = both(write.guard, and_if or {})
            return await self._tasks.update_these(guard, write.stages, map(reply_point, asked))
        except StoreUnavailableError:
            raise
        except (StoreError, ValueNotStorableError):
            return None

    async def _write_each(self, group: Sequence[Transition | Mark]) -> dict[str, TaskframeworkError]:
        refused: dict[str, TaskframeworkError] = {}
        writes: dict[str, Write] = {}
        for asked in group:
            try:
                writes[asked.task_id] = _encoded(asked)
            except ValueNotStorableError as refusal:
                refused[asked.task_id] = refusal
        if not writes:
            return refused
        updates = [(write.guard, write.stages) for write in writes.values()]
        points = [reply_point(asked) for asked in group if asked.task_id in writes]
        places = list(writes)
        found = await self._tasks.update_each(updates, points)
        return refused | {places[at]: error for at, error in found.items()}


async def _all(writes: Iterable[Awaitable[Value]]) -> list[Value]:
    """Wait for all of them, also when one fails; then raise its error."""
    replies = await asyncio.gather(*writes, return_exceptions=True)
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    return [reply for reply in replies if not isinstance(reply, BaseException)]


def _by_kind(group: Sequence[Asked]) -> list[list[Asked]]:
    kinds: dict[type[Any], list[Asked]] = defaultdict(list)
    for asked in group:
        kinds[type(asked)].append(asked)
    return list(kinds.values())


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
