"""Containment: task code shares the event loop with the worker and with other tasks, and may end only its own work.

Code that cancels everything in `asyncio.all_tasks()`, or stops the loop, would end the heartbeat, the connections, the
HTTP interface and every other attempt. The framework could not restart all of these, for example not those inside
libraries. So such a call does nothing, and one warning names the task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from types import FrameType
from typing import Any, TypeVar

from taskframework.frames import is_installed
from taskframework.telemetry import context_of, running_code

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Packages that may end asyncio tasks of the process even when task code calls them: a connection may fail or close.
_TRUSTED = frozenset({"taskframework", "aio_pika", "aiormq", "pymongo"})
#: Packages whose asyncio tasks belong to the process: the framework, and the libraries that it uses.
_INFRASTRUCTURE = _TRUSTED | {"uvicorn", "starlette", "fastapi", "anyio"}


def contain_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Keep task code from cancelling foreign asyncio tasks on this loop, and from stopping or shutting down the loop.

    Call this only for a loop that runs nothing but the framework, and before anything runs on it.
    """
    loop.set_task_factory(_contained_task)
    stop = loop.stop

    def stop_unless_contained() -> None:
        if running_code.get() is None:
            stop()
        else:
            _log_refusal("stop the event loop of its worker", sys._getframe(1))

    loop.stop = stop_unless_contained  # type: ignore[method-assign]
    # Without this, task code could end the asynchronous generator in which the framework runs. Then the process would
    # continue, but do nothing.
    loop.shutdown_asyncgens = _contain_shutdown(loop.shutdown_asyncgens)  # type: ignore[method-assign]
    loop.shutdown_default_executor = _contain_shutdown(loop.shutdown_default_executor)  # type: ignore[method-assign]


def _contain_shutdown(end: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    async def end_unless_contained(*options: Any) -> None:
        if running_code.get() is None:
            await end(*options)
        else:
            _log_refusal("shut down the event loop of its worker", sys._getframe(1))

    return end_unless_contained


@contextlib.contextmanager
def contained_tasks() -> Iterator[None]:
    """Keep task code from cancelling foreign asyncio tasks, on the running loop of any program.

    If the loop has a task factory already, such as `asyncio.eager_task_factory`, it stays, without this protection.
    """
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is not None:
        yield
        return
    loop.set_task_factory(_contained_task)
    try:
        yield
    finally:
        if loop.get_task_factory() is _contained_task:
            loop.set_task_factory(None)


def cancel_own(task: asyncio.Task[Any]) -> None:
    """Cancel the task of an attempt in the name of that attempt.

    Without this, asyncio would pass the cancellation on to whatever the code waits for, even to an asyncio task of
    another attempt.
    """
    if not task.done():
        context_of(task).copy().run(task.cancel)


class _ContainedTask(asyncio.Task[Any]):
    """An asyncio task that the code of another attempt cannot cancel."""

    __slots__ = ()

    def cancel(self, msg: Any | None = None) -> bool:
        if running_code.get() is not None and _is_foreign(self) and not _may_cancel(frame := sys._getframe(1), self):
            _log_refusal("cancel asyncio tasks that are not its own", frame)
            return False
        return super().cancel(msg)


def _contained_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T], **options: Any
) -> asyncio.Future[T]:
    return _ContainedTask(coroutine, loop=loop, **options)


def _is_foreign(task: asyncio.Task[Any]) -> bool:
    """Return whether an asyncio task belongs to another attempt or to the process, not to the attempt that runs here.

    Tasks that an ended attempt left behind, and tasks that the program started outside attempts, are not foreign
    either, unless they belong to the infrastructure.
    """
    owner = context_of(task).get(running_code)
    if owner is running_code.get():
        return False
    is_in_use = owner is not None and not owner.is_over
    return is_in_use or _package_of(_frame_of(task)) in _INFRASTRUCTURE


def _frame_of(task: asyncio.Task[Any]) -> FrameType | None:
    return getattr(task.get_coro(), "cr_frame", None)


def _may_cancel(caller: FrameType, task: asyncio.Task[Any]) -> bool:
    """Return whether this caller may end a task that is foreign to the attempt in whose name the caller runs."""
    if caller.f_globals is globals():
        # Not a call by task code: an asyncio task that waits for `task` was cancelled, and its `cancel` calls this one.
        return False
    package = _package_of(caller)
    if package in _TRUSTED:
        return True
    # A library ends tasks of its own, such as the reader of a connection that several attempts share.
    return is_installed(caller.f_code.co_filename) and package == _package_of(_frame_of(task))


def _package_of(frame: FrameType | None) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _log_refusal(what: str, frame: FrameType) -> None:
    attempt = running_code.get()
    if attempt is None or attempt.was_refused:
        return
    attempt.was_refused = True
    code = frame.f_code
    logger.warning(
        "task %s %s tried to %s, at %s:%d in %s; nothing happened. Task code may stop only what it has started",
        attempt.task_type,
        attempt.task_id,
        what,
        code.co_filename,
        frame.f_lineno,
        code.co_qualname,
        extra={"task_type": attempt.task_type, "task_id": attempt.task_id},
    )
