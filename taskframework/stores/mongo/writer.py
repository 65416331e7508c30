"""Transitions and marks in MongoDB: one by one when idle, in groups under load, and safe even if a reply is lost."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from taskframework.errors import StoreError, StoreUnavailableError, TaskframeworkError, ValueNotStorableError
from taskframework.grouping import BULK_LIMIT, Grouping
from taskframework.model.marks import Mark
from taskframework.model.task import Task
from taskframework.model.transitions import Transition
from taskframework.stores.mongo.client import time_limit
from taskframework.stores.mongo.codec import encode_document
from taskframework.stores.mongo.collection import BY_ID, Collection, Points
from taskframework.stores.mongo.documents import Document, read_documents, task_of, with_utc
from taskframework.stores.mongo.joint import combine_filters
from taskframework.stores.mongo.remembered import RememberedAttempts
from taskframework.stores.mongo.retrying import retry_within
from taskframework.stores.mongo.transitions import JOINT, build_write
from taskframework.stores.mongo.writes import Write

Request = TypeVar("Request", bound=Transition | Mark)
#: For each transition the task after it, None if its guard refused, or the error why it could not be written.
Replies = Sequence[Task | Exception | None]
#: The replies that are known so far, by task id.
KnownReplies = dict[str, Task | TaskframeworkError]
#: `Collection.update_one` or `update_once`.
Update = Callable[[Document, Sequence[Any], Points], Awaitable[Document | None]]


class TaskWriter:
    """Transitions and marks on the collection of tasks."""

    def __init__(self, tasks: Collection, retry_time: timedelta, remembered: int, **limits: Any) -> None:
        """Prepare without writing.

        Args:
            tasks: the collection.
            retry_time: how long a group is tried again while MongoDB is away.
            remembered: how many running attempts are remembered, so that their ends are not read back.
            limits: the time limits of `Grouping`.
        """
        self._tasks = tasks
        self._retry_time = retry_time
        self._attempts = RememberedAttempts(remembered)
        #: By the `group` of a transition. Transitions of the group "single" are written one by one.
        self._groupings: dict[str, Grouping[Transition, Task | None]] = {
            "claim": Grouping(self._move, key=_task_id, **limits),
            "unblock": Grouping(self._move, key=_task_id, limit=BULK_LIMIT, **limits),
            "settle": Grouping(self._move, key=_task_id, **limits),
            "reserve": Grouping(self._reserve, key=_task_id, limit=BULK_LIMIT, **limits),
        }
        #: For marks that come alone; those that come together are written together anyway.
        self._marking: Grouping[Mark, None] = Grouping(self._mark_group, key=_task_id, **limits)

    async def drain(self) -> None:
        """Wait until all requested writes are made."""
        for grouping in self._groupings.values():
            await grouping.drain()
        await self._marking.drain()

    async def apply(self, transition: Transition) -> Task | None:
        _check_id(transition)
        grouping = self._groupings.get(transition.group)
        if grouping is None:
            return await self._move_alone(transition, self._tasks.update_one)
        return await grouping(transition)

    async def mark(self, marks: Sequence[Mark]) -> None:
        for mark in marks:
            _check_id(mark)
        if len(marks) == 1:
            await self._marking(marks[0])
            return
        # Two marks on one task go into two writes, in their order: one write would make only the first of them.
        for group in _split_by_task(marks):
            for refusal in await self._mark_group(group):
                if refusal is not None:
                    raise refusal

    async def _mark_group(self, marks: Sequence[Mark]) -> Sequence[Exception | None]:
        with time_limit(self._retry_time):
            replies = await self._write(marks)
        self._attempts.see_marks(marks)
        refusals = [replies.get(mark.task_id) for mark in marks]
        return [refusal if isinstance(refusal, Exception) else None for refusal in refusals]

    async def _move(self, transitions: Sequence[Transition]) -> Replies:
        """Make the transitions of a group; repeat the write within the retry time while MongoDB is away."""

        async def alone() -> Replies:
            return [await self._move_alone(transitions[0], self._tasks.update_once)]

        async def together() -> Replies:
            return await self._move_together(transitions)

        replies = await retry_within(together, self._retry_time, first=alone if len(transitions) == 1 else None)
        self._attempts.see_replies(transitions, replies)
        return replies

    async def _move_alone(self, transition: Transition, update: Update) -> Task | None:
        write = _encoded_write(transition)
        document = await update(write.guard, write.stages, (transition.reply_failpoint,))
        return None if document is None else task_of(document)

    async def _move_together(self, transitions: Sequence[Transition]) -> Replies:
        """Write, read, answer.

        The reply to a write for many tasks does not say which guards held. So the tasks are read, and the claim ids in
        them show it. If a transition is repeated after it was made, its guard refuses it, and the task shows it as won.
        """
        known = await self._write(transitions)
        known |= await self._read([request for request in transitions if request.task_id not in known])
        return [known.get(request.task_id) for request in transitions]

    async def _write(self, group: Sequence[Transition | Mark]) -> KnownReplies:
        """Make the writes of a group; writes of one class in one command where possible.

        Returns:
            The replies that are known without reading: errors, and the tasks of remembered attempts that ended.
        """
        # If the reply to the writes of one class is lost, the writes of other classes are still made.
        replies = await asyncio.gather(*map(self._write_class, _group_by_class(group)), return_exceptions=True)
        known: KnownReplies = {}
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
            known |= reply
        return known

    async def _write_class(self, group: Sequence[Any]) -> KnownReplies:
        if len(group) > 1 and type(group[0]) in JOINT:
            if ended := await self._end_remembered(group):
                return ended
            if await self._write_jointly(group) is not None:
                return {}
        return await self._write_each(group)

    async def _end_remembered(self, ends: Sequence[Transition]) -> KnownReplies:
        """End attempts whose tasks are remembered; only the time of the write has to be read.

        Returns:
            The tasks after their ends. Empty if one of them differed from its memory: the reply does not say which.
        """
        expected = self._attempts.expect(ends)
        if expected is None or await self._write_jointly(ends, expected.guard()) != len(ends):
            return {}
        for written in await self._tasks.find(expected.first_one_ended(), fields=("updated_at",)):
            # One document shows the time for all, because the server's clock stands still within a command.
            return dict(expected.tasks(with_utc(written["updated_at"])))
        return {}

    async def _write_jointly(
        self, group: Sequence[Transition | Mark], extra_guard: Document | None = None
    ) -> int | None:
        """Make all requests in one command, each only if `extra_guard` matches too.

        A value that cannot be stored prevents the command, and a document that the server refuses ends it before all
        writes are made. The caller then makes each write by itself; guards refuse the writes that were made already.

        Returns:
            How many guards held; None if the command was not made, or not to its end.
        """
        try:
            write = build_write(group)
            return await self._tasks.update_by_ids(
                combine_filters(write.guard, extra_guard or {}), write.stages, [mark.reply_failpoint for mark in group]
            )
        except StoreUnavailableError:
            raise
        except (StoreError, ValueNotStorableError):
            return None

    async def _write_each(self, group: Sequence[Transition | Mark]) -> KnownReplies:
        refused: KnownReplies = {}
        writes: dict[str, Write] = {}
        for request in group:
            try:
                writes[request.task_id] = _encoded_write(request)
            except ValueNotStorableError as refusal:
                refused[request.task_id] = refusal
        if writes:
            updates = [(write.guard, write.stages) for write in writes.values()]
            points = [request.reply_failpoint for request in group if request.task_id in writes]
            errors = await self._tasks.update_each(updates, points)
            task_ids = list(writes)
            refused |= {task_ids[place]: error for place, error in errors.items()}
        return refused

    async def _read(self, transitions: Sequence[Transition]) -> KnownReplies:
        """The tasks of these transitions that show that their transition was made."""
        if not transitions:
            return {}
        found = await self._tasks.find({"_id": {"$in": [request.task_id for request in transitions]}})
        tasks = {task.task_id: task for task in read_documents(found, task_of)}
        return {
            request.task_id: task
            for request in transitions
            if (task := tasks.get(request.task_id)) is not None and request.was_applied(task)
        }

    async def _reserve(self, transitions: Sequence[Transition]) -> Replies:
        """Make any number of reservations in few round trips: a repair may reserve hundreds of tasks at once."""
        if len(transitions) == 1:
            return [await self._move_alone(transitions[0], self._tasks.update_one)]
        known: KnownReplies = {}
        with time_limit(self._retry_time):
            for kind in _group_by_class(transitions):
                known |= await self._reserve_class(kind)
        return [known.get(request.task_id) for request in transitions]

    async def _reserve_class(self, transitions: Sequence[Transition]) -> KnownReplies:
        """Read which guards hold, write these tasks, and read them.

        Neither the reply to the write nor a claim id says which guards held. If another process reserves some of the
        same tasks between the first read and the write, both send a message, and the second one is dropped.
        """
        found = await self._tasks.find(build_write(transitions).guard, fields=("_id",), index=BY_ID)
        free = {document["_id"] for document in found}
        transitions = [request for request in transitions if request.task_id in free]
        if not transitions:
            return {}
        write = build_write(transitions)
        if not await self._tasks.update_by_ids(
            write.guard, write.stages, [transition.reply_failpoint for transition in transitions]
        ):
            return {}  # another process has reserved all of them
        return await self._read(transitions)


def _group_by_class(group: Sequence[Request]) -> Iterable[list[Request]]:
    kinds = defaultdict[type[Any], list[Request]](list)
    for request in group:
        kinds[type(request)].append(request)
    return kinds.values()


def _encoded_write(request: Transition | Mark) -> Write:
    """The write for this request alone, checked to be storable."""
    write = build_write([request])
    what = f"value in {type(request).__name__} of task {request.task_id}"
    return Write(write.guard, [encode_document(stage, what) for stage in write.stages])


def _check_id(request: Transition | Mark) -> None:
    """Refuse an id that cannot be encoded: it would make the read of the whole group fail."""
    try:
        request.task_id.encode()
    except UnicodeEncodeError as error:
        raise ValueNotStorableError("task id", str(error)) from error


def _split_by_task(marks: Sequence[Mark]) -> Iterator[list[Mark]]:
    group: dict[str, Mark] = {}
    for mark in marks:
        if mark.task_id in group or len(group) == BULK_LIMIT:
            yield list(group.values())
            group = {}
        group[mark.task_id] = mark
    if group:
        yield list(group.values())


def _task_id(request: Transition | Mark) -> str:
    return request.task_id
