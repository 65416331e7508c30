"""The end of the program: frameworks stay open until the threads that may still use them are done.

Python calls the functions of `threading._register_atexit` when the main thread has ended, before it waits for other
threads and for executors. Stores need executors to close, and executors take no work after that. So this module does
the waiting itself, and closes the frameworks then.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from taskframework.errors import NotRunningError

logger = logging.getLogger(__name__)

#: The beginning of the names of this package's threads. They work for others, so the end does not wait for them.
THREAD_NAME = "taskframework"
_at_exit: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
_LOOK_SECONDS = 0.01
#: Seconds after the last call during which a thread may call again. Not longer: some threads wait for the end of the
#: main thread, which Python shows only after this. Each such program ends later by this time.
_MAX_PAUSE_SECONDS = 1.0


class ProgramEndsError(NotRunningError):
    """The program is ending, and the framework is closed."""

    hint = "Wait for the threads and executors that submit before the main thread ends; submit nothing in `atexit`."

    def __init__(self) -> None:
        super().__init__("The program is ending, so the framework is closed.")


class Closable(Protocol):
    """What may be open until the program ends."""

    @property
    def executes(self) -> bool:
        """Whether it executes tasks, and so keeps the threads of executors busy itself."""

    def close(self) -> None: ...

    def last_use(self) -> float | None:
        """When a thread for which Python waits used it last, in monotonic seconds; None if not at all."""


class ProgramEnd:
    """What happens at the end of the program."""

    def __init__(self) -> None:
        self._closables = weakref.WeakSet[Closable]()
        self._is_registered = False
        self._has_ended = False
        self._has_warned = False

    def add(self, closable: Closable) -> None:
        """Close this at the end of the program. If the main thread has ended already, it cannot be opened any more."""
        self._closables.add(closable)
        if not self._is_registered:
            try:
                _at_exit(self._end)
                self._is_registered = True
            except RuntimeError:  # Python takes no more functions
                self._has_ended = True

    def require_running(self) -> None:
        """Require that frameworks may still be opened.

        Raises:
            ProgramEndsError: if the program is ending.
        """
        if self._has_ended or sys.is_finalizing():
            raise self.refusal()

    def refusal(self) -> ProgramEndsError:
        """Make the error of a call that comes too late. The first is logged: the error of an executor may go unread."""
        error = ProgramEndsError()
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s", error)
        return error

    def _end(self) -> None:
        try:
            if self._closables:
                self._wait_for_other_threads()
        finally:  # also after Ctrl-C
            self._has_ended = True
            for closable in list(self._closables):
                closable.close()

    def _wait_for_other_threads(self) -> None:
        """Wait for the threads for which Python waits next, until executors have no more work, and the others have
        ended or make no more calls.
        """
        was_idle = False
        while True:
            queues = {} if any(closable.executes for closable in self._closables) else _queues_of_executors()
            others = [thread for thread in threading.enumerate() if _is_awaited(thread)]
            is_idle = not any(
                _is_busy(thread, queues[thread]) if thread in queues else self._is_used() for thread in others
            )
            if is_idle and was_idle:  # twice: an executor's thread may have taken its next job at this moment
                return
            was_idle = is_idle
            time.sleep(_LOOK_SECONDS)

    def _is_used(self) -> bool:
        uses = [last for closable in list(self._closables) if (last := closable.last_use()) is not None]
        return bool(uses) and time.monotonic() - max(uses) < _MAX_PAUSE_SECONDS


#: Of this program.
PROGRAM_END = ProgramEnd()


def _is_awaited(thread: threading.Thread) -> bool:
    if thread.daemon or thread in (threading.main_thread(), threading.current_thread()):
        return False
    # A thread that manages an executor's processes ends only when Python tells it.
    processes = getattr(sys.modules.get("concurrent.futures.process"), "_threads_wakeups", ())
    return not thread.name.startswith(THREAD_NAME) and thread not in processes


def _queues_of_executors() -> dict[threading.Thread, Any]:
    """For each thread of an executor the queue from which it takes its jobs."""
    return dict(getattr(concurrent.futures.thread, "_threads_queues", {}))


def _is_busy(thread: threading.Thread, jobs: Any) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    waits_for_job = frame is None or frame.f_code is concurrent.futures.thread._worker.__code__
    return not (waits_for_job and jobs.empty())
