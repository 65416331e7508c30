"""A private Redis for tests and benchmarks."""

from __future__ import annotations

import atexit
import shutil
import signal
import socket
from collections.abc import Mapping
from types import MappingProxyType

from tests.support.process import Process, ServerUnavailable, data_folder, free_ports, wait_until


class RedisServer:
    """One server in a temporary folder."""

    def __init__(self, *, is_durable: bool = True, options: Mapping[str, object] = MappingProxyType({})) -> None:
        """Prepare a server without starting it.

        Args:
            is_durable: whether it writes every command to disk; if not, it forgets everything with its end.
            options: Further ones by name.

        Raises:
            ServerUnavailable: No redis-server on this machine.
        """
        program = shutil.which("redis-server")
        if program is None:
            raise ServerUnavailable("Redis is not on this machine: install the package redis-server")
        self._program = program
        self._appends = "yes" if is_durable else "no"
        self._options = options
        self._folder = data_folder("redis")
        (self.port,) = free_ports(1)
        self._process: Process | None = None
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        assert self._process is not None, "call start() first"
        return self._process.pid

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server and return when it answers."""
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self._folder, "save": "", "appendonly": self._appends}
        options |= self._options
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        process = self._process = Process([self._program, *arguments], log=self._folder / "redis.log")
        wait_until(self._answers, "Redis answers", timeout=10, alive=lambda: process.is_alive)

    def flush(self) -> None:
        """Forget everything."""
        self._ask(b"FLUSHALL\r\n")

    def kill(self) -> None:
        """End the server as `kill -9` does; `start` starts it again, on the same port."""
        if self._process is not None:
            self._process.end(signal.SIGKILL, timeout=10)
            self._process = None

    def close(self) -> None:
        """End the server and remove its folder; safe to call twice."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        atexit.unregister(self.close)

    def _answers(self) -> bool:
        try:
            return self._ask(b"PING\r\n").startswith(b"+PONG")
        except OSError:
            return False

    def _ask(self, command: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(command)
            return connection.recv(100)
