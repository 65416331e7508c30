"""The repair of streams: finds BLOCKED tasks that a process may have failed to unblock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from taskframework.model.drivers import UNBLOCK
from taskframework.model.marks import MoveDriver
from taskframework.model.stream_moves import UNBLOCK_CHECK_INTERVAL
from taskframework.model.streams import stream_of
from taskframework.model.task import Task
from taskframework.recovery.loop import make_reservations
from taskframework.stores.base import TaskStore
from taskframework.stores.replies import DueTask
from taskframework.streams.looks import StreamLooks


class StreamRepair:
    """Looks whose turn it is in streams with tasks that have waited for long."""

    def __init__(self, store: TaskStore, looks: StreamLooks, limit: int) -> None:
        self._store = store
        self._looks = looks
        self._limit = limit

    async def run_once(self) -> bool:
        """Look at the streams of some tasks.

        Returns:
            Whether there may be more.
        """
        due = await self._store.due(UNBLOCK, self._limit)
        streams = {stream for task in await self._reserve(due) if (stream := stream_of(task)) is not None}
        for stream in streams:
            self._looks.look(stream)
        return len(due) == self._limit

    async def _reserve(self, due: Sequence[DueTask]) -> list[Task]:
        now = self._store.now()
        moves = [MoveDriver(found.task_id, UNBLOCK, found.due, _pause(found, now)) for found in due]
        return await make_reservations(self._store, moves)


def _pause(found: DueTask, now: datetime) -> timedelta:
    """Return as much time as the task has waited until now, so that tasks that wait for days are looked at seldom."""
    return max(abs(now - found.not_before), UNBLOCK_CHECK_INTERVAL)
