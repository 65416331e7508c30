"""A framework that runs in its own thread and does work for other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import queue
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from taskframework.blocking.program_end import PROGRAM_END, THREAD_NAME
from taskframework.errors import NotRunningError, StoreClosedError
from taskframework.runtime import TaskFramework
from taskframework.tasks.steps import refuse_on_event_loop

T = TypeVar("T")

#: How many items are taken from the caller's iterable at a time.
_ITEMS_PER_REQUEST = 500


class OpenedBeforeForkError(NotRunningError):
    """The framework was opened before this process was forked, so neither its thread nor its connections are here."""

    hint = "Submit nothing before the fork, or call close() before it: each process opens its own at the first call."


class ClosedMeanwhileError(NotRunningError):
    """The framework was closed before the call was done; it is not known whether it took effect."""

    hint = "Close it only when it is no longer used. With an idempotency key, a submission can be repeated."


class BeingClosedError(NotRunningError):
    """Another thread is closing the framework, so the call had no effect."""

    hint = "Repeat the call when close() has returned; it then opens the framework again."


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
        self._running: _RunningFramework | None = None
        #: What `close` is waiting for.
        self._closing: _RunningFramework | None = None
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
        return _wait_for(future)

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
        return _wait_for(future)

    def iterate(self, work: Callable[[], AsyncGenerator[T, None]]) -> Generator[T, None, None]:
        """Give the values of an asynchronous generator as they come, until the framework is closed."""
        running, opener_pid, values = self.open_for_call(), os.getpid(), work()
        try:
            while True:
                try:
                    yield _wait_for(running.start(lambda: _next(values)))
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

    def open_for_call(self) -> _RunningFramework:
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

    def _open(self) -> _RunningFramework:
        # Before the lock: if another thread of the parent process had it at the fork, it is never released here.
        if self._opener_pid is not None and self._opener_pid != os.getpid():
            raise OpenedBeforeForkError
        if (running := self._running) is None:
            if self._closing is not None and self._closing.has_thread:
                raise BeingClosedError
            _refuse_green_threads()
            PROGRAM_END.require_running()
            new_framework = _RunningFramework(self.framework, self.executes)
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

    def _forget(self, running: _RunningFramework) -> None:
        with self._lock:
            if self._running is running:
                self._running = self._opener_pid = None

    def _start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        if not callable(work):
            if asyncio.iscoroutine(work):
                work.close()
            raise TypeError("give a function that returns the coroutine: `tasks.run(lambda: tasks.framework.…)`")
        return self.open_for_call().start(work)


class _RunningFramework:
    """The thread, its loop, and the framework that runs there."""

    def __init__(self, framework: TaskFramework, worker: bool) -> None:
        self._framework = framework
        self._worker = worker
        self._stop = asyncio.Event()
        #: Held by the thread, from its beginning on.
        self._thread_lock = threading.Lock()
        self._is_open = concurrent.futures.Future[None]()
        #: The work that was handed to the loop and is not done, by its future. No lock: a signal handler that comes in
        #: between may close the framework, and so wait for the thread.
        self._calls: dict[concurrent.futures.Future[Any], Coroutine[Any, Any, Any]] = {}
        #: The calls among them from threads for which Python waits, and when the last such call was made or done.
        self._awaited = set[concurrent.futures.Future[Any]]()
        self._last_use = time.monotonic()
        self._has_ended = False
        #: None until it has begun.
        self._thread: threading.Thread | None = None
        self.loop: asyncio.AbstractEventLoop

    def open(self) -> None:
        """Start the thread, and return when the framework runs in it.

        A signal handler may interrupt this at any point and open the framework itself. So there may be two threads for
        a moment, and only one of them does the work.
        """
        if not self._thread_lock.locked():
            # A daemon thread, because Python must not wait for it: `PROGRAM_END` ends it.
            thread = threading.Thread(target=self._work, name=f"{THREAD_NAME}-sync", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # Python 3.12 starts no thread after the main thread has ended
                is_end = "shutdown" in str(error)
                with suppress(concurrent.futures.InvalidStateError):  # another thread may have failed at the same time
                    self._is_open.set_exception(PROGRAM_END.refusal() if is_end else error)
        self._is_open.result()

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Let the framework do something.

        Raises:
            ClosedMeanwhileError: if it has ended.
        """
        call = self._call(work)
        try:
            future = asyncio.run_coroutine_threadsafe(call, self.loop)
        except RuntimeError:  # the loop is closed
            call.close()
            raise ClosedMeanwhileError from None
        self._calls[future] = call
        if not threading.current_thread().daemon:
            self._awaited.add(future)
        future.add_done_callback(self._end_call)
        if self._has_ended:  # looked at only now: the end may have found all calls but this one
            self._refuse_left_calls()
        return future

    @property
    def has_thread(self) -> bool:
        """Whether its thread has not ended; in a forked child it has."""
        return self._thread is None or self._thread.is_alive()

    async def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await work()
        except StoreClosedError:
            if self._stop.is_set():  # the store is closed before the loop ends
                raise ClosedMeanwhileError from None
            raise

    def last_use(self) -> float:
        """As in `FrameworkThread`."""
        return time.monotonic() if self._awaited else self._last_use

    def _end_call(self, done: concurrent.futures.Future[Any]) -> None:
        self._calls.pop(done, None)
        if done in self._awaited:
            self._last_use = time.monotonic()
            self._awaited.discard(done)

    def stop(self) -> None:
        """Let the framework end, and wait for its thread."""
        if self._is_open.exception() is None:
            self.loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        if self._thread_lock.acquire(blocking=False):
            self._thread = threading.current_thread()
            try:
                with (
                    concurrent.futures.ThreadPoolExecutor(thread_name_prefix=f"{THREAD_NAME}-asyncio") as threads,
                    asyncio.Runner(loop_factory=lambda: _Loop(threads)) as runner,
                ):
                    runner.run(self._main())
            except BaseException as error:
                if self._is_open.done():
                    raise
                self._is_open.set_exception(error)
            finally:
                self._has_ended = True
                self._refuse_left_calls()

    def _refuse_left_calls(self) -> None:
        """End the waits for work that came when the loop did no more work; otherwise they would last for ever."""
        for future in list(self._calls):
            if (call := self._calls.pop(future, None)) is not None:
                if inspect.getcoroutinestate(call) == inspect.CORO_CREATED:
                    call.close()
                with suppress(concurrent.futures.InvalidStateError):  # who waits for it may just have given up
                    future.set_exception(ClosedMeanwhileError())

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        async with self._framework.running(worker=self._worker):
            self._is_open.set_result(None)
            await self._stop.wait()


class _Loop(asyncio.SelectorEventLoop):
    """A loop that can be closed while the program ends. To end the threads of its executor, asyncio starts one more
    thread, and Python 3.12 starts no thread then.
    """

    def __init__(self, threads: concurrent.futures.ThreadPoolExecutor) -> None:
        super().__init__()
        self.set_default_executor(threads)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: the code that started the threads waits for their end when the loop is closed."""


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


def _wait_for(future: concurrent.futures.Future[T]) -> T:
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise ClosedMeanwhileError from None
    except BaseException:
        future.cancel()  # Ctrl-C interrupted the wait
        raise


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
