"""Inserts of tasks that belong to ordered streams: a position first, then the task, then a look whose turn it is.

The tasks of one call that belong to one stream take their positions by one write, in the order of the call, and are
stored in that order. If a process dies after it took a position, it leaves a gap: a serial stream skips the gap, and
readers of results give it up after a while. If it dies after the insert, the task's driver makes another process look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

from taskframework import failpoint
from taskframework.errors import StoreError
from taskframework.grouping import BULK_LIMIT, Grouping, together_or_alone
from taskframework.model.idempotency import has_id_from_key
from taskframework.model.options import StreamMode
from taskframework.model.records import Record
from taskframework.model.scope import EVERYONE
from taskframework.model.streams import (
    STREAMS,
    Gap,
    Stream,
    StreamKey,
    TakePositions,
    is_serial,
    position_of,
    stream_of,
)
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.stores.replies import Inserted
from taskframework.streams.gaps import StreamGaps
from taskframework.streams.looks import StreamLooks
from taskframework.submission.refusals import StreamModeError, was_refused

logger = logging.getLogger(__name__)

#: In how many streams tasks are stored at once: enough for the store to group calls while it writes others.
_MAX_CONCURRENT_STREAMS = 2 * BULK_LIMIT


class StreamInserts:
    """Stores tasks, and gives tasks of streams the next positions."""

    def __init__(self, store: TaskStore, looks: StreamLooks, gaps: StreamGaps, kept: timedelta) -> None:
        """Prepare to store; the record of a stream is kept for at least `kept`."""
        self._store = store
        self._looks = looks
        self._gaps = gaps
        self._kept = kept
        self._places = asyncio.Semaphore(_MAX_CONCURRENT_STREAMS)
        #: Submissions to many streams at once share the calls to the store.
        self._takes: Grouping[TakePositions, Record] = Grouping(
            partial(together_or_alone, store.take_positions), key=lambda take: take.stream, limit=BULK_LIMIT
        )

    async def insert(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        """Give each task of a stream its position, then store the tasks with `TaskStore.insert`.

        A task that is stored already takes no position.

        Returns:
            The same as `TaskStore.insert`; `StreamModeError` for a task of a stream with another mode.
        """
        if all(task.stream is None for task in tasks):
            return await self._store.insert(tasks)
        replies: dict[int, Inserted | Exception] = dict(await self._find_stored(tasks))
        # Group by mode too: tasks with a mode that a stream does not have are refused without the others.
        by_stream: dict[tuple[StreamKey, StreamMode], list[int]] = {}
        for index, task in enumerate(tasks):
            if index not in replies and task.stream is not None and (stream := stream_of(task)) is not None:
                by_stream.setdefault((stream, task.stream.mode), []).append(index)
        others = [index for index, task in enumerate(tasks) if task.stream is None]
        replies |= zip(others, await self._store.insert([tasks[index] for index in others]), strict=True)
        streams = [
            self._insert_or_errors(stream, mode, [tasks[index] for index in indexes])
            for (stream, mode), indexes in by_stream.items()
        ]
        for indexes, stored in zip(by_stream.values(), await asyncio.gather(*streams), strict=True):
            replies |= zip(indexes, stored, strict=True)
        return [replies[index] for index in range(len(tasks))]

    async def _insert_or_errors(
        self, stream: StreamKey, mode: StreamMode, tasks: Sequence[Task]
    ) -> Sequence[Inserted | Exception]:
        try:
            async with self._places:
                return await self._insert(stream, mode, tasks)
        except (StoreError, StreamModeError) as error:
            return [error] * len(tasks)

    async def _find_stored(self, tasks: Sequence[Task]) -> Mapping[int, Inserted]:
        """Return the tasks of streams that are stored already, because a submission with a key may be repeated."""
        task_ids = {
            index: task.task_id
            for index, task in enumerate(tasks)
            if task.stream and (task.idempotency_key or has_id_from_key(task))
        }
        stored = await self._store.get_many(set(task_ids.values()), EVERYONE) if task_ids else {}
        return {
            index: Inserted(stored[task_id], is_new=False) for index, task_id in task_ids.items() if task_id in stored
        }

    async def _insert(
        self, stream: StreamKey, mode: StreamMode, tasks: Sequence[Task]
    ) -> Sequence[Inserted | Exception]:
        take = TakePositions(stream, self._kept, mode, len(tasks))
        state = STREAMS.content(await self._takes(take))
        first = take.first_in(state)
        if first is None:
            raise StreamModeError(stream.key, state.mode)
        await failpoint.reached("stream.after_position")
        positioned = [_with_position(task, position) for position, task in enumerate(tasks, first)]
        stored = await self._store.insert(positioned)
        await failpoint.reached("stream.after_insert")
        return await self._finish_inserts(stream, state, positioned, stored)

    async def _finish_inserts(
        self, stream: StreamKey, state: Stream, positioned: Sequence[Task], stored: Sequence[Inserted | Exception]
    ) -> Sequence[Inserted | Exception]:
        """Give unused positions up and look whose turn it is. If this fails now, a repair does it later."""
        pairs = zip(map(position_of, positioned), stored, strict=True)
        unused = [Gap(at, at) for at, reply in pairs if _is_unused(at, reply)]
        try:
            if unused:
                await self._gaps.give_up(stream, unused)
            if is_serial(positioned[0]):
                await self._looks.look_now(
                    stream, state, [reply.task for reply in stored if isinstance(reply, Inserted)]
                )
                return stored
            return await self._gaps.move_late_tasks(stream, stored)
        except StoreError as error:
            logger.info("stream %r is left to the repair: %s", stream.key, error.message)
            return stored


def _is_unused(position: int, reply: Inserted | Exception) -> bool:
    """Return whether it is certain that the position stays without a task."""
    if isinstance(reply, Inserted):
        return position_of(reply.task) != position
    return was_refused(reply)


def _with_position(task: Task, position: int) -> Task:
    assert task.stream is not None, "only tasks of streams come here"
    return task.evolve(stream=replace(task.stream, position=position))
