"""A handle on a submitted task: its id, its state, its result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic

from typing_extensions import TypeVar  # with a default before Python 3.13

from taskframework.errors import ResultTimeoutError, TaskFailedError
from taskframework.model.scope import EVERYONE
from taskframework.model.status import SUCCEEDED
from taskframework.model.task import Task
from taskframework.model.view import error_view
from taskframework.operations.tasks import TaskOperations
from taskframework.tasks.kinds import TaskKind, read_result

R = TypeVar("R", default=Any, covariant=True)

#: `by` of what is done through a handle, as the history names it.
PROGRAM = "program"
_FIRST_LOOK = 0.01
_SLOWEST_LOOK = 0.5


async def until_final(look: Callable[[], Awaitable[Task]], timeout: timedelta | float | None) -> Task:
    """Look at a task until it is final.

    Args:
        look: gives the task as it is now.
        timeout: longest time to wait, in seconds or as a timedelta; None waits for ever.

    Raises:
        ResultTimeoutError: if it is not final by then.
    """
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    pause, task = _FIRST_LOOK, await look()
    try:
        async with asyncio.timeout(seconds):
            while not task.status.is_final:
                # The task may run in any process, so the store is asked; less often the longer it takes.
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _SLOWEST_LOOK)
                task = await look()
    except TimeoutError:
        raise ResultTimeoutError(task.task_id, task.status) from None
    return task


@dataclass(frozen=True, slots=True)
class TaskHandle(Generic[R]):
    """One submitted task, whose result is an R.

    Attributes:
        is_new: this submission made it, not an earlier one with the same idempotency key.
        kind: the class it was submitted by, which reads the result; None if only its name is known.
    """

    task_id: str
    is_new: bool
    operations: TaskOperations
    kind: type[TaskKind[Any, R]] | None = None

    async def task(self) -> Task:
        """The task as it is now.

        Raises:
            TaskNotFoundError: if it was removed.
        """
        return await self.operations.get(self.task_id, EVERYONE)

    async def signal(self, name: str, payload: Any = None, *, key: str | None = None) -> Task:
        """Tell the task something; see `TaskOperations.signal`."""
        return await self.operations.signal(self.task_id, EVERYONE, name, payload, key=key)

    async def cancel(self, reason: str | None = None) -> Task:
        """Cancel the task: at rest it is over at once, a running one is asked to stop and decides by its end.

        Raises:
            TransitionRefusedError: if it is final.
        """
        return await self.operations.cancel(self.task_id, EVERYONE, by=PROGRAM, reason=reason)

    async def finished(self, timeout: timedelta | float | None = None) -> Task:
        """Wait until the task is final.

        Args:
            timeout: longest time to wait, in seconds or as a timedelta; None waits for ever.

        Raises:
            ResultTimeoutError: if it is not final by then.
        """
        return await until_final(self.task, timeout)

    async def result(self, timeout: timedelta | float | None = None) -> R:
        """Wait for the result.

        Returns:
            What `execute` gave, of a task that was submitted by its class; of one that was by its name, plain JSON.

        Raises:
            TaskFailedError: if the task ended without one.
            ResultTimeoutError: as `finished`.
            ResultUnreadableError: if it is not what the class says.
        """
        task = await self.finished(timeout)
        if task.status in SUCCEEDED:
            result: R = read_result(self.kind, task.result)
            return result
        raise TaskFailedError(self.task_id, task.status, error_view(task.error))
