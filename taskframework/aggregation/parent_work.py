"""Work on parents in the background, begun by an event or by a repair."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import ClassVar

from taskframework.background import Background
from taskframework.errors import StoreError
from taskframework.model.drivers import Driver
from taskframework.model.marks import MoveDriver
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore

logger = logging.getLogger(__name__)

#: On how many parents each sort of work is done at once. Each may have `BATCH_SIZE` calls to the store under way.
_MAX_CONCURRENT_PARENTS = 8
#: How many sub-tasks are stored, cancelled or replayed together: one part of the work.
BATCH_SIZE = 500
#: How long other processes leave a parent alone on which this process works. The time begins again after each part.
RESERVATION_TIME = timedelta(seconds=30)
_NO_TIME = timedelta(0)


async def move_driver(store: TaskStore, parent: Task, driver: Driver, delay: timedelta | None) -> Task | None:
    """Move the time of a driver of a parent; None as the delay removes the time.

    Returns:
        The parent, or None if the driver does not drive it, or another process has moved the time.
    """
    due = driver.time_of(parent)
    return None if due is None else await store.apply(MoveDriver(parent.task_id, driver, due, delay))


class ParentWork(ABC):
    """One sort of work on parents. It may take minutes, so listeners and repairs do not wait for it."""

    #: The beginning of the log line when the work fails: the work that is left to the repair.
    description: ClassVar[str]

    def __init__(self) -> None:
        self._background = Background()
        self._semaphore = asyncio.Semaphore(_MAX_CONCURRENT_PARENTS)
        #: By id, the parents whose work has not begun, each as it was read last.
        self._waiting: dict[str, Task] = {}
        #: Whether the process is about to end. Then no more work begins, and work in several parts stops between two.
        self._is_stopping = False

    @abstractmethod
    async def work_on(self, parent: Task) -> None:
        """Do the work for a parent now.

        Raises:
            StoreError: if the work could not be done; the parent is due again later.
        """

    def start(self, parent: Task) -> None:
        """Do the work for a parent soon; if it fails, it is left to the repair.

        If its work waits here already, it is done once: when there is much work, a parent is due again before its work
        begins, and the repair brings it here again.
        """
        waiting = self._waiting.get(parent.task_id)
        if waiting is None or waiting.revision <= parent.revision:
            self._waiting[parent.task_id] = parent
        if waiting is None:
            self._background.start(self._work_or_log(parent.task_id), contextvars.Context())

    async def finished(self) -> None:
        """Wait until all work that began is done, or left to the repair."""
        await self._background.finished()

    async def stop(self) -> None:
        """Leave to other processes all work that has not begun, and all further parts of work that has begun."""
        self._is_stopping = True
        await self.finished()

    @property
    def _reservation_time(self) -> timedelta:
        """How long other processes leave a parent alone on which work is not done yet."""
        return _NO_TIME if self._is_stopping else RESERVATION_TIME

    async def _work_or_log(self, parent_id: str) -> None:
        try:
            async with self._semaphore:
                parent = self._waiting.pop(parent_id)
                if not self._is_stopping:
                    await self.work_on(parent)
        except StoreError as error:
            logger.info("%s %s is left to the repair: %s", self.description, parent_id, error.message)
        except Exception:
            logger.exception("%s %s is left to the repair", self.description, parent_id)
