"""The stage: servers for the whole run, and a fresh virtual host and database for each trial."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.contenders import PROGRAMS
from tests.support.mongo import MongoServer
from tests.support.process import Process, ServerFailed
from tests.support.rabbit import RabbitServer
from tests.support.redis import RedisServer

ROOT = Path(__file__).resolve().parents[2]
#: All results are there when workers are stopped, so that one that takes its time can be killed.
_END_TIMEOUT = 5.0


class Stage:
    """The servers of a run."""

    def __init__(self, *, with_redis: bool) -> None:
        self.rabbit = RabbitServer()
        self.mongo = MongoServer()
        self.redis = RedisServer() if with_redis else None
        self._folder = tempfile.TemporaryDirectory(prefix="taskframework-bench-")

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    def server_pids(self, *, on_redis: bool) -> dict[str, int]:
        """The servers that a contender uses, by name."""
        if on_redis:
            return {"redis": self.redis.pid} if self.redis else {}
        return {"rabbitmq": self.rabbit.pid, "mongodb": self.mongo.pid}

    def start(self) -> None:
        self.mongo.start()
        self.rabbit.start()
        if self.redis is not None:
            self.redis.start()

    def close(self) -> None:
        for server in (self.rabbit, self.mongo, self.redis):
            if server is not None:
                server.close()
        self._folder.cleanup()

    @contextlib.contextmanager
    def place(self) -> Iterator[dict[str, str]]:
        """A fresh virtual host, database and Redis; gives the variables that lead a program there."""
        vhost, database = self.rabbit.new_vhost(), f"bench-{secrets.token_hex(4)}"
        try:
            yield {
                "BENCH_AMQP_URL": self.rabbit.url_of(vhost),
                "BENCH_MONGO_URL": self.mongo.url_of(database),
                "BENCH_REDIS_URL": f"redis://127.0.0.1:{self.redis.port if self.redis else 0}/0",
                "TASKFRAMEWORK_BROKER__URL": self.rabbit.url_of(vhost),
                "TASKFRAMEWORK_STORE__URL": self.mongo.url_of(database),
            }
        finally:
            self.rabbit.delete_vhost(vhost)
            self.mongo.drop_database(database)
            if self.redis is not None:
                self.redis.flush()


@dataclass(frozen=True, slots=True)
class Program:
    """A contender as the runner sees it: what its program says of itself, and how to start it."""

    name: str
    description: dict[str, Any]

    @classmethod
    def load(cls, name: str) -> Program:
        """Ask a contender's program what it is.

        Raises:
            ServerFailed: It does not run.
        """
        command = [*_command(name), "describe"]
        if not Path(command[0]).exists():
            raise ServerFailed(f"{name} has no environment {PROGRAMS[name]} to run in: `make bench` makes it")
        done = subprocess.run(command, cwd=ROOT, env=environment({}), capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerFailed(f"{name} does not run:\n{done.stderr}")
        return cls(name, json.loads(done.stdout))

    @property
    def on_redis(self) -> bool:
        return bool(self.description["on_redis"])

    def tasks(self, wanted: int) -> int:
        """How many of the wanted tasks this contender gets."""
        return int(wanted * self.description["share"])

    @contextlib.contextmanager
    def client(self, stage: Stage, place: dict[str, str]) -> Iterator[Client]:
        """Its program, serving our requests."""
        with (stage.folder / f"{self.name}-client.log").open("ab") as log:
            popen = subprocess.Popen(
                _command(self.name),
                cwd=stage.folder,
                env=environment(place),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            yield Client(popen, Path(log.name))
        finally:
            popen.kill()
            popen.communicate()

    @contextlib.contextmanager
    def workers(self, stage: Stage, place: dict[str, str], processes: int) -> Iterator[Workers]:
        """Its workers, running. At the end they are asked to stop, then made to."""
        log = stage.folder / f"{self.name}-worker.log"
        commands: Sequence[Sequence[str]] = self.description["workers"][str(processes)]
        started = [
            Process(command, log=log, folder=stage.folder, environment=environment(place)) for command in commands
        ]
        try:
            yield Workers(started)
        finally:
            for process in started:
                process.send(signal.SIGTERM)
            for process in started:
                process.end(signal.SIGTERM, timeout=_END_TIMEOUT)
                process.send(signal.SIGKILL)


class Workers:
    """The worker processes of one contender."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def wait(self, true: Callable[[], bool], what: str, *, timeout: float, look: float = 0.02) -> None:
        """Block until something they do is done.

        Raises:
            ServerFailed: The time is over or a worker has ended; the message ends with its log.
        """
        end = time.monotonic() + timeout
        while not true():
            if time.monotonic() > end or not all(process.is_alive for process in self._processes):
                raise ServerFailed(f"{what}: this did not come\n{self._processes[0].log_tail()}")
            time.sleep(look)


class Client:
    """A contender's program that answers one request at a time."""

    def __init__(self, popen: subprocess.Popen[str], log: Path) -> None:
        self._popen = popen
        self._log = log

    def ask(self, what: str, **arguments: Any) -> Any:
        """Have something done and wait for the answer.

        Raises:
            ServerFailed: The program has ended; the message ends with its log.
        """
        self.begin(what, **arguments)
        return self.answer()

    def begin(self, what: str, **arguments: Any) -> None:
        """Have something done; `answer()` waits for its end."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` tells why
            self._popen.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self._popen.stdin.flush()

    def answer(self) -> Any:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise ServerFailed("\n".join(self._log.read_text(errors="replace").splitlines()[-20:]))
        return json.loads(line)


def _command(name: str) -> list[str]:
    return [str(ROOT / PROGRAMS[name] / "bin" / "python"), "-m", f"tests.benchmarks.contenders.{name}"]


def environment(place: dict[str, str]) -> dict[str, str]:
    """The caller's, without what would configure a contender behind our back."""
    foreign = ("TASKFRAMEWORK_", "CELERY_", "DRAMATIQ_", "BENCH_", "PYTHON")
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith(foreign)}
    return {**inherited, **place, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}
