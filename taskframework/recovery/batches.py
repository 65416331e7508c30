"""The repairs of batches: uploads that were not finished, and retries that a process did not finish."""

from __future__ import annotations

from taskframework.aggregation.parent_work import RESERVATION_TIME, ParentWork
from taskframework.model.batches import AbandonUpload
from taskframework.model.drivers import RETRY, SEAL
from taskframework.model.marks import MoveDriver
from taskframework.moves import TaskMoves
from taskframework.recovery.loop import make_reservations
from taskframework.stores.base import TaskStore


class BatchRepair:
    """Looks for batches with an interrupted upload or retry."""

    def __init__(self, store: TaskStore, moves: TaskMoves, retrier: ParentWork, limit: int) -> None:
        self._store = store
        self._moves = moves
        self._retrier = retrier
        self._limit = limit

    async def run_once(self) -> bool:
        """Continue some batches of each sort.

        Returns:
            Whether there may be more.
        """
        return self._limit in (await self._abandon(), await self._retry())

    async def _abandon(self) -> int:
        due = await self._store.due(SEAL, self._limit)
        await self._moves.repair_all(AbandonUpload(found.task_id) for found in due)
        return len(due)

    async def _retry(self) -> int:
        due = await self._store.due(RETRY, self._limit)
        moves = [MoveDriver(found.task_id, RETRY, found.due, RESERVATION_TIME) for found in due]
        for batch in await make_reservations(self._store, moves):
            self._retrier.start(batch)
        return len(due)
