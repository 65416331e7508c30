"""The repairs of batches: uploads that were not finished, and retries that a process did not finish."""

from __future__ import annotations

from taskframework.aggregation.parent_work import ParentWork
from taskframework.model.batches import AbandonUpload
from taskframework.model.drivers import RETRY, SEAL
from taskframework.moves import TaskMoves
from taskframework.recovery.parents import start_due
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
        has_more = [await self._abandon(), await start_due(self._store, RETRY, self._retrier, self._limit)]
        return any(has_more)

    async def _abandon(self) -> bool:
        due = await self._store.due(SEAL, self._limit)
        await self._moves.repair_all(AbandonUpload(found.task_id) for found in due)
        return len(due) == self._limit
