"""Whether another worker could begin a task at once: it has a free slot for its type, and no message is before it."""

from __future__ import annotations

import asyncio
import math

from taskframework.brokers.base import Broker
from taskframework.clock import Clock
from taskframework.errors import BrokerError, StoreError
from taskframework.model.status import Priority
from taskframework.model.workers import PRESENCE, REPORT_INTERVAL, Presence
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_all_contents


class IdleWorkers:
    """Reads the reports of the other workers, no more often than they report."""

    def __init__(self, store: TaskStore, broker: Broker, worker_id: str, clock: Clock) -> None:
        """Prepare without reading.

        Args:
            store: has the reports.
            broker: has the queues.
            worker_id: of this worker, whose own report does not count.
            clock: of this process.
        """
        self._store = store
        self._broker = broker
        self._worker_id = worker_id
        self._clock = clock
        self._reading = asyncio.Lock()
        self._read_at = -math.inf
        self._task_types: frozenset[str] = frozenset()

    async def can_begin(self, task_type: str, lane: Priority) -> bool:
        """Return whether a message that is sent to this queue now would begin soon; False if that is not known."""
        try:
            if task_type not in await self._idle_types():
                return False
            # A worker with a free slot empties the queue. If messages are in the queue, the report of the free slot is
            # out of date, and a new message would have to wait behind them.
            return await self._broker.queue_depth(task_type, lane) == 0
        except (StoreError, BrokerError):
            return False

    async def _idle_types(self) -> frozenset[str]:
        async with self._reading:  # several calls may come at once
            now = self._clock.monotonic()
            if now - self._read_at >= REPORT_INTERVAL.total_seconds():
                self._read_at, self._task_types = now, frozenset()
                workers = await read_all_contents(self._store, PRESENCE)
                self._task_types = frozenset(name for it in workers if self._is_idle(it) for name in it.task_types)
            return self._task_types

    def _is_idle(self, worker: Presence) -> bool:
        is_other = worker.worker_id != self._worker_id
        return is_other and worker.has_free_slot and not worker.is_silent(self._store.now())
