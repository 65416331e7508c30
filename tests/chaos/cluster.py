"""The processes under test: API and workers as their users start them, and the ways in which they are mistreated."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from taskframework.observability import task_log
from tests.chaos.forked import ForkedProcess
from tests.chaos.history import VARIABLE, Recorder
from tests.support.command import COMMAND, environment_with
from tests.support.forks import commands
from tests.support.process import Process, free_ports

_ROOT = Path(__file__).parents[2]
_START_TIMEOUT = 60.0

APP = "tests.chaos.tasks"


class MemberFailed(AssertionError):  # noqa: N818 - as its neighbours in tests/support
    """A process did not do what every process must."""


class Member:
    """One process, with a name that stays when it is started anew."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, recorder: Recorder, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self._command = command
        self._folder = folder
        self._recorder = recorder
        (self.port,) = free_ports(1)
        self._environment = environment_with(
            {**environment, "PYTHONPATH": str(_ROOT), VARIABLE: str(recorder.path), **self._own_settings()}
        )
        self._log = folder / f"{name}.log"
        self._log_start = 0
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive

    @property
    def exit_code(self) -> int:
        """Of a process that has ended; it is negative for a signal."""
        return self._running().wait(0)

    @property
    def is_ready(self) -> bool:
        """Whether it said so since its last start."""
        return self.is_alive and any(line["event"] == "ready" for line in self.log_lines(since_start=True))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, or start it anew. Returns at once."""
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        self._process = self._started([*self._command, *self._arguments()])

    def _started(self, command: list[str]) -> Process:
        """Forked, unless it is another program or has a library of its own: those start from nothing."""
        own = len(COMMAND)
        if tuple(command[:own]) != COMMAND or "LD_PRELOAD" in self._environment:
            return Process(command, log=self._log, environment=self._environment, folder=self._folder)
        return ForkedProcess(
            commands(), command[own:], log=self._log, environment=self._environment, folder=self._folder
        )

    async def ready(self) -> None:
        """Wait until it serves.

        Raises:
            MemberFailed: if it does not; with the end of its log.
        """
        end = time.monotonic() + _START_TIMEOUT
        while not self.is_ready:
            if not self.is_alive or time.monotonic() > end:
                raise MemberFailed(f"{self.name} is not ready:\n{self._running().log_tail()}")
            await asyncio.sleep(0.05)

    def kill(self) -> int:
        """End it with SIGKILL; return the id of the process that was."""
        pid = self.pid
        self._recorder.record("fault.start", fault="kill -9", target=self.name, pids=[pid])
        os.kill(pid, signal.SIGKILL)
        self._running().wait(10)
        return pid

    def pause(self) -> None:
        self._recorder.record("fault.start", fault="pause", target=self.name, pids=[self.pid])
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self._recorder.record("fault.stop", fault="pause", target=self.name, pids=[self.pid])

    async def stop(self, *, patience: float = 45.0) -> float:
        """End it in order; return the seconds it took. The exit code is for the checker."""
        with contextlib.suppress(MemberFailed):
            await self.ready()  # one that was only just started does not know the signal yet, and just ends
        began = time.monotonic()
        pid = self.pid
        self._recorder.record("fault.start", fault="SIGTERM", target=self.name, pids=[pid])
        os.kill(pid, signal.SIGTERM)
        code = await asyncio.to_thread(self._running().wait, patience)
        seconds = time.monotonic() - began
        self._recorder.record("process.end", target=self.name, code=code, seconds=seconds)
        return seconds

    def close(self) -> None:
        if self._process is not None:
            self._process.end(signal.SIGKILL, timeout=10)

    def log_lines(self, *, since_start: bool = False) -> list[dict[str, Any]]:
        """The JSON log lines so far, of all its lives or of the last one."""
        return [json.loads(line) for line in self._lines(since_start) if _is_whole(line)]

    def complaints(self) -> list[str]:
        """What was logged as an error, or written past the log by Python itself.

        What the framework expects to go wrong is a warning at most.
        """
        # That a task failed is told as an error too, and is what the truth is asked about.
        errors = [
            str(line)
            for line in self.log_lines()
            if line.get("level") in ("error", "critical") and line.get("logger") != task_log.__name__
        ]
        others = [line.decode() for line in self._lines(False) if not _is_whole(line)]
        return errors + [line for line in others if "Warning:" in line or "Traceback" in line]

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over its other labels, as the process tells it now."""
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            text = (await client.get(f"{self.address}/metrics")).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(
            sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items()
        )

    def _lines(self, since_start: bool) -> list[bytes]:
        if not self._log.exists():
            return []
        with self._log.open("rb") as log:
            log.seek(self._log_start if since_start else 0)
            return log.read().splitlines()

    def _own_settings(self) -> dict[str, str]:
        return {}

    def _arguments(self) -> list[str]:
        return []

    def _running(self) -> Process:
        if self._process is None:
            raise MemberFailed(f"{self.name} was not started")
        return self._process


class Api(Member):
    """`taskframework api`, or `dev` where there is only one process."""

    def _arguments(self) -> list[str]:
        return ["--port", str(self.port)]


class Worker(Member):
    """`taskframework worker`, with its own health checks and metrics."""

    def _own_settings(self) -> dict[str, str]:
        return {"TASKFRAMEWORK_WORKER__HTTP_PORT": str(self.port)}


class Cluster:
    """All processes of one scenario."""

    def __init__(self, folder: Path, recorder: Recorder, environment: Mapping[str, str]) -> None:
        """Prepare a cluster.

        Args:
            folder: working directory of its processes; their logs go there too.
            recorder: told of what is done to them.
            environment: their settings.
        """
        self._folder = folder
        self._recorder = recorder
        self._environment = environment
        self.members: list[Member] = []

    @property
    def workers(self) -> list[Worker]:
        return [member for member in self.members if isinstance(member, Worker)]

    @property
    def apis(self) -> list[Api]:
        return [member for member in self.members if isinstance(member, Api)]

    def add_api(self, *, command: Sequence[str] = (*COMMAND, "api", "--app", APP), **settings: str) -> Api:
        """Start an API process with further settings, such as `WORKER__LEASE="2s"`."""
        api = Api(f"api-{len(self.apis) + 1}", command, self._folder, self._recorder, self._with(settings))
        self._start(api)
        return api

    def add_worker(
        self,
        *,
        command: Sequence[str] = (*COMMAND, "worker", "--app", APP),
        environment: Mapping[str, str] | None = None,
        **settings: str,
    ) -> Worker:
        """Start a worker with further settings, and further variables in its environment."""
        name, own = f"worker-{len(self.workers) + 1}", {**self._with(settings), **(environment or {})}
        worker = Worker(name, command, self._folder, self._recorder, own)
        self._start(worker)
        return worker

    async def up(self, *, workers: int) -> list[Worker]:
        """Start an API and some workers, and return the workers when all serve."""
        self.add_api()
        for _ in range(workers):
            self.add_worker()
        await self.ready()
        return self.workers

    async def ready(self) -> None:
        await asyncio.gather(*(member.ready() for member in self.members))

    async def stop(self) -> None:
        """End what lives, in order."""
        await asyncio.gather(*(member.stop() for member in self.members if member.is_alive))

    def close(self) -> None:
        for member in self.members:
            member.close()

    def refused_writes(self) -> int:
        """Outcomes that were discarded because their lease was lost, by the logs of all lives of all processes."""
        lines = (line for member in self.members for line in member.log_lines())
        return sum("fencing token" in line["event"] and "discarded" in line["event"] for line in lines)

    def record_errors(self) -> None:
        """Write down what nobody reckoned with."""
        for member in self.members:
            for line in member.complaints():
                self._recorder.record("error", target=member.name, line=line)

    def _with(self, settings: Mapping[str, str]) -> dict[str, str]:
        return {**self._environment, **settings_of(settings)}

    def _start(self, member: Member) -> None:
        self.members.append(member)
        member.start()


def _is_whole(line: bytes) -> bool:
    """Whether it is a log line, and all of it: a process may be killed while it writes."""
    return line.startswith(b"{") and line.endswith(b"}")


def settings_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings as environment variables: `WORKER__LEASE` becomes `TASKFRAMEWORK_WORKER__LEASE`."""
    return {f"TASKFRAMEWORK_{name}": value for name, value in settings.items()}
