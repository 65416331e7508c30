"""The end of a process, which does not wait for task code that hangs."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from typing import NoReturn

logger = logging.getLogger(__name__)

#: The usual exit code after Ctrl-C.
INTERRUPTED_EXIT_CODE = 130
#: Seconds that task code in threads and on the event loop has to end by itself, before the process ends without it.
_GRACE_SECONDS = 1.0


def exit_process(code: int) -> NoReturn:
    """End the process with this code, even if task code holds a thread that Python would wait for."""
    start_exit_timer(code)
    sys.exit(code)


def start_exit_timer(code: int, error: BaseException | None = None) -> threading.Timer:
    """End the process with this code after a second, unless the timer is cancelled before."""
    timer = threading.Timer(_GRACE_SECONDS, _end_without_waiting, [code, error])
    timer.daemon = True
    timer.start()
    return timer


def exit_now(code: int) -> NoReturn:
    """End the process at once, but flush its output first."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader of the output has ended, or the stream is closed
            stream.flush()
    os._exit(code)


def _end_without_waiting(code: int, error: BaseException | None) -> None:
    if code != INTERRUPTED_EXIT_CODE:  # after Ctrl-C the reason is known
        main = threading.main_thread()
        names = [thread.name for thread in threading.enumerate() if not (thread.daemon or thread is main)]
        logger.warning(
            "exiting without waiting for task code in threads: %s", ", ".join(names) or "none", exc_info=error
        )
    exit_now(code)
