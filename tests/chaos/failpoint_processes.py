"""The processes of a failpoint scenario, one of them armed."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.chaos.cluster import Api, Cluster, Member, Worker, settings_of
from tests.chaos.forked import ForkedProcess
from tests.chaos.history import Recorder
from tests.support.forks import Forks

#: The process that serves HTTP, and the one that executes; embedded they are one.
Role = Literal["front", "back"]

_APP = ("--app", "tests.chaos.failpoint_tasks")
_PATIENCE = 120.0
_LOOK_SECONDS = 0.1
#: Repairs that are quick, and limits that a crowded machine does not reach on its own. Looking for repairs three times
#: as often made no scenario shorter, and on a crowded machine some of them failed.
_SETTINGS = {
    "WORKER__MAX_CRASHES": "50",
    "RECOVERY__SWEEP_INTERVAL": "600ms",
    "RECOVERY__RELAY_INTERVAL": "600ms",
    "RECOVERY__DISPATCH_GRACE": "1s",
    "RECOVERY__REDISPATCH": "1s",
    "RECOVERY__REDISPATCH_MAX": "2s",
    "RECOVERY__NO_HANDLER_DELAY": "300ms",
    "RECOVERY__NO_HANDLER_LIMIT": "2",
    "RETRY__INITIAL_DELAY": "100ms",
    "RETRY__MAX_ATTEMPTS": "50",
    "SHUTDOWN__AWAIT_TERMINATION_TIMEOUT": "300ms",
    "RATE_LIMITER__DEFAULT": '{"rate": 2}',
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is armed, and in which process."""

    point: str
    action: str
    role: Role
    #: Whether the other process starts after the fault only, so that nobody else can be the one who passes.
    is_alone: bool = False
    #: What else is armed, as in the environment.
    also: str = ""

    @property
    def verb(self) -> str:
        return self.action.partition(":")[0]

    @property
    def armed(self) -> str:
        """The first passage only: what comes after a fault goes well."""
        return f"{self.point}@1={self.action},{self.also}"

    @property
    def lease(self) -> str:
        """Short where it has to end, and long where nothing may lose it: a lost reply must not cost an attempt."""
        return "6s" if self.verb == "drop" else "1500ms"


class _Forked(Member):
    """A process of the command line that is forked instead of started from nothing."""

    forks: Forks

    def start(self) -> None:
        arguments = [*self._command, *self._arguments()]
        self._process = ForkedProcess(
            self.forks, arguments, log=self._log, environment=self._environment, folder=self._folder
        )


class _Api(_Forked, Api):
    """`taskframework api` or `dev`."""


class _Worker(_Forked, Worker):
    """`taskframework worker`."""


class Processes:
    """`api` and `worker`, or `dev` alone where everything is embedded."""

    def __init__(
        self, folder: Path, forks: Forks, recorder: Recorder, fault: Fault, settings: Mapping[str, str]
    ) -> None:
        """Prepare the processes.

        Args:
            folder: their working directory; their logs go there too.
            forks: starts them.
            recorder: told of what happens to them.
            fault: what is armed in one of them.
            settings: of all of them, on top of the usual ones.
        """
        self._folder = folder
        self._forks = forks
        self._recorder = recorder
        self._fault = fault
        self._settings = {**_SETTINGS, "WORKER__LEASE": fault.lease, **settings}
        self._is_embedded = "BROKER__URL" not in settings
        self._playing: dict[Role, Member] = {}
        self.cluster = Cluster(folder, recorder, {})

    @property
    def armed(self) -> Member:
        return self.cluster.members[0]

    @property
    def address(self) -> str:
        """Where HTTP is served."""
        return self._playing["front"].address

    async def start(self) -> None:
        """Start the armed one, and the other one beside it unless it is to be alone."""
        self._start(self._fault.role, FAILPOINTS=self._fault.armed)
        if not self._fault.is_alone:
            self._start_missing()
        await self._ready()

    async def complete(self) -> None:
        """Start anew, unarmed, what ended, and what was held back."""
        self._start_missing()
        await self._ready()

    async def stop_armed(self) -> None:
        """Tell the armed process to stop, and wait until it has ended, one way or the other."""
        os.kill(self.armed.pid, signal.SIGTERM)
        await until(lambda: not self.armed.is_alive, f"the end of {self.armed.name}")

    async def replace_armed(self) -> None:
        """Stop the armed process in order, if it still runs, and start another one in its place."""
        if self.armed.is_alive:
            await self.armed.stop()
        await self.complete()

    async def told(self, what: str) -> None:
        """Wait until the armed process says this of its failpoint."""
        told = f"failpoint {self._fault.point}: {what}"

        def is_told() -> bool:
            return any(line["event"] == told for line in self.armed.log_lines())

        await until(lambda: is_told() or not self.armed.is_alive, told)
        assert is_told(), f"{self.armed.name} ended without saying {told}"

    async def happened(self) -> None:
        """Wait until the fault happened, and write that down."""
        member, verb = self.armed, self._fault.verb
        await self.told(self._fault.action)
        self._recorder.record("fault.start", fault=verb, target=member.name, pids=[member.pid])
        if verb == "kill":
            await until(lambda: not member.is_alive, f"the end of {member.name}")
            assert member.exit_code == -signal.SIGKILL
        elif not member.is_alive:
            assert member.exit_code == 0

    def _start_missing(self) -> None:
        for role in ("front", "back"):
            if role not in self._playing or not self._playing[role].is_alive:
                self._start(role)

    def _start(self, role: Role, **settings: str) -> None:
        command = "dev" if self._is_embedded else "api" if role == "front" else "worker"
        make = _Worker if command == "worker" else _Api
        name = f"{command}-{len(self.cluster.members) + 1}"
        environment = settings_of({**self._settings, **settings})
        member = make(name, (command, *_APP), self._folder, self._recorder, environment)
        member.forks = self._forks
        self.cluster.members.append(member)
        member.start()
        roles: tuple[Role, ...] = ("front", "back") if self._is_embedded else (role,)
        self._playing.update(dict.fromkeys(roles, member))

    async def _ready(self) -> None:
        await asyncio.gather(*(member.ready() for member in set(self._playing.values())))


async def until(is_true: Callable[[], Awaitable[bool] | bool], what: str) -> None:
    """Wait.

    Raises:
        AssertionError: if it does not come true in time.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        answer = is_true()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        assert time.monotonic() < end, f"not within {_PATIENCE:g} s: {what}"
        await asyncio.sleep(_LOOK_SECONDS)
