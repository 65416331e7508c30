"""The repairs of parents: continues the spawning, waking and cancelling that a process did not finish."""

from __future__ import annotations

from taskframework.aggregation.parent_work import RESERVATION_TIME, ParentWork
from taskframework.aggregation.reporter import SubtaskReporter
from taskframework.model.drivers import CASCADE, CHECK, SPAWN, Driver
from taskframework.model.marks import MoveDriver
from taskframework.model.signals import Wake
from taskframework.moves import TaskMoves
from taskframework.recovery.loop import choose_due, make_reservations
from taskframework.stores.base import TaskStore


async def start_due(store: TaskStore, driver: Driver, work: ParentWork, limit: int) -> bool:
    """Reserve the parents that are due, at most this many, and start the work on them.

    Returns:
        Whether there may be more.
    """
    due = await store.due(driver, limit)
    reservations = [MoveDriver(found.task_id, driver, found.due, RESERVATION_TIME) for found in due]
    for parent in await make_reservations(store, reservations):
        work.start(parent)
    return len(due) == limit


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
        has_more = [
            await start_due(self._store, SPAWN, self._spawner, self._limit),
            await start_due(self._store, CASCADE, self._cascade, self._limit),
            await self._wake(),
        ]
        return any(has_more)

    async def _wake(self) -> bool:
        due, has_more = await choose_due(self._store, CHECK, self._limit)
        for task in await self._moves.repair_all(Wake(found.task_id) for found in due):
            if task is not None and task.check_at is not None and task.subtasks is not None:
                self._reporter.request_count(task.task_id)
        return has_more
