"""The parent of `worker --processes N`: starts worker processes, restarts those that die, stops all in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from taskframework.background import end
from taskframework.cli.process import StopRequest
from taskframework.cli.systemd import notify_ready, notify_stopping
from taskframework.cli.tether import Answer, Failure, WorkerLink
from taskframework.errors import ConfigurationError, TaskframeworkError
from taskframework.observability.logs import configure_logging
from taskframework.settings import Settings
from taskframework.wiring.extras import require_extra

logger = logging.getLogger(__name__)

#: Seconds before a process that died is started again: from the first pause, doubled each time up to the longest.
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.5, 30.0
#: A process that lived for so many seconds was healthy; after its death the first pause is used again.
_HEALTHY_SECONDS = 60.0
#: Seconds beyond the grace of its tasks that a process has to stop: to hand unfinished tasks back and to close.
_STOP_MARGIN_SECONDS = 10.0
#: Seconds to read the last lines of a process. Otherwise a child that keeps the tether open would block the parent.
_FINAL_READ_SECONDS = 1.0

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def process_count(settings: Settings) -> int:
    """The number of worker processes that the settings ask for.

    Raises:
        ConfigurationError: if they ask for several, and broker or store are embedded.
    """
    process_setting = settings.worker.processes
    embedded = [
        part
        for part, scheme in (("broker", settings.broker.scheme), ("store", settings.store.scheme))
        if scheme in ("embedded", "sqlite")
    ]
    if process_setting in ("auto", 0):
        return 1 if embedded else usable_cpus()
    count = int(process_setting)
    if count > 1 and embedded:
        raise ConfigurationError(
            f"{count} worker processes cannot share an embedded {' and '.join(embedded)}: it allows only one process.",
            key="worker.processes",
            hint="Set broker.url to RabbitMQ and store.url to MongoDB, or leave worker.processes at 1.",
        )
    return count


def usable_cpus() -> int:
    """The CPUs that this process may use: those it is bound to, or fewer if its container has a quota."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = _CPU_QUOTA.read_text().split()
        cpus = min(cpus, -(-int(quota) // int(period)))
    return max(1, cpus)


def pause_before_restart(deaths: int, random_factor: float) -> float:
    """Seconds to wait after so many deaths in a row; `random_factor` (0 to 1) spreads restarts after common deaths."""
    return min(_MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(deaths - 1, 16)) * (1 + random_factor) / 2


def supervise(settings: Settings, command: Sequence[str], count: int) -> None:
    """Keep so many worker processes running until SIGTERM or SIGINT; a second signal kills them at once.

    Args:
        settings: the settings of the parent; each process reads its own.
        command: starts one process; `--tether` and a file descriptor are added to it.
        count: the number of processes.

    Raises:
        TaskframeworkError: if a process cannot start.
        SystemExit: with 1, if a process did not stop in order.
    """
    configure_logging(settings.observability, {"pid": os.getpid()})
    if not asyncio.run(Supervisor(settings, command, count).run()):
        raise SystemExit(1)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended."""

    #: The exit code, negative for a signal.
    code: int
    was_ready: bool = False
    #: The reason why it could not start, if it gave one.
    failure: Failure | None = None
    pid: int | None = None

    @property
    def is_clean(self) -> bool:
        """Whether it stopped in order after a request to stop; of a process that was not ready yet, any end is."""
        return self.code == 0 or not (self.was_ready or self.code == -signal.SIGKILL)

    @property
    def fields(self) -> dict[str, object]:
        """The fields for the log."""
        names = {int(number): number.name for number in signal.Signals}  # real-time signals have no names
        fields: dict[str, object] = {"code": self.code}
        if self.code < 0:
            fields = {"signal": names.get(-self.code, -self.code)}
        if self.pid is not None:
            fields["child_pid"] = self.pid
        return fields if self.failure is None else {**fields, "reason": self.failure.message}


class WorkerProcess:
    """One of the worker processes, through all its restarts."""

    def __init__(self, number: int, command: Sequence[str], on_ready: Callable[[], None]) -> None:
        self.number = number
        self.is_ready = False
        self.restarts = 0
        self.pid: int | None = None
        self._command = command
        self._on_ready = on_ready
        self._link = WorkerLink(self._set_ready)

    async def run_once(self) -> Ending:
        """Start the process and wait for its end."""
        own_end, child_end = socket.socketpair()
        link = self._link = WorkerLink(self._set_ready)
        descriptor = child_end.fileno()
        command = [*self._command, "--tether", str(descriptor)]
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, pass_fds=[descriptor])
        except OSError as error:
            own_end.close()
            return Ending(1, failure=Failure(f"No process could be started: {error}.", "", may_pass=True))
        finally:
            child_end.close()
        self.pid = process.pid
        logger.info("started a process", extra={"number": self.number, "child_pid": self.pid})
        listener = asyncio.create_task(link.listen(own_end))
        code = await process.wait()
        self.pid = None
        await asyncio.wait([listener], timeout=_FINAL_READ_SECONDS)
        await end(listener)
        was_ready, self.is_ready = self.is_ready, False
        return Ending(code, was_ready, link.failure, process.pid)

    @property
    def is_stopping(self) -> bool:
        return self._link.is_stop_requested

    async def ask(self, path: str, *, within: float) -> Answer | None:
        """Ask the process for a path of the health checks; None if it does not answer within so many seconds."""
        return await self._link.ask(path, within=within)

    def request_stop(self) -> None:
        """Ask the process to stop."""
        self._link.request_stop()

    def kill(self) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _set_ready(self) -> None:
        self.is_ready = True
        self._on_ready()


class Supervisor:
    """Runs the processes until a stop is asked for, or until a process can never start."""

    def __init__(self, settings: Settings, command: Sequence[str], count: int) -> None:
        self._settings = settings
        self.processes = [WorkerProcess(number + 1, command, self._log_when_all_ready) for number in range(count)]
        self._was_ready = False
        self._failure: Failure | None = None
        self._is_clean = True
        self._stop: StopRequest

    async def run(self) -> bool:
        """Run until a stop is asked for, then stop all processes.

        Returns:
            Whether all processes stopped in order.

        Raises:
            TaskframeworkError: if a process cannot start.
        """
        self._stop = StopRequest(self._kill_all)
        self._stop.is_opening = False
        async with contextlib.AsyncExitStack() as stack:
            if self._settings.worker.http_port is not None:
                require_extra("api", "worker.http_port")
                from taskframework.api.server import serving_health  # here: nothing else needs an HTTP server
                from taskframework.cli.joint_health import create_joint_health_app

                health = create_joint_health_app(self.processes)
                await stack.enter_async_context(serving_health(health, self._settings.worker))
            logger.info("starting", extra={"role": "worker", "processes": len(self.processes)})
            await self._supervise_all()
        if self._failure is not None:
            raise TaskframeworkError(self._failure.message, hint=self._failure.hint)
        logger.info("stopped")
        return self._is_clean

    async def _supervise_all(self) -> None:
        supervising = [asyncio.create_task(self._supervise(process)) for process in self.processes]
        stop_requested = asyncio.create_task(self._stop.requested.wait())
        await asyncio.wait([stop_requested, *supervising], return_when=asyncio.FIRST_COMPLETED)
        self._stop.request(cause="an error in the parent process")  # unless it was asked already
        await stop_requested
        notify_stopping()
        for process in self.processes:
            process.request_stop()
        grace = self._settings.shutdown.await_termination_timeout.total_seconds()
        await asyncio.wait(supervising, timeout=grace + _STOP_MARGIN_SECONDS)
        self._kill_all()
        await asyncio.gather(*supervising)

    async def _supervise(self, process: WorkerProcess) -> None:
        deaths = 0
        while not self._stop.requested.is_set():
            began = time.monotonic()
            ending = await process.run_once()
            deaths = 1 if time.monotonic() - began >= _HEALTHY_SECONDS else deaths + 1
            if self._stop.requested.is_set():
                if not ending.is_clean:
                    self._is_clean = False
                    logger.warning("a process did not stop cleanly", extra={"number": process.number, **ending.fields})
            elif ending.failure is not None and not (ending.failure.may_pass and self._was_ready):
                self._failure = ending.failure
                self._stop.request(cause=f"process {process.number} cannot start")
            else:
                await self._wait_before_restart(process, ending, pause_before_restart(deaths, random.random()))

    async def _wait_before_restart(self, process: WorkerProcess, ending: Ending, seconds: float) -> None:
        fields = {"number": process.number, **ending.fields, "seconds": round(seconds, 2)}
        logger.warning("a process ended; restarting it", extra=fields)
        process.restarts += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.requested.wait()

    def _log_when_all_ready(self) -> None:
        if not self._was_ready and all(process.is_ready for process in self.processes):
            self._was_ready = True
            pids = [process.pid for process in self.processes]
            logger.info("ready", extra={"role": "worker", "processes": len(pids), "pids": pids})
            notify_ready()

    def _kill_all(self) -> None:
        for process in self.processes:
            process.kill()
