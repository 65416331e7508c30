"""Work beside the caller: kept alive while it runs, ended for certain, and not cancelled together with the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

_CANCEL_AGAIN = 0.5


class Background:
    """asyncio tasks that nobody awaits yet: kept from the garbage collector, and awaited at the end."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[object]] = set()

    def start(self, work: Coroutine[Any, Any, object], context: Context | None = None) -> None:
        """Begin it, in a copy of the caller's context if none is given."""
        task = asyncio.create_task(work, context=context)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def finished(self) -> None:
        """Wait for all of them. Each must bound its own time."""
        while self.tasks:
            await asyncio.wait(self.tasks)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until they have ended."""
    # Once is not enough: on Python 3.11 `asyncio.wait_for`, which drivers use, loses a cancellation that comes in the
    # same moment as the result.
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=_CANCEL_AGAIN)


async def in_time(future: asyncio.Future[T], deadline: float, late: Callable[[], Exception] = TimeoutError) -> T:
    """Wait for a future until a time of the event loop's clock; then it fails with the error that `late` makes.

    Every store call and publication waits here. `asyncio.timeout_at` costs three times as much.
    """
    timer = future.get_loop().call_at(deadline, _end_late, future, late)
    try:
        return await future
    finally:
        timer.cancel()


def _end_late(future: asyncio.Future[Any], late: Callable[[], Exception]) -> None:
    if not future.done():
        future.set_exception(late())


def is_failure(error: BaseException) -> bool:
    """Whether what the present task caught is a failure, and not its own end.

    While nobody cancels the present task, a cancellation is a failure like any other: a driver, for example, cancels
    whoever waits for a channel that closes.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return isinstance(error, Exception)
