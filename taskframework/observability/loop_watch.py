"""The loop watch: a thread that notices when the event loop is blocked, and names the code that blocks it."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from types import FrameType
from typing import Any

from taskframework.frames import is_installed, is_of_the_standard_library, is_ours
from taskframework.model.wording import duration_text
from taskframework.telemetry import context_of, running_code

logger = logging.getLogger(__name__)

#: How often the watch looks within the limit. With four, a blockage is reported at most a quarter of the limit late.
_LOOKS_PER_LIMIT = 4
#: Seconds between two looks: the minimum, and the pause if there is no limit and only the lag is measured.
_MIN_PAUSE_SECONDS = 0.01
_PAUSE_WITHOUT_LIMIT_SECONDS = 0.5

#: The functions in which a step of the loop begins. Frames outside of them are the program that runs the loop.
_LOOP_CODE = frozenset(
    function.__code__
    for function in (
        asyncio.Handle._run,
        asyncio.BaseEventLoop.run_forever,
        asyncio.BaseEventLoop.run_until_complete,
        asyncio.Runner.run,
    )
)


@dataclass(frozen=True, slots=True)
class Blockage:
    """A blocked loop: for how many seconds until now, by the code of which task, and at which place in the code."""

    seconds: float
    task_type: str | None = None
    task_id: str | None = None
    place: str | None = None


class LoopWatch:
    """Lets a timer of the loop give signs of life, measures how late they are, and looks at the code if none comes.

    The cost is four wake-ups of a timer and of a thread in each period of the limit, and nothing per task.
    """

    def __init__(self, limit: timedelta, on_lag: Callable[[float], None], on_blocked: Callable[[str], None]) -> None:
        """Prepare to watch.

        Args:
            limit: how long the loop may be blocked before this is reported; with zero the watch only measures.
            on_lag: called with how many seconds late each sign of life was.
            on_blocked: called, in a thread, once for each blockage with the code's task type, or "" for other code.
        """
        self._limit = limit.total_seconds()
        self._pause = (
            max(_MIN_PAUSE_SECONDS, self._limit / _LOOKS_PER_LIMIT) if self._limit else _PAUSE_WITHOUT_LIMIT_SECONDS
        )
        self._on_lag = on_lag
        self._on_blocked = on_blocked
        self._stopping = threading.Event()
        self._timer: asyncio.Handle | None = None
        #: When the next sign of life is due, and how late the latest one was since the last look.
        self._due = self._latest = 0.0

    def start(self) -> None:
        """Watch the running loop from its next turn on, until `stop` or until it is closed."""
        loop = asyncio.get_running_loop()
        self._due = math.inf
        self._timer = loop.call_soon(self._plan_tick, loop)
        if self._limit:
            # A daemon thread: a process that ends does not wait for it.
            watched = (loop, threading.get_ident())
            threading.Thread(target=self._watch, args=watched, name="taskframework-loop-watch", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()
        if self._timer is not None:
            self._timer.cancel()

    def _plan_tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = time.monotonic() + self._pause
        self._timer = loop.call_later(self._pause, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give a sign of life."""
        late = max(0.0, time.monotonic() - self._due)
        self._latest = max(self._latest, late)
        self._on_lag(late)
        self._plan_tick(loop)

    def _watch(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        due, stopped, blockage = self._due, 0.0, None
        while not loop.is_closed() and (stopped_seconds := self._pause_and_measure_stop()) is not None:
            stopped += stopped_seconds
            if due == self._due:
                late = time.monotonic() - due - stopped
                if late >= self._limit and blockage is None:
                    blockage = self._report(_find_blockage(late, loop, thread_id))
                continue
            late, self._latest = self._latest - stopped, 0.0
            if blockage is not None:
                _log_end(replace(blockage, seconds=max(late, blockage.seconds)))
            elif late >= self._limit:
                self._report(Blockage(late))
            # If this thread continued first after a stop, the next sign of life is late for the same reason.
            due, stopped, blockage = self._due, stopped_seconds, None

    def _report(self, blockage: Blockage) -> Blockage:
        self._on_blocked(blockage.task_type or "")
        _log_blockage(blockage)
        return blockage

    def _pause_and_measure_stop(self) -> float | None:
        """Pause; return for how many seconds of the pause the whole process was stopped, or None when the watch ends.

        A stopped process pauses this thread and uses no processor time meanwhile; code that keeps the interpreter lock
        uses some. The loop is not the cause of a stop.
        """
        began, used = time.monotonic(), time.process_time()
        if self._stopping.wait(self._pause):
            return None
        passed = time.monotonic() - began
        if passed <= 2 * self._pause:
            return 0.0
        return passed - max(self._pause, min(passed, time.process_time() - used))


def _find_blockage(seconds: float, loop: asyncio.AbstractEventLoop, thread_id: int) -> Blockage:
    task = asyncio.current_task(loop)
    attempt = None if task is None else context_of(task).get(running_code)
    task_type, task_id = (attempt.task_type, attempt.task_id) if attempt is not None else (None, None)
    return Blockage(seconds, task_type, task_id, _place(sys._current_frames().get(thread_id), task))


def _place(frame: FrameType | None, task: asyncio.Task[Any] | None) -> str | None:
    """Return where the loop is: the innermost place in the program's own code, otherwise in a package."""
    outermost = getattr(task.get_coro(), "cr_frame", None) if task is not None else None
    place, rank = None, 0
    while frame is not None and frame.f_code not in _LOOP_CODE:
        code = frame.f_code
        if (found := _rank(code.co_filename)) > rank:
            place, rank = f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}", found
        frame = None if frame is outermost else frame.f_back
    return place


def _rank(file: str) -> int:
    if is_of_the_standard_library(file):
        return 0
    return 1 if is_installed(file) or is_ours(file) else 2


def _log_blockage(blockage: Blockage) -> None:
    if blockage.task_type is not None:
        logger.warning(
            "the event loop is blocked, for %s so far, by task %s %s at %s; "
            "make execute a plain def, which runs in a thread, or set run_in='process'",
            duration_text(blockage.seconds),
            blockage.task_type,
            blockage.task_id,
            blockage.place,
            extra=_fields(blockage),
        )
    elif blockage.place is not None:
        text = "the event loop is blocked, for %s so far, by %s; run it with asyncio.to_thread"
        logger.warning(text, duration_text(blockage.seconds), blockage.place, extra=_fields(blockage))
    else:
        logger.warning(
            "the event loop was blocked for %s, and the cause could not be seen: the process or its machine "
            "was stopped or is overloaded, or C code held the interpreter lock",
            duration_text(blockage.seconds),
            extra=_fields(blockage),
        )


def _log_end(blockage: Blockage) -> None:
    logger.info("the event loop continues after %s", duration_text(blockage.seconds), extra=_fields(blockage))


def _fields(blockage: Blockage) -> dict[str, Any]:
    ids = {"task_type": blockage.task_type, "task_id": blockage.task_id, "blocked_at": blockage.place}
    return {
        "blocked_seconds": round(blockage.seconds, 3),
        **{name: value for name, value in ids.items() if value is not None},
    }
