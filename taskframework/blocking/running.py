"""A framework that runs in a thread of its own, from its start to its end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from taskframework.blocking.program_end import PROGRAM_END, THREAD_NAME
from taskframework.errors import NotRunningError, StoreClosedError
from taskframework.runtime import TaskFramework

T = TypeVar("T")


class ClosedMeanwhileError(NotRunningError):
    """The framework was closed before the call was done; it is not known whether it took effect."""

    hint = "Close it only when it is no longer used. With an idempotency key, a submission can be repeated."


class BeingClosedError(NotRunningError):
    """Another thread is closing the framework, so the call had no effect."""

    hint = "Repeat the call when close() has returned; it then opens the framework again."


class RunningFramework:
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


def wait_for(future: concurrent.futures.Future[T]) -> T:
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise ClosedMeanwhileError from None
    except BaseException:
        future.cancel()  # Ctrl-C interrupted the wait
        raise
