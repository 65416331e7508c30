"""Stream positions that were taken but have no task: they are given up. A task that comes too late is moved."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from taskframework import failpoint
from taskframework.errors import StoreUnavailableError
from taskframework.model.stream_moves import MovePosition
from taskframework.model.streams import STREAMS, Gap, Stream, StreamKey, TakePositions, position_of
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_record
from taskframework.stores.replies import Inserted

#: The most rounds of reading and writing the record. In each lost round another process wrote it.
_MAX_ROUNDS = 50
#: How many of the last gaps of a stream are searched for tasks that came late, and how many tasks of each gap.
_SEARCHED_GAPS, _TASKS_PER_GAP = 10, 100


class StreamGaps:
    """Gives positions up, and moves tasks that come late to positions that no reader has passed."""

    def __init__(self, store: TaskStore, moves: TaskMoves, kept: timedelta) -> None:
        """Prepare; the record of a stream is kept for at least `kept`."""
        self._store = store
        self._moves = moves
        self._kept = kept

    async def give_up(self, stream: StreamKey, gaps: Sequence[Gap]) -> Stream:
        """Record that the positions of these gaps are given up, before any reader continues without them.

        Returns:
            The stream after this write.

        Raises:
            StoreUnavailableError: if the record could not be written.
        """
        for _ in range(_MAX_ROUNDS):
            record = await read_record(self._store, stream.record_id)
            if record is None:
                return Stream()
            state = STREAMS.content(record)
            for gap in gaps:
                state = state.skip(gap.first, gap.last)
            changed = STREAMS.changed(record, state, expires_at=record.expires_at)
            [written] = await self._store.write_records([changed])
            if written is not None:
                await failpoint.reached("stream.after_gap")
                return state
        raise StoreUnavailableError(f"The stream {stream.key!r} is being changed by too many processes at once.")

    async def move_late_tasks(
        self, stream: StreamKey, stored: Sequence[Inserted | Exception]
    ) -> Sequence[Inserted | Exception]:
        """Return the tasks that were just stored; move those that came too late for their positions to later ones."""
        record = await read_record(self._store, stream.record_id)
        if record is None:
            return stored
        state = STREAMS.content(record)
        return [
            await self._move_if_late(stream, state, reply) if isinstance(reply, Inserted) and reply.is_new else reply
            for reply in stored
        ]

    async def adopt_late(self, stream: StreamKey, state: Stream) -> None:
        """Move tasks at given-up positions. The process that stored them died before it noticed that it was late."""
        for gap in state.skipped[-_SEARCHED_GAPS:]:
            limit = min(_TASKS_PER_GAP, gap.last - gap.first + 1)
            for task in await self._store.list_stream(stream, limit=limit, after_position=gap.first - 1):
                await self._move_if_late(stream, state, Inserted(task, is_new=False))

    async def _move_if_late(self, stream: StreamKey, state: Stream, inserted: Inserted) -> Inserted:
        """Move a task to a position that is not given up, if needed; return the task."""
        task = inserted.task
        while state.has_skipped(position_of(task)):
            taken = await self._store.change_record(TakePositions(stream, self._kept, state.mode, 1))
            position = STREAMS.content(taken).next_position - 1
            moved = await self._moves.make(MovePosition(task.task_id, position_of(task), position))
            if moved is None:  # another process has moved it, so the new position stays empty
                await self.give_up(stream, [Gap(position, position)])
                break
            task = moved
            record = await read_record(self._store, stream.record_id)
            state = state if record is None else STREAMS.content(record)
        return Inserted(task, inserted.is_new)
