"""The worker: starts consuming, keeps the heartbeat, and stops without losing a task or counting an attempt."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from taskframework.background import end
from taskframework.worker.attempt import STOP_TIMEOUT_SECONDS
from taskframework.worker.consumer import TaskConsumer
from taskframework.worker.executor import TaskExecutorService
from taskframework.worker.heartbeat import Heartbeat
from taskframework.worker.intake import Intake
from taskframework.worker.presence import SignOfLife

logger = logging.getLogger(__name__)

#: Seconds that released attempts have to stop and to write their release. Slower attempts are reaped: their leases end.
_RELEASE_TIMEOUT_SECONDS = STOP_TIMEOUT_SECONDS + 2


def new_worker_id() -> str:
    """Return a name that no other process has or had: host, process id, and a random part (process ids are reused)."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


class Closable(Protocol):
    """A part of a worker that may still have work under way when the worker stops."""

    async def close(self) -> None: ...


class Worker:
    """One process's share of executing tasks."""

    def __init__(
        self,
        worker_id: str,
        intake: Intake,
        consumer: TaskConsumer,
        executor: TaskExecutorService,
        heartbeat: Heartbeat,
        limits: Sequence[Closable],
        sign_of_life: SignOfLife,
        *,
        grace: timedelta,
    ) -> None:
        """Put the parts together; `grace` is how long running tasks may continue after `stop` was called."""
        self.worker_id = worker_id
        self._intake = intake
        self._consumer = consumer
        self._executor = executor
        self.heartbeat = heartbeat
        self._limits = limits
        self.sign_of_life = sign_of_life
        self._grace = grace
        self._background: list[asyncio.Task[None]] = []

    def start(self, task_types: Sequence[str]) -> None:
        """Begin to execute tasks of these types."""
        self._background = [
            asyncio.create_task(self.heartbeat.run()),
            asyncio.create_task(self._consumer.watch_deliveries()),
        ]
        self._intake.start(task_types)

    @property
    def is_live(self) -> bool:
        """Whether every queue is being consumed."""
        return self._intake.is_live

    @property
    def problem(self) -> str | None:
        """Why not every queue is being consumed."""
        return self._intake.problem

    @property
    def in_flight(self) -> int:
        return self._consumer.lanes.running

    async def stop(self) -> None:
        """Stop consuming, let running tasks finish within the grace, then release all others without counting them."""
        try:
            await self._intake.stop()
            await self._consumer.close()
            await self._finish_or_release()
        except BaseException:
            self._consumer.abandon()  # without the heartbeat, attempts would run on beside those of another worker
            raise
        finally:
            await end(*self._background)
        await self._executor.close()
        for limit in self._limits:
            await limit.close()
        await self.sign_of_life.withdraw()

    async def _finish_or_release(self) -> None:
        grace = self._grace.total_seconds()
        if grace and self.heartbeat.attempts:  # log this, because without it a long stop looks like a hang
            running = Counter(attempt.task.task_type for attempt in self.heartbeat.attempts)
            types = ", ".join(f"{count} {task_type}" for task_type, count in sorted(running.items()))
            logger.info("waiting up to %g s for running tasks: %s; a second signal ends them at once", grace, types)
        if not await self._wait_until_finished(grace):
            logger.info("handing back unfinished tasks: %d", len(self.heartbeat.attempts))
            self.heartbeat.release_all()
            if not await self._wait_until_finished(_RELEASE_TIMEOUT_SECONDS):
                self._consumer.abandon()

    async def _wait_until_finished(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._consumer.finished()
        except TimeoutError:
            return False
        return True
