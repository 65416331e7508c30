"""The process pool for `run_in="process"`: persistent child processes, each running one attempt at a time.

Children are spawned, never forked: a fork of a process with threads and an event loop may hang. Therefore a program
that is started as a script needs the usual `if __name__ == "__main__":`.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable
from typing import Any

from taskframework.background import Background
from taskframework.tasks.context import TaskContext
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.tasks.stages import Call
from taskframework.worker.pooled_process import Child, ProcessDiedError, pack_request, retrieve_exception

#: Seconds within which code in a process or thread must end after a cancel. The executor and a stopping worker wait
#: longer, so they find the process ended.
GRACE_SECONDS = 3.0


class ProcessPool:
    """Runs attempts in child processes, which are started when needed and replaced when they die."""

    def __init__(self, size: int, *, grace: float = GRACE_SECONDS) -> None:
        """Prepare an empty pool.

        Args:
            size: the most attempts at a time.
            grace: seconds that code has to end by itself after it was cancelled, before its process is killed.
        """
        self._slots = asyncio.Semaphore(size)
        self._grace = grace
        self._children: set[Child] = set()
        self._idle: list[Child] = []
        #: Children that are starting, also those that nobody waits for any more.
        self._starting: set[asyncio.Task[Child]] = set()
        self._ending = Background()
        self._is_closed = False

    async def run(
        self,
        executable: BackgroundTaskExecutable[Any, Any],
        call: Call,
        context: TaskContext[Any],
        on_start: Callable[[], None] = lambda: None,
    ) -> Any:
        """Make the call in a child; questions and reports of the code come back through `context` and `logging`.

        When the caller is cancelled, `context.is_cancel_requested` becomes true in the child. The child then has
        `grace` to end; after that it is killed together with the programs that it started. A second cancellation kills
        it at once.

        Args:
            executable: the object whose method runs.
            call: the method and its arguments.
            context: the context that the method gets.
            on_start: called when the code begins, after the waits for a child and for its imports.

        Returns:
            The result of the method, also after a cancellation that it did not notice, because then its work was done.

        Raises:
            asyncio.CancelledError: if the caller was cancelled, and the code noticed it or did not end in time.
            ExecutionFailedError: if the method raised an error, or its result cannot be brought back.
            NonRetryableError: if the executable or its parameters cannot be sent.
            ProcessDiedError: if the child died or did not finish importing, or the pool was closed.
        """
        request = pack_request(executable, call, context)
        async with self._slots:
            child = await self._take()
            attempt = asyncio.create_task(child.run(request, context.control, on_start))
            attempt.add_done_callback(retrieve_exception)
            try:
                await asyncio.wait([attempt])
            except asyncio.CancelledError:
                child.cancel()
                await asyncio.wait([attempt], timeout=self._grace)
                if child.has_seen_stop or not attempt.done() or isinstance(attempt.exception(), ProcessDiedError):
                    raise
            finally:
                self._give_back(child)
            return attempt.result()

    async def close(self) -> None:
        """End all children and wait until they are gone; attempts that run fail with `ProcessDiedError`."""
        self._is_closed = True
        for child in list(self._children):
            self._end(child)
        if self._starting:
            await asyncio.wait(self._starting)
        await self._ending.finished()
        atexit.unregister(self._kill_all)

    async def _take(self) -> Child:
        while self._idle and not self._is_closed:
            child = self._idle.pop()
            if child.is_free:
                return child
            self._end(child)  # it died while it was idle
        if self._is_closed:
            raise _pool_closed_error()
        starting = asyncio.create_task(self._start_child())
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._end_started)
            raise

    async def _start_child(self) -> Child:
        child = await Child.start()
        if self._is_closed:
            await child.end()
            raise _pool_closed_error()
        if not self._children:
            # At exit, multiprocessing waits for its children, before they could notice that this process ends.
            atexit.register(self._kill_all)
        self._children.add(child)
        return child

    def _give_back(self, child: Child) -> None:
        if child.is_free and not self._is_closed:
            self._idle.append(child)
        else:
            self._end(child)

    def _end(self, child: Child) -> None:
        self._children.discard(child)
        self._ending.start(child.end())

    def _end_started(self, starting: asyncio.Task[Child]) -> None:
        if not starting.cancelled() and starting.exception() is None:
            self._end(starting.result())

    def _kill_all(self) -> None:
        for child in self._children:
            child.kill()


def _pool_closed_error() -> ProcessDiedError:
    return ProcessDiedError("The process pool is closed.", hint="")
