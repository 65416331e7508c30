"""The repairs of parents: continues the spawning, waking and cancelling that a process did not finish."""

from __future__ import annotations

from collections.abc import Sequence

from taskframework.aggregation.parent_work import RESERVATION_TIME, ParentWork
from taskframework.aggregation.parents import SubtaskReporter
from taskframework.model.drivers import CASCADE, CHECK, SPAWN, Driver
from taskframework.model.marks import MoveDriver
from taskframework.model.task import Task
from taskframework.model.waiting import Wake
from taskframework.moves import TaskMoves
from taskframework.recovery.loop import choose_due, make_reservations
from taskframework.stores.base import DueTask, TaskStore


class ParentRepair:
    """Looks for parents with interrupted work."""

    def __init__(
        self,
        store: TaskStore,
        moves: TaskMoves,
        spawner: ParentWork,
        reporter: SubtaskReporter,
        cascade: ParentWork,
        limit: int,
    ) -> None:
        self._store = store
        self._moves = moves
        self._spawner = spawner
        self._reporter = reporter
        self._cascade = cascade
        self._limit = limit

    async def run_once(self) -> bool:
        """Continue one group of parents of each sort.

        Returns:
            Whether there may be more.
        """
        found = [await self._spawn(), await self._cancel()]
        return await self._wake() or self._limit in found

    async def _spawn(self) -> int:
        due = await self._store.due(SPAWN, self._limit)
        for parent in await self._reserve(SPAWN, due):
            self._spawner.start(parent)
        return len(due)

    async def _wake(self) -> bool:
        due, has_more = await choose_due(self._store, CHECK, self._limit)
        for task in await self._moves.repair_all(Wake(found.task_id) for found in due):
            if task is not None and task.check_at is not None and task.subtasks is not None:
                self._reporter.request_count(task.task_id)
        return has_more

    async def _cancel(self) -> int:
        due = await self._store.due(CASCADE, self._limit)
        for parent in await self._reserve(CASCADE, due):
            self._cascade.start(parent)
        return len(due)

    async def _reserve(self, driver: Driver, due: Sequence[DueTask]) -> list[Task]:
        return await make_reservations(
            self._store, [MoveDriver(found.task_id, driver, found.due, RESERVATION_TIME) for found in due]
        )
