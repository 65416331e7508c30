"""The results of a stream in order. A reader waits for a gap until a deadline; then all readers skip the gap.

How long a reader waits:

- for a live task: until its deadline; without a deadline, for the time in the settings after a higher position ended,
  or after it was replayed or reopened if that was later;
- for a position without a task: for `GIVEN_UP_AFTER` after a higher position was stored. If the process that took the
  position stores its task later, `StreamGaps` moves this task to a later position.

A reader records that a gap is skipped before it continues, so that all readers see the same results.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from taskframework.errors import TaskNotFoundError
from taskframework.model.stream_moves import Skip
from taskframework.model.stream_results import StreamResult
from taskframework.model.streams import GIVEN_UP_AFTER, STREAMS, Gap, Stream, StreamKey, is_serial, position_of
from taskframework.model.task import Task
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_record
from taskframework.streams.gaps import StreamGaps

#: How many tasks after a gap are read to find the first task that ended, or was stored.
_READ_AFTER_GAP = 1_000


@dataclass(frozen=True, slots=True)
class Ready:
    """The known results from a position on, up to the first gap."""

    results: tuple[StreamResult, ...]
    #: The latest time at which that gap is skipped; None if this is not known yet, or there is no gap.
    due: datetime | None = None


class StreamResults:
    """Reads the results of streams."""

    def __init__(self, store: TaskStore, moves: TaskMoves, gaps: StreamGaps, gap: timedelta) -> None:
        """Prepare.

        Args:
            store: where the streams are.
            moves: skips tasks.
            gaps: gives positions up.
            gap: how long readers wait for a task without a deadline, after a higher position ended.
        """
        self._store = store
        self._moves = moves
        self._gaps = gaps
        self._gap = gap

    async def read_state(self, stream: StreamKey) -> Stream:
        """Read the record of a stream.

        Raises:
            TaskNotFoundError: if there is no such record.
        """
        record = await read_record(self._store, stream.record_id)
        if record is None:
            raise TaskNotFoundError(stream.key, what="stream")
        return STREAMS.content(record)

    async def adopt_late(self, stream: StreamKey) -> None:
        """Move tasks that came too late to positions that count; call this before results are read."""
        state = await self.read_state(stream)
        if state.skipped:
            await self._gaps.adopt_late(stream, state)

    async def read_ready(self, stream: StreamKey, first: int, limit: int) -> Ready:
        """Return the results from a position on, up to the first gap for which readers still wait.

        Raises:
            TaskNotFoundError: if there is no such stream.
        """
        state = await self.read_state(stream)
        found = await self._store.list_stream(stream, limit=limit, after_position=first - 1)
        tasks = {position_of(task): task for task in found}
        results: list[StreamResult] = []
        for position in range(first, min(first + limit, state.next_position)):
            task = tasks.get(position)
            is_skipped = state.has_skipped(position)
            if task is None and not is_skipped:
                state, due = await self._give_up(stream, state, position)
                is_skipped = state.has_skipped(position)
                if due is not None or not is_skipped:
                    return Ready(tuple(results), due)
            result, due = await self._result_at(stream, position, None if is_skipped else task)
            if result is None:
                return Ready(tuple(results), due)
            results.append(result)
        return Ready(tuple(results))

    async def _result_at(
        self, stream: StreamKey, position: int, task: Task | None
    ) -> tuple[StreamResult | None, datetime | None]:
        """Return the result of a position, or the time at which the position is skipped if it has no result yet."""
        if task is None:
            return StreamResult(position), None
        if task.status.is_final or (task.stream is not None and task.stream.is_skipped):
            return StreamResult.of(task), None
        due = await self._deadline_of(stream, task)
        if due is None or due > self._store.now():
            return None, due
        skipped = await self._moves.make(Skip(task.task_id, due))
        return (None, due) if skipped is None else (StreamResult.of(skipped), None)

    async def _deadline_of(self, stream: StreamKey, task: Task) -> datetime | None:
        """Return until when readers wait for a live task; None if this is not known yet."""
        if is_serial(task):
            return None  # no task after it has begun
        if task.deadline is not None:
            return task.deadline
        later = await self._store.stream_times(stream, limit=_READ_AFTER_GAP, after_position=position_of(task))
        if (ended := _earliest(times.finished_at for times in later)) is None:
            return None
        begun_again = [entry.at for entry in task.history if entry.type in ("replayed", "reopened")]
        return max([ended, *begun_again]) + self._gap

    async def _give_up(self, stream: StreamKey, state: Stream, position: int) -> tuple[Stream, datetime | None]:
        """Give up a position without a task, and the empty positions after it, if their time has come; otherwise return
        that time.
        """
        later = await self._store.stream_times(stream, limit=_READ_AFTER_GAP, after_position=position - 1)
        stored = _earliest(times.created_at for times in later)
        if stored is None or later[0].position == position:
            return state, None
        due = stored + GIVEN_UP_AFTER
        if due > self._store.now():
            return state, due
        state = await self._gaps.give_up(stream, [Gap(position, later[0].position - 1)])
        await self._gaps.adopt_late(stream, state)
        return state, None


def _earliest(times: Iterable[datetime | None]) -> datetime | None:
    return min((time for time in times if time is not None), default=None)
