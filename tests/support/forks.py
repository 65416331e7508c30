"""The command line for little: one parent reads all the code once, and forks a process for each command.

A forked process runs the same `main` as `python -m taskframework`, in a session of its own, with its own signals,
environment, working directory and streams. It only saves the second that reading the code takes, which a suite of
hundreds of processes does not have. Run as a module this file is the parent; it obeys one JSON message after the other.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_PRELOADED = (
    "taskframework.__main__",
    "taskframework.cli.main",
    "taskframework.cli.dlq",
    "taskframework.cli.serve",
    "taskframework.cli.submit",
    "taskframework.cli.tasks",
    "taskframework.api.server",
    "taskframework.brokers.embedded",
    "taskframework.brokers.rabbitmq.broker",
    "taskframework.stores.mongo.store",
    "taskframework.stores.sqlite",
)
_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG
#: Bytes of the largest message: arguments and an environment.
_LONGEST = 2**18


class Forks:
    """The parent, as tests talk to it. May be used by many threads."""

    def __init__(self, *preloaded: str) -> None:
        """Start it; it ends with us.

        Args:
            preloaded: modules that it reads besides those of the command line.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST)
        with theirs:
            # Its streams are pipes, for what it reads may look at once at what kind they are; those of its children
            # are pipes or files, and both are written to like a pipe.
            self._popen = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), *preloaded],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
            )
        self._talking = threading.Lock()

    def start(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], streams: Sequence[int]
    ) -> Forked:
        """Start `taskframework` with these arguments; it reads and writes these three open files."""
        wanted = {"arguments": list(arguments), "folder": str(folder), "environment": dict(environment)}
        return Forked(self, int(self.ask(wanted, streams)))

    def ask(self, request: dict[str, Any], streams: Sequence[int] = ()) -> Any:
        with self._talking:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(streams))
            reply = self._socket.recv(_LONGEST)
        assert reply, f"the parent of commands has ended:\n{self._popen.communicate()[0].decode()}"
        return json.loads(reply)

    def close(self) -> None:
        """End it, and with it whatever it started and still runs."""
        self._popen.kill()
        with self._talking:  # who asked last may be reading what it said
            self._popen.wait()
            for stream in (self._popen.stdin, self._popen.stdout):
                if stream is not None:
                    stream.close()
            self._socket.close()


class Forked:
    """One process, with the exit code that its parent tells."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks = forks
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self._code is None:
            self._code = self._forks.ask({"ended": self.pid})
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it goes on after so many seconds.
        """
        if (code := self.poll()) is not None:
            return code
        descriptor = os.pidfd_open(self.pid)
        try:
            ended, _, _ = select.select([descriptor], [], [], timeout)
        finally:
            os.close(descriptor)
        if not ended:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        while (code := self.poll()) is None:
            pass
        return code


@cache
def commands() -> Forks:
    """The parent of the commands of this process of pytest."""
    forks = Forks()
    atexit.register(forks.close)
    return forks


def _obey(orders: socket.socket) -> None:
    """Fork and tell who has ended, as asked. Returns in the forked processes only."""
    gc.freeze()  # what is read stays shared
    while True:
        message, streams, _, _ = socket.recv_fds(orders, _LONGEST, 3)
        if not message:
            sys.exit()
        order = json.loads(message)
        if "ended" in order:
            orders.send(json.dumps(_ended(order["ended"])).encode())
        elif os.fork() == 0:
            _become(order, streams)
            # Not before it has a session of its own: who knows its id may send signals to all of that.
            orders.send(json.dumps(os.getpid()).encode())
            orders.close()
            return
        for descriptor in streams:
            os.close(descriptor)


def _ended(pid: int) -> int | None:
    """The exit code of a process that has ended; it is asked for once only."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(order: dict[str, Any], streams: Sequence[int]) -> None:
    """Be the process that was wanted, as `python -m taskframework` makes it."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for target, source in enumerate(streams):
        os.dup2(source, target)
        os.close(source)
    main = sys.modules["taskframework.__main__"]
    sys.modules["__main__"] = main
    sys.argv = [str(main.__file__), *order["arguments"]]
    sys.path[0] = order["folder"]
    sys.path.append(str(_ROOT))  # the tests' own task types


if __name__ == "__main__":
    for name in (*_PRELOADED, *sys.argv[2:]):
        importlib.import_module(name)
    _obey(socket.socket(fileno=int(sys.argv[1])))
    sys.modules["taskframework.__main__"].main()
