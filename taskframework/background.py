"""Work beside the caller: kept alive while it runs, reliably ended, and not cancelled together with the caller."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from typing import Any, Literal, TypeVar, cast

from taskframework.errors import ConfigurationError, NotRunningError

T = TypeVar("T")

_CANCEL_INTERVAL_SECONDS = 0.5
#: The most values that `iterate_in_thread` takes before they are needed.
_MAX_VALUES_AHEAD = 100


class Background:
    """asyncio tasks that no code awaits yet: protected from the garbage collector, and awaited at the end."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[object]] = set()

    def start(self, work: Coroutine[Any, Any, object], context: Context | None = None) -> None:
        """Begin the work, in a copy of the caller's context if no context is given."""
        task = asyncio.create_task(work, context=context)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def leave(self) -> None:
        """Remove the present asyncio task, whose work ends in this step.

        Otherwise it would be removed one round of the event loop later. Some callers give work to an asyncio task as
        long as it is among `tasks`. Such a task calls this when it has looked for work for the last time.
        """
        self.tasks.discard(cast("asyncio.Task[object]", asyncio.current_task()))

    async def finished(self) -> None:
        """Wait for all asyncio tasks. Each must limit its own time."""
        while self.tasks:
            await asyncio.wait(self.tasks)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until they have ended."""
    # Cancelling once is not enough: on Python 3.11 `asyncio.wait_for`, which drivers use, loses a cancellation that
    # comes at the same moment as the result.
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=_CANCEL_INTERVAL_SECONDS)


async def in_own_thread(work: Callable[[], T]) -> T:
    """Run a function that blocks, in a thread of its own: task code may hold all threads of `asyncio.to_thread`."""
    thread = ThreadPoolExecutor(1)
    running = asyncio.get_running_loop().run_in_executor(thread, copy_context().run, work)
    thread.shutdown(wait=False)  # the thread ends with its work
    return await running


async def iterate_in_thread(values: Iterable[T]) -> AsyncGenerator[T, None]:
    """Iterate, in a daemon thread, what may block for ever: neither the event loop nor the end of the process waits."""
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[tuple[Literal[True], T] | tuple[Literal[False], Exception | None]] = asyncio.Queue()
    room = threading.Semaphore(_MAX_VALUES_AHEAD)
    is_left = False

    def iterate() -> None:
        error: Exception | None = None
        try:
            for value in values:
                room.acquire()
                if is_left:
                    return
                loop.call_soon_threadsafe(came.put_nowait, (True, value))
        except Exception as failure:
            error = failure
        with suppress(RuntimeError):  # the event loop was closed meanwhile
            loop.call_soon_threadsafe(came.put_nowait, (False, error))

    threading.Thread(target=iterate, name="taskframework-iteration", daemon=True).start()
    try:
        while (item := await came.get())[0]:
            room.release()
            yield item[1]
        if item[1] is not None:
            raise item[1]
    finally:
        is_left = True
        room.release()


class Deadlines:
    """Ends futures that have no result in time.

    Every store call and publication has a deadline, nearly always later than the deadline before it. So one timer is
    enough for all of them; a timer for each would cost 2 µs, a twentieth of the time of a submission.
    """

    def __init__(self, make_error: Callable[[], Exception] = TimeoutError) -> None:
        """Start with no futures; `make_error` makes the error with which a future ends."""
        self._make_error = make_error
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()
        #: The latest deadline of all futures that were ever given here.
        self._latest = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, future: asyncio.Future[Any], deadline: float) -> None:
        """End a future at a time of the event loop's clock, unless it is done before."""
        if deadline < self._latest:  # a part of its time was spent before it came here
            future.get_loop().call_at(deadline, self._end, future)
            return
        self._latest = deadline
        self._forget_done()
        self._waiting.append((deadline, future))
        self._look_later()

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._waiting and self._waiting[0][0] <= now:
            self._end(self._waiting.popleft()[1])
        self._forget_done()
        self._look_later()

    def _look_later(self) -> None:
        if self._timer is None and self._waiting:
            deadline, future = self._waiting[0]
            self._timer = future.get_loop().call_at(deadline, self._look)

    def _forget_done(self) -> None:
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()

    def _end(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            future.set_exception(self._make_error())


def current_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if one runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def refuse_import_by_child() -> None:
    """Refuse to open a framework while a process of `run_in="process"` imports the program: everything that the program
    does at its top level would be done once more in each process.

    Raises:
        ConfigurationError: in such a process.
    """
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and getattr(processes.current_process(), "_inheriting", False):
        raise ConfigurationError(
            "This program was imported by a process that runs its tasks, and began to start the framework once more.",
            hint="""Start it in `if __name__ == "__main__":`, as every program that starts processes.""",
        )


def refuse_other_loop(home: asyncio.AbstractEventLoop | None) -> None:
    """Refuse a call from another event loop than the one that runs the framework; its reply would never come there.

    Args:
        home: the event loop of the framework; None if it is not known.

    Raises:
        NotRunningError: if the call comes from another event loop.
    """
    here = current_loop()  # None if the call only prepares something that is awaited later
    if home is not None and here is not None and here is not home:
        raise NotRunningError(
            "The framework runs on another event loop.",
            hint="Await it on that loop, from a thread with `asyncio.run_coroutine_threadsafe(...)` in place of"
            " `asyncio.run(...)`; or use SyncTaskFramework.",
        )


def is_failure(error: BaseException) -> bool:
    """Return whether the error that the present asyncio task caught is a failure, and not its own cancellation.

    If nobody cancels the present task, a cancellation is a failure like any other: a driver, for example, cancels all
    callers that wait for a channel that closes.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return isinstance(error, Exception)


@contextmanager
def surviving(logger: logging.Logger, what: str) -> Iterator[None]:
    """Log a failure inside the block, so that the loop around it goes on. Its own cancellation still ends the loop."""
    try:
        yield
    except BaseException as error:
        if not is_failure(error):
            raise
        logger.exception("%s failed and continues", what)
