"""The standard streams of a process, and its end, which does not wait for task code that hangs."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import traceback
from typing import NoReturn

logger = logging.getLogger(__name__)

#: The usual exit code after Ctrl-C.
INTERRUPTED_EXIT_CODE = 130
#: Where the names of modules begin whose code prints.
_PRINTING_MODULES = ("rich.", "typer.", "taskframework.cli.")
#: Seconds that task code in threads and on the event loop has to end by itself, before the process ends without it.
_GRACE_SECONDS = 1.0


def open_missing_streams() -> None:
    """Open the null device for each standard stream that whoever started the process has closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends


def write_rest() -> OSError | None:
    """Write the output that is still in memory. If it cannot be written, give it up, and return the error."""
    try:
        sys.stdout.flush()
    except OSError as error:
        give_output_up()
        return error
    return None


def give_output_up() -> None:
    """Write all further output to the null device. Otherwise Python tries to write it when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_about_output(error: OSError) -> bool:
    """Return whether an error was raised by code that prints, and names no file that it could not open."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return (
        bool(frames)
        and error.filename is None
        and str(frames[-1].f_globals.get("__name__")).startswith(_PRINTING_MODULES)
    )


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
        what = f"task code in threads: {', '.join(names)}" if names else "connections that do not close"
        logger.warning("exiting without waiting for %s", what, exc_info=error)
    exit_now(code)
