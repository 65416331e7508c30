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
_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 0.02, 0.5
#: Seconds that a task may wait for its first claim before a hint is printed.
_WORKER_HINT_SECONDS = 3.0


async def follow(
    handle: TaskHandle, timeout: timedelta | None, on_change: Callable[[Task], None] | None = None
) -> Task:
    """Wait until a task is final, with a live line on a terminal.

    Args:
        handle: the task.
        timeout: longest time to wait; None waits for ever.
        on_change: called with the task at once and after each change.

    Returns:
        The final task.

    Raises:
        ResultTimeoutError: if the task is not final in time.
        TaskNotFoundError: if there is no such task.
    """
    newest = await handle.task()
    line = _LiveLine(newest, handle.operations)
    try:
        async for task in _poll_states(handle, newest, timeout):
            newest = task
            if on_change is not None:
                line.hide()  # so that the printed text comes above it
                on_change(task)
            await line.update(task)
    finally:
        line.close()
    return newest


async def _poll_states(handle: TaskHandle, task: Task, timeout: timedelta | None) -> AsyncIterator[Task]:
    ends_at = float("inf") if timeout is None else time.monotonic() + timeout.total_seconds()
    pause = _MIN_POLL_SECONDS
    yield task
    while not task.status.is_final:
        remaining = ends_at - time.monotonic()
        if remaining <= 0:
            raise ResultTimeoutError(task.task_id, task.status)
        # The task may run in any process, so the store is read; less often while nothing happens.
        await asyncio.sleep(min(pause, remaining))
        previous, task = task, await handle.task()
        has_changed = (task.revision, task.progress_revision) != (previous.revision, previous.progress_revision)
        pause = _MIN_POLL_SECONDS if has_changed else min(pause * 1.5, _MAX_POLL_SECONDS)
        if has_changed:
            yield task


class _LiveLine:
    """Shows the state of the task and of its sub-tasks on a terminal; and prints a hint if no worker takes the task."""

    def __init__(self, task: Task, operations: TaskOperations) -> None:
        self._task = task
        self._operations = operations
        self._console = err()
        self._hint_timer = asyncio.get_running_loop().call_later(_WORKER_HINT_SECONDS, self._print_worker_hint)
        #: Made again after each stop: otherwise rich would begin by removing as many lines as the stopped one had.
        self._status: Status | None = None

    async def update(self, task: Task) -> None:
        self._task = task
        if not self._console.is_terminal:
            return
        tree = await task_tree(self._operations, task)
        if self._status is None:
            self._status = self._console.status(tree)
            self._status.start()
        else:
            self._status.update(tree)

    def hide(self) -> None:
        """Hide the line until the next update."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def close(self) -> None:
        self._hint_timer.cancel()
        self.hide()

    def _print_worker_hint(self) -> None:
        if self._task.status in CLAIMABLE and self._task.attempts == 0:
            hint = f"No worker has started it yet. See why: taskframework tasks explain {self._task.task_id}"
            self._console.print(Text(hint, style="dim"), soft_wrap=True)
