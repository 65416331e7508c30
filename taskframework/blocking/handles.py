"""Handles whose calls block."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic

from taskframework.blocking.thread import FrameworkThread
from taskframework.model.batch_status import BatchResult, BatchStatus
from taskframework.model.task import Task
from taskframework.operations.batch_handle import BatchHandle
from taskframework.operations.handle import R, TaskHandle


@dataclass(frozen=True, slots=True)
class SyncTaskHandle(Generic[R]):
    """`TaskHandle` for programs without asyncio."""

    handle: TaskHandle[R]
    thread: FrameworkThread

    @property
    def _current(self) -> TaskHandle[R]:
        """The handle in the framework that is open now: it may have been closed and opened again since."""
        return replace(self.handle, operations=self.thread.framework.services.tasks)

    @property
    def task_id(self) -> str:
        return self.handle.task_id

    @property
    def is_new(self) -> bool:
        """Whether this submission made the task, not an earlier one with the same idempotency key."""
        return self.handle.is_new

    def task(self) -> Task:
        """`TaskHandle.task`: the task as it is now, with its `status`, `progress` and `error`."""
        return self.thread.run(lambda: self._current.task())

    def finished(self, timeout: timedelta | float | None = None) -> Task:
        """`TaskHandle.finished`: wait until the task is final."""
        return self.thread.run(lambda: self._current.finished(timeout))

    def result(self, timeout: timedelta | float | None = None) -> R:
        """`TaskHandle.result`: wait for the result."""
        return self.thread.run(lambda: self._current.result(timeout))

    def cancel(self, reason: str | None = None) -> Task:
        """`TaskHandle.cancel`: cancel the task, or ask it to stop."""
        return self.thread.run(lambda: self._current.cancel(reason))

    def retry(self, *, reopen: bool = False) -> Task:
        """`TaskHandle.retry`: queue the task again after it failed or was cancelled."""
        return self.thread.run(lambda: self._current.retry(reopen=reopen))

    def signal(self, name: str, payload: Any = None, *, key: str | None = None) -> Task:
        """`TaskHandle.signal`: send the task a signal."""
        return self.thread.run(lambda: self._current.signal(name, payload, key=key))


@dataclass(frozen=True, slots=True)
class SyncBatchHandle(Generic[R]):
    """`BatchHandle` for programs without asyncio."""

    handle: BatchHandle[R]
    thread: FrameworkThread

    @property
    def _current(self) -> BatchHandle[R]:
        """The handle in the framework that is open now: it may have been closed and opened again since."""
        return replace(self.handle, operations=self.thread.framework.services.batches)

    @property
    def batch_id(self) -> str:
        return self.handle.batch_id

    @property
    def is_new(self) -> bool:
        """Whether this submission made the batch complete, not an earlier one with the same idempotency key."""
        return self.handle.is_new

    def status(self) -> BatchStatus:
        """`BatchHandle.status`: how far the batch is, counted now."""
        return self.thread.run(lambda: self._current.status())

    def results(self, *, first: int = 0) -> Generator[BatchResult[R | None], None, None]:
        """`BatchHandle.results`: the results in the order of the items, each as soon as it and all before it exist."""
        return self.thread.iterate(lambda: self._current.results(first=first))

    def finished(self, timeout: timedelta | float | None = None) -> BatchStatus:
        """`BatchHandle.finished`: wait until the batch is final."""
        return self.thread.run(lambda: self._current.finished(timeout))

    def cancel(self, reason: str | None = None) -> BatchStatus:
        """`BatchHandle.cancel`: cancel the batch, and in the background its tasks that are not final."""
        return self.thread.run(lambda: self._current.cancel(reason))

    def retry_failed(self) -> BatchStatus:
        """`BatchHandle.retry_failed`: replay the tasks that failed or were cancelled, in the background."""
        return self.thread.run(lambda: self._current.retry_failed())
