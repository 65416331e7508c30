"""A repair that runs for ever: supervised, jittered, with the time of its last success for readiness."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

from taskframework.clock import Clock
from taskframework.errors import BrokerError, StoreError, TaskUnreadableError
from taskframework.model.task import Task
from taskframework.model.transitions import Transition
from taskframework.stores.base import TaskStore

logger = logging.getLogger(__name__)


async def repaired(store: TaskStore, transition: Transition) -> Task | None:
    """`store.apply`, passing over a task that a newer release wrote: its own processes repair it."""
    try:
        return await store.apply(transition)
    except TaskUnreadableError as error:
        logger.warning("passed over: %s", error.message)
        return None


class RepairLoop:
    """Calls a repair again and again. No error ends it; one that is due much later than planned shows in readiness."""

    def __init__(self, name: str, repair: Callable[[], Awaitable[bool]], interval: timedelta, clock: Clock) -> None:
        """Prepare the loop.

        Args:
            name: for logs and readiness.
            repair: one look; returns whether there is more to do right now.
            interval: pause between two looks.
            clock: for the pause.
        """
        self.name = name
        self._repair = repair
        self._interval = interval.total_seconds()
        self._clock = clock
        #: How often it looked successfully.
        self.looks = 0
        self._last_success: float | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._last_success = self._clock.monotonic()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def seconds_since_success(self) -> float:
        """How long ago the last look succeeded (or the loop began)."""
        return 0.0 if self._last_success is None else self._clock.monotonic() - self._last_success

    @property
    def is_late(self) -> bool:
        return self.seconds_since_success > 10 * self._interval + 30

    async def _run(self) -> None:
        while True:
            more = await self._look()
            # Jitter, so that processes that started together do not look together.
            await self._clock.sleep(0 if more else self._interval * random.uniform(0.75, 1.25))

    async def _look(self) -> bool:
        try:
            more = await self._repair()
        except (StoreError, BrokerError) as error:
            logger.warning("%s: %s", self.name, error.message)
            return False
        except Exception:
            logger.exception("%s failed and goes on", self.name)
            return False
        self._last_success = self._clock.monotonic()
        self.looks += 1
        return more
