"""Task code that forks: the forked process ends where the task code ends."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from types import TracebackType


class ForkedProcessesEnd:
    """Context manager around task code: a process that the code forked ends where the code ends.

    Otherwise it would continue as a second worker, on the same connections and with the same claim. Its exit code is
    the argument of `sys.exit`, 0 if the code returned, and 1 after any other exception.
    """

    def __enter__(self) -> None:
        self._process = os.getpid()

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        if os.getpid() != self._process:
            _end(error or SystemExit(0))


def _end(error: BaseException) -> None:
    code = error.code if isinstance(error, SystemExit) else 1
    with contextlib.suppress(Exception):  # end the process even if this cannot be written
        if not isinstance(error, SystemExit):
            traceback.print_exception(error)
        elif isinstance(code, str):
            sys.stderr.write(f"{code}\n")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))
