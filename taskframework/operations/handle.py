"""A handle on a submitted task: its id, its state, its result."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic

from typing_extensions import TypeVar  # with a default before Python 3.13

from taskframework.clock import in_seconds
from taskframework.errors import ResultTimeoutError, StoreClosedError, StoreUnavailableError, TaskFailedError
from taskframework.model.scope import EVERYONE
from taskframework.model.status import SUCCEEDED
from taskframework.model.task import Task
from taskframework.model.view import error_view
from taskframework.operations.tasks import TaskOperations
from taskframework.tasks.kinds import TaskKind, read_result

R = TypeVar("R", default=Any, covariant=True)

#: The value of `by`, in the history, of actions through a handle.
PROGRAM = "program"
_FIRST_PAUSE_SECONDS = 0.01
_MAX_PAUSE_SECONDS = 0.5
#: How long the store has for the first look, in seconds, even if the caller waits for less: 0 means to look once.
_FIRST_LOOK_SECONDS = 1.0


async def until_final(task_id: str, look: Callable[[], Awaitable[Task]], timeout: timedelta | float | None) -> Task:
    """Look at a task until it is final.

    Args:
        task_id: its id, for the error.
        look: returns the task as it is now.
        timeout: longest time to wait, in seconds or as a timedelta; 0 looks once, None waits for ever.

    Raises:
        ResultTimeoutError: if the task is not final by then.
        StoreUnavailableError: if the store does not answer and there is no time limit, or the limit is over.
    """
    seconds = None if timeout is None else in_seconds(timeout)
    loop = asyncio.get_running_loop()
    ends_at = math.inf if seconds is None else loop.time() + seconds
    pause, status = _FIRST_PAUSE_SECONDS, "unknown: the store has not answered"
    away: StoreUnavailableError | None = None
    try:
        async with asyncio.timeout(None if seconds is None else max(seconds, _FIRST_LOOK_SECONDS)):
            while True:
                try:
                    task = await look()
                    if task.status.is_final:
                        return task
                    status, away = task.status, None
                except StoreUnavailableError as error:
                    if seconds is None or isinstance(error, StoreClosedError):
                        raise
                    away = error
                if (left := ends_at - loop.time()) <= 0:
                    raise TimeoutError
                # The task may run in any process, so ask the store, less often the longer the task takes.
                await asyncio.sleep(min(pause, left))
                pause = min(pause * 1.5, _MAX_PAUSE_SECONDS)
    except TimeoutError:
        raise away or ResultTimeoutError(task_id, status) from None


@dataclass(frozen=True, slots=True)
class TaskHandle(Generic[R]):
    """One submitted task, whose result is an R.

    Attributes:
        is_new: whether this submission made the task, and not an earlier one with the same idempotency key.
        kind: the class by which the task was submitted, which reads the result; None if only its name is known.
    """

    task_id: str
    is_new: bool
    operations: TaskOperations
    kind: type[TaskKind[Any, R]] | None = None

    async def task(self) -> Task:
        """Read the task as it is now.

        Raises:
            TaskNotFoundError: if the task was removed.
        """
        return await self.operations.get(self.task_id, EVERYONE)

    async def signal(self, name: str, payload: Any = None, *, key: str | None = None) -> Task:
        """Send the task a signal; see `TaskOperations.signal`."""
        return await self.operations.signal(self.task_id, EVERYONE, name, payload, key=key)

    async def cancel(self, reason: str | None = None) -> Task:
        """Cancel the task. If it does not run, it is CANCELLED at once; a running task is asked to stop, and its end
        decides its status.

        Raises:
            TransitionRefusedError: if the task is final.
        """
        return await self.operations.cancel(self.task_id, EVERYONE, by=PROGRAM, reason=reason)

    async def retry(self, *, reopen: bool = False) -> Task:
        """Queue the task again after it failed or was cancelled, with all its attempts; make a RETRYING task due now.

        Args:
            reopen: for a sub-task whose parent has ended: whether the parent waits for it again.

        Raises:
            TransitionRefusedError: if it is live or completed, or its sub-tasks are still being cancelled.
            ParentFinishedError: if its parent has ended, and `reopen` is not given or not possible.
        """
        return await self.operations.retry(self.task_id, EVERYONE, by=PROGRAM, reopen=reopen)

    async def finished(self, timeout: timedelta | float | None = None) -> Task:
        """Wait until the task is final.

        Args:
            timeout: longest time to wait, in seconds or as a timedelta; 0 looks once, None waits for ever.

        Raises:
            ResultTimeoutError: if the task is not final by then.
            StoreUnavailableError: if the store does not answer and there is no time limit, or the limit is over.
        """
        return await until_final(self.task_id, self.task, timeout)

    async def result(self, timeout: timedelta | float | None = None) -> R:
        """Wait for the result.

        Returns:
            The result of `execute` if the task was submitted by its class; plain JSON if it was submitted by its name.

        Raises:
            TaskFailedError: if the task ended without a result.
            ResultTimeoutError: as `finished`; also StoreUnavailableError.
            ResultUnreadableError: if the result does not fit the class.
        """
        task = await self.finished(timeout)
        if task.status in SUCCEEDED:
            result: R = read_result(self.kind, task.result)
            return result
        raise TaskFailedError(self.task_id, task.status, error_view(task.error))
