"""Processes that tests start: free ports, room for data, a child that cannot outlive us, waiting for what shall be."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Below the range from which the kernel takes ports for outgoing connections: a client that keeps connecting to a
# stopped server on a port of that range ends up connected to itself, and the server cannot come back.
_PORTS = range(15_000, 32_000)
# Ports that this process was told are free: who asked may not listen yet. For the same reason each of the processes of
# one test run has numbers of its own.
_given: set[int] = set()
_part = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_parts = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

# The kernel's own file system in memory, and how many bytes must be free there for each server.
_MEMORY = Path("/dev/shm")
_ENOUGH = 4 * 2**30
_places: list[Path] = []

# Asks the kernel to kill the process with its parent, then becomes the wanted program. A preexec_fn would do the same
# but warns, rightly, when threads exist.
_LAUNCHER = """
import ctypes, os, signal, sys
parent, program = int(sys.argv[1]), sys.argv[2:]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the process that wanted this server is gone")
os.execvp(program[0], program)
"""

# For the kernel the parent is the thread that started a process, so a test that restarts a server from a short-lived
# thread would have it killed when that thread ends. This thread lives as long as we do.
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-starter")


class ServerUnavailable(Exception):  # noqa: N818 (says what is, not what went wrong)
    """A server cannot be had on this machine. The message says how to get one."""


class ServerFailed(Exception):  # noqa: N818
    """A server was started and did not become ready. The message ends with its log."""


def free_ports(count: int) -> list[int]:
    """Return ports on which nobody listens on the loopback interface."""
    ports: list[int] = []
    own = _PORTS[_part::_parts]
    for port in random.SystemRandom().sample(own, k=len(own)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.extend({port} - _given)
                _given.add(port)
        if len(ports) == count:
            return ports
    raise ServerFailed("no free ports between 15000 and 32000")


def accepts(port: int, greeting: bytes = b"") -> bool:
    """Whether somebody listens there; after a greeting, whether AMQP is spoken."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        if not greeting:
            return True
        connection.sendall(greeting)
        return connection.recv(1) == b"\x01"
    return False


def keep_data_in_memory() -> None:
    """Let servers that are made from now on keep their data in memory, where there is plenty of it.

    What a killed server wrote is there when it comes back, as on a disk: only a machine without power could tell the
    difference. A database and a broker that need not wait for the disk make most tests twice as quick.
    """
    if _MEMORY.is_dir():
        _places.append(_MEMORY)
        for folder in _MEMORY.glob("taskframework-*-*-*"):  # of test runs that were killed
            if not Path("/proc", folder.name.split("-")[2]).exists():
                shutil.rmtree(folder, ignore_errors=True)


def data_folder(server: str) -> Path:
    """A new folder for the data of a server, which removes it."""
    place = next((place for place in _places if shutil.disk_usage(place).free > _ENOUGH), None)
    return Path(tempfile.mkdtemp(prefix=f"taskframework-{server}-{os.getpid()}-", dir=place))


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie: who adopts an orphan need not have buried it yet."""
    if Path("/proc/self/stat").exists():
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False
    return subprocess.run(["ps", "-p", str(pid)], capture_output=True, check=False).returncode == 0


def wait_until(true: Callable[[], bool], what: str, *, timeout: float, alive: Callable[[], bool] | None = None) -> None:
    """Block until `true()` holds.

    Args:
        true: Polled every 50 ms.
        what: Names the awaited thing in the error.
        timeout: Seconds.
        alive: When given and false, waiting makes no sense any more.

    Raises:
        ServerFailed: The time is over, or `alive()` became false.
    """
    end = time.monotonic() + timeout
    while not true():
        if alive is not None and not alive():
            raise ServerFailed(f"{what}: the process has ended")
        if time.monotonic() > end:
            raise ServerFailed(f"{what}: not within {timeout:g} s")
        time.sleep(0.05)


class Process:
    """One child process, ended with us whatever happens to us."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Start `command`, in `folder` if given; what it prints is appended to the file `log`."""
        self._log = log
        with log.open("ab") as output:
            self._popen = _STARTER.submit(
                subprocess.Popen[bytes],
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                cwd=folder,
                start_new_session=True,  # Ctrl-C is for the tests; they stop the server in order
            ).result()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def wait(self, timeout: float) -> int:
        """Wait for the end of the process and return its exit code; it is negative for a signal.

        Raises:
            ServerFailed: It goes on after `timeout` seconds; the message ends with its log.
        """
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"it does not end within {timeout:g} s:\n{self.log_tail()}") from None

    def send(self, signal_number: int) -> None:
        """Send a signal to the process and its children; nothing happens if it is gone."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal_number)

    def pause(self) -> None:
        """Freeze the process and its children; it is frozen when this returns. A signal alone takes a moment."""
        self.send(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def end(self, signal_number: int, *, timeout: float) -> None:
        """Signal the process and wait for its end; after `timeout` seconds kill it."""
        self.send(signal_number)
        self.send(signal.SIGCONT)  # a paused process would not hear a polite signal
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._popen.wait()

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
