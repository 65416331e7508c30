"""Which task types another worker could begin at once: it runs them and has a free slot."""

from __future__ import annotations

import math

from taskframework.clock import Clock
from taskframework.errors import StoreError
from taskframework.model.workers import PRESENCE, REPORT_INTERVAL, Presence
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_all_contents


class IdleWorkers:
    """Reads the reports of the other workers, no more often than they report."""

    def __init__(self, store: TaskStore, worker_id: str, clock: Clock) -> None:
        """Prepare without reading.

        Args:
            store: has the reports.
            worker_id: of this worker, whose own report does not count.
            clock: of this process.
        """
        self._store = store
        self._worker_id = worker_id
        self._clock = clock
        self._read_at = -math.inf
        self._task_types: frozenset[str] = frozenset()

    async def task_types(self) -> frozenset[str]:
        """Return these types; none if the store is away."""
        now = self._clock.monotonic()
        if now - self._read_at >= REPORT_INTERVAL.total_seconds():
            self._read_at = now
            try:
                workers = await read_all_contents(self._store, PRESENCE)
            except StoreError:
                workers = []
            self._task_types = frozenset(name for it in workers if self._is_idle(it) for name in it.task_types)
        return self._task_types

    def _is_idle(self, worker: Presence) -> bool:
        is_other = worker.worker_id != self._worker_id
        return is_other and worker.in_flight < worker.concurrency and not worker.is_silent(self._store.now())
