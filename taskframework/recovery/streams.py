"""The repair of streams: tasks that wait for their turn, of which somebody may have died before it let them go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

from taskframework.model.drivers import UNBLOCK
from taskframework.model.marks import MoveDriver
from taskframework.model.task import Task
from taskframework.recovery.loop import reserved
from taskframework.stores.base import DueTask, TaskStore

#: How long a task that waits for its turn is left alone: as long as it has waited, within these bounds. So very many
#: that wait for long cost little; the end of the one before them is seen to by the relay in any case.
_SHORTEST, _LONGEST = timedelta(seconds=5), timedelta(minutes=10)


class Turns(Protocol):
    """What the repair needs of whoever passes the turns on."""

    def take(self, task: Task) -> None: ...


class StreamRepair:
    """Has somebody look at the streams of tasks that wait for long."""

    def __init__(self, store: TaskStore, turns: Turns, limit: int) -> None:
        self._store = store
        self._turns = turns
        self._limit = limit

    async def look(self) -> bool:
        """Take up some of them.

        Returns:
            Whether there may be more.
        """
        due = await self._store.due(UNBLOCK, self._limit)
        for task in await self._reserved(due):
            self._turns.take(task)
        return len(due) == self._limit

    async def _reserved(self, due: Sequence[DueTask]) -> list[Task]:
        now = self._store.now()
        moves = [MoveDriver(found.task_id, UNBLOCK, found.due, _pause(found, now)) for found in due]
        return await reserved(self._store, moves)


def _pause(found: DueTask, now: datetime) -> timedelta:
    return min(max(abs(now - found.not_before), _SHORTEST), _LONGEST)
