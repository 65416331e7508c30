"""A framework that runs in its own thread and does work for other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import queue
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

from taskframework.blocking.program_end import PROGRAM_END
from taskframework.blocking.running import BeingClosedError, ClosedMeanwhileError, RunningFramework, T, wait_for
from taskframework.errors import NotRunningError
from taskframework.runtime import TaskFramework
from taskframework.tasks.steps import refuse_on_event_loop

#: How many items are taken from the caller's iterable at a time.
_ITEMS_PER_REQUEST = 500


class OpenedBeforeForkError(NotRunningError):
    """The framework was opened before this process was forked, so neither its thread nor its connections are here."""

    hint = "Submit nothing before the fork, or call close() before it: each process opens its own at the first call."


class GreenThreadsError(NotRunningError):
    """The threads of this process are not threads of the system."""

    hint = "Use `SyncTaskClient`, which speaks HTTP and works under gevent and eventlet."

    def __init__(self, library: str) -> None:
        super().__init__(f"{library} has replaced the threads of this process, so no event loop can run beside it.")
        self.library = library


class FrameworkThread:
    """Opens a framework at the first call, on an event loop in a thread, until it is closed or the program ends."""

    def __init__(self, framework: TaskFramework, *, worker: bool) -> None:
        """Prepare; nothing is opened yet, so a process may be forked now."""
        self.framework = framework
        self.executes = worker
        #: Held for moments only. It is reentrant, because a signal handler may run in between.
        self._lock = threading.RLock()
        #: The id of the process that opened the framework.
        self._opener_pid: int | None = None
        self._running: RunningFramework | None = None
        #: What `close` is waiting for.
        self._closing: RunningFramework | None = None
        PROGRAM_END.add(self)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Let the framework do some work, and wait until it is done.

        Args:
            work: returns the coroutine; it is called when the framework runs.

        Raises:
            OpenedBeforeForkError: in a process that was forked after it was opened.
            BeingClosedError: while another thread is closing it.
            ClosedMeanwhileError: if it was closed before the work was done.
            RuntimeError: if it is called on an event loop, which must not wait.
            Exception: any error of the work.
        """
        future = self._start(work)
        return wait_for(future)

    def run_with(self, items: Iterable[T], work: Callable[[AsyncIterator[T]], Coroutine[Any, Any, Any]]) -> Any:
        """Like `run`, with items that are taken in the caller's thread when the work asks for them. Their iterator may
        belong to that thread, as a cursor of a database does, and may block.
        """
        requests: queue.SimpleQueue[concurrent.futures.Future[list[T]] | None] = queue.SimpleQueue()
        iterator = iter(items)  # before the work begins: if this fails, nothing has begun
        future = self._start(lambda: work(_request_items(requests)))
        future.add_done_callback(lambda _: requests.put(None))
        try:
            while (request := requests.get()) is not None:
                if request.set_running_or_notify_cancel():
                    _send_items(request, iterator)
        except BaseException:
            future.cancel()
            raise
        return wait_for(future)

    def iterate(self, work: Callable[[], AsyncGenerator[T, None]]) -> Generator[T, None, None]:
        """Give the values of an asynchronous generator as they come, until the framework is closed."""
        running, opener_pid, values = self.open_for_call(), os.getpid(), work()
        try:
            while True:
                try:
                    yield wait_for(running.start(lambda: _next(values)))
                except StopAsyncIteration:
                    return
        finally:
            # Not awaited, and not by `run`: the garbage collector may come here on any thread, in a forked child, and
            # after `close`, which has ended the generator; nothing may be opened again.
            if opener_pid == os.getpid():
                with suppress(ClosedMeanwhileError):
                    running.start(values.aclose)

    def open(self) -> None:
        """Open the framework, unless it is open.

        Raises:
            OpenedBeforeForkError, BeingClosedError: as `run`.
            TaskframeworkError: as `TaskFramework.running`.
        """
        self._open()

    def open_for_call(self) -> RunningFramework:
        """Open the framework for a call, which must not come from an event loop.

        Raises:
            RuntimeError: if it comes from an event loop.
            TaskframeworkError: as `open`.
        """
        refuse_on_event_loop("SyncTaskFramework", "TaskFramework")
        return self._open()

    def close(self) -> None:
        """Close the framework if this process opened it; the next call opens it again."""
        if self._opener_pid != os.getpid():
            return
        with self._lock:
            running, self._running, self._opener_pid = self._running, None, None
            self._closing = running or self._closing
        if running is not None:
            running.stop()

    def last_use(self) -> float | None:
        """When a thread for which Python waits used the framework last, in monotonic seconds; None if not at all."""
        running = self._running
        # A child that was forked during a call of its parent never sees the end of this call.
        return None if running is None or self._opener_pid != os.getpid() else running.last_use()

    def _open(self) -> RunningFramework:
        # Before the lock: if another thread of the parent process had it at the fork, it is never released here.
        if self._opener_pid is not None and self._opener_pid != os.getpid():
            raise OpenedBeforeForkError
        if (running := self._running) is None:
            if self._closing is not None and self._closing.has_thread:
                raise BeingClosedError
            _refuse_green_threads()
            PROGRAM_END.require_running()
            new_framework = RunningFramework(self.framework, self.executes)
            pid = os.getpid()
            with self._lock:
                # No call between the check and the assignment: in a call Python could run a signal handler.
                if self._running is None:
                    self._running, self._opener_pid = new_framework, pid
                running = self._running
        # Without the lock: a signal handler that comes while this thread waits may submit something itself.
        try:
            running.open()
        except Exception:
            self._forget(running)
            raise
        return running

    def _forget(self, running: RunningFramework) -> None:
        with self._lock:
            if self._running is running:
                self._running = self._opener_pid = None

    def _start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        if not callable(work):
            if asyncio.iscoroutine(work):
                work.close()
            raise TypeError("give a function that returns the coroutine: `tasks.run(lambda: tasks.framework.…)`")
        return self.open_for_call().start(work)


def _refuse_green_threads() -> None:
    """Refuse to open a framework where a thread is a part of the calling thread.

    Raises:
        GreenThreadsError: if gevent or eventlet has replaced the threads.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        raise GreenThreadsError("gevent")
    if eventlet is not None and eventlet.is_monkey_patched("thread"):
        raise GreenThreadsError("eventlet")


def _send_items(request: concurrent.futures.Future[list[T]], iterator: Iterable[T]) -> None:
    try:
        request.set_result(list(islice(iterator, _ITEMS_PER_REQUEST)))
    except Exception as error:
        request.set_exception(error)


async def _request_items(requests: queue.SimpleQueue[concurrent.futures.Future[list[T]] | None]) -> AsyncIterator[T]:
    while True:
        request = concurrent.futures.Future[list[T]]()
        requests.put(request)
        items = await asyncio.wrap_future(request)
        if not items:
            return
        for item in items:
            yield item


async def _next(values: AsyncGenerator[T, None]) -> T:
    return await values.__anext__()
