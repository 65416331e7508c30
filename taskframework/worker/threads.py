"""The thread pool for a plain `def execute`. A thread cannot be killed: the pool waits for it, or leaves it behind."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from taskframework.tasks.context import AttemptControl, TaskContext
from taskframework.tasks.steps import Steps
from taskframework.tasks.subtasks import Family
from taskframework.worker.forks import ForkedProcessesEnd
from taskframework.worker.pooled_process import retrieve_exception
from taskframework.worker.processes import GRACE_SECONDS

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ThreadPool:
    """Runs attempts in threads; a thread that is left behind keeps its place until it ends by itself."""

    def __init__(self, size: int, *, grace: float = GRACE_SECONDS) -> None:
        """Prepare an empty pool.

        Args:
            size: the most threads at a time.
            grace: seconds that code has to end by itself after it was cancelled, before it is left behind.
        """
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="taskframework")
        # As many slots as threads: so an attempt waits here, before its timeout begins, and not inside the pool.
        self._slots = asyncio.Semaphore(size)
        self._grace = grace
        self._size = size
        self._has_logged_wait = False

    async def run(
        self, execute: Callable[[TaskContext[Any]], Any], context: TaskContext[Any], on_start: Callable[[], None]
    ) -> Any:
        """Call `execute(context)` in a thread.

        When the caller is cancelled, `context.is_cancel_requested` becomes true, and the code has `grace` to end before
        it is left behind. A second cancellation leaves it behind at once.

        Args:
            execute: the task code.
            context: its argument.
            on_start: called when a thread is free, however long that takes.

        Returns:
            The result of `execute`, also after a cancellation that it did not notice, because then its work was done.

        Raises:
            asyncio.CancelledError: if the caller was cancelled, and the code noticed it or did not end in time.
            BaseException: whatever `execute` raises.
        """
        control = _ThreadControl(context.control)
        call = partial(contextvars.copy_context().run, execute, dataclasses.replace(context, control=control))
        if self._slots.locked() and not self._has_logged_wait:
            self._has_logged_wait = True  # log this once: under load it happens for each task
            logger.info(
                "no thread is free (worker.max_threads is %d): attempts of plain functions wait for a thread. "
                "Their timeouts begin with their code",
                self._size,
            )
        await self._slots.acquire()
        on_start()
        try:
            work = self._threads.submit(value_or_error, call)
        except RuntimeError:  # the pool is closed
            self._slots.release()
            raise
        work.add_done_callback(partial(self._release_slot, asyncio.get_running_loop()))
        result = asyncio.wrap_future(work)
        result.add_done_callback(retrieve_exception)
        try:
            await asyncio.wait([result])
        except asyncio.CancelledError:
            control.is_stopped = True
            await asyncio.wait([result], timeout=self._grace)
            if not result.done():
                logger.info(
                    "task %s %s: its code goes on in a thread that is left behind; it keeps one of %d "
                    "(worker.max_threads) until it ends",
                    context.task_type,
                    context.task_id,
                    self._size,
                )
                raise
            if control.has_seen_stop:
                raise
        finally:
            result.cancel()  # a thread that is left behind must not use an event loop that has ended
        return value_of(*result.result())

    def close(self) -> None:
        """Take no more work; threads that were left behind end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _release_slot(self, loop: asyncio.AbstractEventLoop, _: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop ended before the thread
            loop.call_soon_threadsafe(self._slots.release)


class _ThreadControl:
    """`AttemptControl` for a thread. A timeout counts as a stop too. It notes whether the code has seen the stop.

    Code that has seen a stop returns early, and its return value is no result. Other code has finished its work.
    """

    def __init__(self, control: AttemptControl) -> None:
        self._control = control
        self.is_stopped = False
        self.has_seen_stop = False

    @property
    def cancel_requested(self) -> bool:
        if requested := self.is_stopped or self._control.cancel_requested:
            self.has_seen_stop = True
        return requested

    @property
    def steps(self) -> Steps:
        return self._control.steps

    @property
    def family(self) -> Family:
        return self._control.family

    async def report_progress(self, value: object) -> None:
        await self._control.report_progress(value)

    def report_progress_soon(self, value: object) -> None:
        self._control.report_progress_soon(value)


def value_or_error(call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Call, and return the value or the error. As the exception of a future, the error would change on its way to an
    event loop: asyncio makes a new `TimeoutError`, and a `StopIteration` would make the attempt hang.
    """
    try:
        with ForkedProcessesEnd():
            return call(), None
    except StopIteration as error:
        stopped = RuntimeError("the task code raised StopIteration")
        stopped.__cause__ = error
        return None, stopped
    except BaseException as error:
        return None, error


def value_of(value: T, error: BaseException | None) -> T:
    """Return the value of `value_or_error`, or raise its error."""
    if error is None:
        return value
    try:
        raise error
    finally:
        del error  # its traceback holds this frame
