"""The heartbeat: one write per worker and beat keeps all its leases, and brings back who lost one or is to stop."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from taskframework.clock import Clock
from taskframework.errors import StoreError
from taskframework.model.events import TaskCancelRequestedEvent
from taskframework.stores.base import TaskStore
from taskframework.worker.attempt import RunningAttempt, StopReason

logger = logging.getLogger(__name__)

#: A worker that could not renew stops its tasks this share of the lease before the lease ends.
_MARGIN = 1 / 6


class Heartbeat:
    """Knows the attempts that run in this worker and keeps their leases."""

    def __init__(self, store: TaskStore, clock: Clock, worker_id: str, lease: timedelta) -> None:
        self._store = store
        self._clock = clock
        self._worker_id = worker_id
        self._lease = lease
        self._attempts: dict[str, RunningAttempt] = {}

    @property
    def attempts(self) -> tuple[RunningAttempt, ...]:
        return tuple(self._attempts.values())

    def add(self, attempt: RunningAttempt) -> None:
        self._attempts[attempt.fence.claim_id] = attempt

    def remove(self, attempt: RunningAttempt) -> None:
        self._attempts.pop(attempt.fence.claim_id, None)

    def hear(self, event: TaskCancelRequestedEvent) -> None:
        """Listener: a cancel asked for in this very process need not wait for the next beat."""
        lease = event.task.lease
        attempt = self._attempts.get(lease.claim_id) if lease is not None else None
        if attempt is not None:
            attempt.stop(StopReason.CANCELLED, event.task.cancel)

    async def run(self) -> None:
        """Beat until cancelled. A failed beat is repeated sooner."""
        pause = self._lease.total_seconds() / 3
        while True:
            await self._clock.sleep(pause)
            renewed = await self.beat()
            pause = self._lease.total_seconds() / (3 if renewed else 12)

    async def beat(self) -> bool:
        """Renew every lease once.

        Returns:
            Whether the store answered.
        """
        attempts = self.attempts
        if not attempts:
            return True
        asked_at = self._clock.monotonic()
        seconds = self._lease.total_seconds()
        try:
            async with asyncio.timeout(seconds / 3):
                held = await self._store.renew(self._worker_id, [attempt.fence for attempt in attempts], self._lease)
        except (StoreError, TimeoutError) as error:
            logger.warning("leases not renewed: %s", error)
            self._stop_before_the_lease_ends(seconds * _MARGIN)
            return False
        for attempt in attempts:
            renewal = held.get(attempt.task.task_id)
            if renewal is None:
                self._lose(attempt)
                continue
            attempt.lease_ends = asked_at + seconds
            if renewal.cancel is not None:
                attempt.stop(StopReason.CANCELLED, renewal.cancel)
        return True

    def _stop_before_the_lease_ends(self, margin: float) -> None:
        for attempt in self.attempts:
            if attempt.lease_ends - margin < self._clock.monotonic():
                self._lose(attempt)

    def _lose(self, attempt: RunningAttempt) -> None:
        # An attempt that settled between the read and here is no loss.
        if attempt.fence.claim_id in self._attempts and attempt.stop_reason is not StopReason.LEASE_LOST:
            logger.warning("task %s: lease lost, the attempt is stopped", attempt.task.task_id)
            attempt.stop(StopReason.LEASE_LOST)
