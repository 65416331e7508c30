"""The worker: starts consuming, keeps the heartbeat, and stops without losing or counting anything."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from datetime import timedelta

from taskframework.brokers.base import Broker, ConsumeRequest, Consumption
from taskframework.worker.attempt import StopReason
from taskframework.worker.consumer import TaskConsumer
from taskframework.worker.executor import TaskExecutorService
from taskframework.worker.heartbeat import Heartbeat

logger = logging.getLogger(__name__)

#: How long released attempts have to write that they were; the lease covers what is slower.
_RELEASE_SECONDS = 5.0


def new_worker_id() -> str:
    """A name no other process has or had: host, process and a random part, since process ids come back."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


class Worker:
    """One process's share of executing tasks."""

    def __init__(
        self,
        worker_id: str,
        broker: Broker,
        consumer: TaskConsumer,
        executor: TaskExecutorService,
        heartbeat: Heartbeat,
        *,
        grace: timedelta,
    ) -> None:
        """Put the parts together; `grace` is how long running tasks may go on after a stop was asked for."""
        self.worker_id = worker_id
        self._broker = broker
        self._consumer = consumer
        self._executor = executor
        self._heartbeat = heartbeat
        self._grace = grace
        self._consumption: Consumption | None = None
        self._beating: asyncio.Task[None] | None = None

    def start(self, task_types: Sequence[str], prefetch: int) -> None:
        """Consume the queues of these types, `prefetch` deliveries for each queue at the most."""
        self._beating = asyncio.create_task(self._heartbeat.run())
        if task_types:
            self._consumption = self._broker.consume(ConsumeRequest(task_types, prefetch), self._consumer.take)

    @property
    def is_live(self) -> bool:
        """Whether every queue is being consumed."""
        return self._consumption is None or self._consumption.is_live

    @property
    def in_flight(self) -> int:
        return self._consumer.lanes.running

    async def stop(self) -> None:
        """Stop consuming, let running tasks finish for the grace, hand back the rest uncounted."""
        if self._consumption is not None:
            await self._consumption.stop()
        # What waits for a slot stays unacknowledged: the broker gives it to somebody else when the channel closes.
        self._consumer.lanes.close()
        if not await self._finished_within(self._grace.total_seconds()):
            attempts = self._heartbeat.attempts
            logger.info("handing back %d unfinished tasks", len(attempts))
            for attempt in attempts:
                attempt.stop(StopReason.RELEASED)
            if not await self._finished_within(_RELEASE_SECONDS):
                self._consumer.abandon()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        await self._executor.close()

    async def _finished_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._consumer.finished()
        except TimeoutError:
            return False
        return True
