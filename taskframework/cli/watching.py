"""Follows one task until it is final."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

from rich.status import Status
from rich.text import Text

from taskframework.cli.output import err
from taskframework.cli.tree import task_tree
from taskframework.errors import ResultTimeoutError
from taskframework.model.status import CLAIMABLE
from taskframework.model.task import Task
from taskframework.operations.handle import TaskHandle
from taskframework.operations.tasks import TaskOperations

#: Seconds between two reads of the store: at first, and after a long time without changes.
_FIRST_LOOK, _SLOWEST_LOOK = 0.02, 0.5
#: Seconds that a task may wait for its first claim before a hint about a missing worker is printed.
_WORKER_PATIENCE = 3.0
_NO_WORKER = "No worker has started it yet. Is one running that knows this type: taskframework dev, or worker --app …?"


async def follow(handle: TaskHandle, timeout: timedelta | None, hear: Callable[[Task], None] | None = None) -> Task:
    """Wait until a task is final, with a live line on a terminal.

    Args:
        handle: the task.
        timeout: longest time to wait; None waits for ever.
        hear: called with the task at once and after each change.

    Returns:
        The final task.

    Raises:
        ResultTimeoutError: if the task is not final in time.
        TaskNotFoundError: if there is no such task.
    """
    newest = await handle.task()
    line = _LiveLine(newest, handle.operations)
    try:
        async for task in _states(handle, newest, timeout):
            newest = task
            if hear is not None:
                line.hide()  # so that the printed text comes above it
                hear(task)
            await line.update(task)
    finally:
        line.close()
    return newest


async def _states(handle: TaskHandle, task: Task, timeout: timedelta | None) -> AsyncIterator[Task]:
    end = float("inf") if timeout is None else time.monotonic() + timeout.total_seconds()
    pause = _FIRST_LOOK
    yield task
    while not task.status.is_final:
        left = end - time.monotonic()
        if left <= 0:
            raise ResultTimeoutError(task.task_id, task.status)
        # The task may run in any process, so the store is read; less often while nothing happens.
        await asyncio.sleep(min(pause, left))
        before, task = task, await handle.task()
        is_new = (task.revision, task.progress_revision) != (before.revision, before.progress_revision)
        pause = _FIRST_LOOK if is_new else min(pause * 1.5, _SLOWEST_LOOK)
        if is_new:
            yield task


class _LiveLine:
    """Shows the state of the task and of its sub-tasks on a terminal; and prints a hint if nobody takes the task."""

    def __init__(self, task: Task, operations: TaskOperations) -> None:
        self._task = task
        self._operations = operations
        self._console = err()
        self._reminder = asyncio.get_running_loop().call_later(_WORKER_PATIENCE, self._remind)
        #: Made again after each stop: otherwise rich would begin by removing as many lines as the stopped one had.
        self._status: Status | None = None

    async def update(self, task: Task) -> None:
        self._task = task
        if not self._console.is_terminal:
            return
        shown = await task_tree(self._operations, task)
        if self._status is None:
            self._status = self._console.status(shown)
            self._status.start()
        else:
            self._status.update(shown)

    def hide(self) -> None:
        """Hide the line until the next update."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def close(self) -> None:
        self._reminder.cancel()
        self.hide()

    def _remind(self) -> None:
        if self._task.status in CLAIMABLE and self._task.attempts == 0:
            self._console.print(Text(_NO_WORKER, style="dim"), soft_wrap=True)
