"""Many processes for little: one parent reads all the code once, and forks a process for each that is wanted.

A forked process runs the same `main` as the command line, in a session of its own, with its own signals, environment,
working directory and log. It only saves the second that reading the code takes, which a suite of two hundred
processes does not have. Run as a module this file is the parent; it obeys one JSON line after the other.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.process import Process, ServerFailed

_ROOT = Path(__file__).parents[2]
_PRELOADED = (
    "taskframework.cli.main",
    "taskframework.cli.serve",
    "taskframework.cli.submit",
    "taskframework.api.server",
    "taskframework.brokers.embedded",
    "taskframework.brokers.rabbitmq.broker",
    "taskframework.stores.mongo.store",
    "taskframework.stores.sqlite",
    "tests.chaos.failpoint_tasks",
)
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG
_LOOK_SECONDS = 0.02


class Forks:
    """The parent, as the harness talks to it. May be used by many threads."""

    def __init__(self) -> None:
        """Start it; it ends with us."""
        self._popen = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT
        )
        self._talking = threading.Lock()

    def start(self, arguments: Sequence[str], *, log: Path, environment: dict[str, str], folder: Path) -> ForkedProcess:
        """Start `taskframework` with these arguments; what it prints is appended to `log`."""
        wanted = {"arguments": list(arguments), "log": str(log), "environment": environment, "folder": str(folder)}
        return ForkedProcess(self, self.ask(wanted), log)

    def ask(self, request: dict[str, Any]) -> Any:
        with self._talking:
            assert self._popen.stdin
            assert self._popen.stdout
            self._popen.stdin.write(json.dumps(request).encode() + b"\n")
            self._popen.stdin.flush()
            return json.loads(self._popen.stdout.readline())

    def close(self) -> None:
        """End it, and with it whatever it started and still runs."""
        self._popen.kill()
        self._popen.communicate()


class ForkedProcess(Process):
    """One process, with the exit code that its parent tells."""

    def __init__(self, forks: Forks, pid: int, log: Path) -> None:
        self._forks = forks
        self._pid = pid
        self._log = log
        self._code: int | None = None

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def is_alive(self) -> bool:
        if self._code is None:
            self._code = self._forks.ask({"ended": self._pid})
        return self._code is None

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while self.is_alive:
            if time.monotonic() > end:
                raise ServerFailed(f"it does not end within {timeout:g} s:\n{self.log_tail()}")
            time.sleep(_LOOK_SECONDS)
        assert self._code is not None
        return self._code

    def end(self, signal_number: int, *, timeout: float) -> None:
        self.send(signal_number)
        self.wait(timeout)


def _obey() -> None:
    """Fork and tell who has ended, as asked on standard input. Returns in the forked processes only."""
    orders, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    gc.freeze()  # what is read stays shared
    for line in orders:
        order = json.loads(line)
        reply = _ended(order["ended"]) if "ended" in order else os.fork()
        if reply == 0 and "ended" not in order:
            orders.close()
            replies.close()
            _become(order)
            return
        replies.write(json.dumps(reply).encode() + b"\n")
    sys.exit()


def _ended(pid: int) -> int | None:
    """The exit code of a process that has ended; it is asked for once only."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(order: dict[str, Any]) -> None:
    """Be the process that was wanted."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    sys.argv = ["taskframework", *order["arguments"]]


if __name__ == "__main__":
    for name in _PRELOADED:
        importlib.import_module(name)
    _obey()
    sys.modules["taskframework.cli.main"].main()
