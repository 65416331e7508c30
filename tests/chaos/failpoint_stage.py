"""The stage of a failpoint scenario: its processes, one of them armed, and what its story can do to them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

import aio_pika
import httpx

from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.stores.mongo.store import MongoStore
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.factories import new_task
from tests.chaos.checker import Report, check
from tests.chaos.cluster import Api, Cluster, Member, Worker, settings_of
from tests.chaos.failpoint_forks import Forks
from tests.chaos.failpoint_tasks import STEP
from tests.chaos.history import Recorder, read
from tests.chaos.listener import Listener
from tests.chaos.story import FINAL_STATUSES
from tests.chaos.truth import MongoTruth, SqliteTruth, Truth

#: The process that serves HTTP, and the one that executes; embedded they are one.
Role = Literal["front", "back"]

_APP = ("--app", "tests.chaos.failpoint_tasks")
_QUEUES = ("tasks.probe.high", "tasks.probe.normal", "tasks.probe.low", "tasks.dlq")
_PATIENCE = 40.0
_LOOK_SECONDS = 0.1
_AGO = timedelta(seconds=1)
#: Repairs that are quick, and limits that a crowded machine does not reach by its own.
_SETTINGS = {
    "WORKER__MAX_CRASHES": "8",
    "RECOVERY__SWEEP_INTERVAL": "200ms",
    "RECOVERY__RELAY_INTERVAL": "200ms",
    "RECOVERY__DISPATCH_GRACE": "1s",
    "RECOVERY__REDISPATCH": "1s",
    "RECOVERY__REDISPATCH_MAX": "2s",
    "RECOVERY__NO_HANDLER_DELAY": "300ms",
    "RECOVERY__NO_HANDLER_LIMIT": "2",
    "RETRY__INITIAL_DELAY": "100ms",
    "RETRY__MAX_ATTEMPTS": "9",
    "SHUTDOWN__AWAIT_TERMINATION_TIMEOUT": "300ms",
}


@dataclass(frozen=True, slots=True)
class Servers:
    """Where a scenario has a virtual host and a database of its own."""

    amqp_url: str
    mongo_url: str


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
        self._process = self.forks.start(arguments, log=self._log, environment=self._environment, folder=self._folder)


class _Api(_Forked, Api):
    """`taskframework api` or `dev`."""


class _Worker(_Forked, Worker):
    """`taskframework worker`."""


class Stage:
    """A context manager around the processes of one scenario."""

    def __init__(
        self, folder: Path, forks: Forks, fault: Fault, servers: Servers | None, settings: Mapping[str, str]
    ) -> None:
        """Prepare a stage.

        Args:
            folder: working directory of the processes, with their logs and the history.
            forks: starts the processes.
            fault: what happens to one of them.
            servers: RabbitMQ and MongoDB; None for the embedded broker and SQLite.
            settings: of all processes, on top of the usual ones.
        """
        folder.mkdir(parents=True)
        self.fault = fault
        self._forks = forks
        self.amqp_url = servers.amqp_url if servers else None
        #: How every task ends.
        self.expected = "COMPLETED"
        #: Claims besides each task's first, if the fault costs none.
        self.repeats = 0
        #: Outcomes that must be refused because their attempt was overtaken.
        self.refusals = 0
        self.claims_repeated = self.refused = 0
        self._folder = folder
        self._recorder = Recorder(folder / "history.jsonl", "harness")
        self.store: TaskStore
        self._truth: Truth
        if servers:
            self.store, self._truth = MongoStore(servers.mongo_url), MongoTruth(servers.mongo_url)
            places = {"BROKER__URL": servers.amqp_url, "STORE__URL": servers.mongo_url}
        else:
            file = folder / "tasks.db"
            self.store, self._truth = SqliteStore(file), SqliteTruth(file)
            places = {"STORE__URL": f"sqlite:///{file}"}
        self._settings = {**_SETTINGS, "WORKER__LEASE": fault.lease, **places, **settings}
        self._cluster = Cluster(folder, self._recorder, {})
        self._listener = Listener(servers.amqp_url, self._recorder) if servers else None
        self._wanted: dict[str, dict[str, Any]] = {}
        self._processes: dict[Role, Member] = {}

    async def __aenter__(self) -> Self:
        try:
            if self._listener is not None:
                await self._listener.start()
            await self.store.open()
            self._start(self.fault.role, FAILPOINTS=self.fault.armed)
            if not self.fault.is_alone:
                self._start_missing()
            await self._ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._cluster.close)
        if self._listener is not None:
            await self._listener.stop()
        await self.store.close()
        self._truth.close()
        self._recorder.close()

    @property
    def armed(self) -> Member:
        return self._cluster.members[0]

    async def submit(self, count: int = 1, **parameters: Any) -> None:
        """Submit at once so many tasks with these parameters; a process that dies meanwhile answers later."""
        for _ in range(count):
            name = f"s{len(self._wanted)}"
            self._wanted[name] = {"task_type": "probe", "parameters": parameters, "correlation_id": name}
            self._recorder.record("submit.invoke", submission=name)
        await self._submit(list(self._wanted)[-count:])

    async def plant(self, **fields: Any) -> Task:
        """Store a task as a process without a broker does: due at once, for any sweeper."""
        name = f"p{len(await self.documents())}"
        self._recorder.record("submit.invoke", submission=name)
        fields = {"task_type": "probe", "parameters": {}, "correlation_id": name, **fields}
        # Some time ago, since our idea of the store's clock may be early.
        task = new_task(now=self.store.now() - _AGO, dispatch_after=timedelta(0), **fields)
        await self.store.insert(task)
        self._recorder.record("submit.ok", submission=name, status=202, task=task.task_id)
        return task

    async def post(self, path: str) -> int | None:
        """Ask the API for something; None when it dies over it."""
        with contextlib.suppress(httpx.TransportError):
            async with self._client() as client:
                return (await client.post(path)).status_code
        return None

    async def only_task(self) -> str:
        """The id of the one task there is."""
        [document] = await self.documents()
        return str(document["_id"])

    async def all_are(self, status: str) -> None:
        """Wait until every task has this status."""

        async def are() -> bool:
            return {document["status"] for document in await self.documents()} == {status}

        await _until(are, f"all are {status}")

    async def documents(self) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self._truth.documents)

    def touch(self, name: Path) -> None:
        """Make a file that the task code looks for."""
        (self._folder / name).touch()

    def steps_done(self) -> int:
        """How often a step was really done."""
        return sum(seen.kind == STEP for seen in read(self._recorder.path))

    async def stop_armed(self) -> None:
        """Tell the armed process to stop, and wait until it has ended, one way or the other."""
        os.kill(self.armed.pid, signal.SIGTERM)
        await _until(lambda: not self.armed.is_alive, f"the end of {self.armed.name}")

    async def told(self, what: str) -> None:
        """Wait until the armed process says this of its failpoint."""
        told = f"failpoint {self.fault.point}: {what}"

        def is_told() -> bool:
            return any(line["event"] == told for line in self.armed.log_lines())

        await _until(lambda: is_told() or not self.armed.is_alive, told)
        assert is_told(), f"{self.armed.name} ended without saying {told}"

    async def happened(self) -> None:
        """Wait until the fault happened, and write that down."""
        member = self.armed
        await self.told(self.fault.action)
        self._recorder.record("fault.start", fault=self.fault.verb, target=member.name, pids=[member.pid])
        if self.fault.verb == "kill":
            await _until(lambda: not member.is_alive, f"the end of {member.name}")
            assert member.exit_code == -signal.SIGKILL
        elif not member.is_alive:
            assert member.exit_code == 0

    async def repair(self) -> None:
        """Start anew, unarmed, what ended, and what was held back; then ask again for what has no answer."""
        self._start_missing()
        await self._ready()
        if self._wanted:
            await self._submit(list(self._wanted))

    async def judged(self) -> Report:
        """Wait until all is at rest, stop everything, and judge the history."""
        await _until(self._is_over, "every task is final, and its events are published")
        if self.fault.verb == "pause":
            await self.told("goes on")
        if self.fault.verb in ("pause", "raise") and self.armed.is_alive:
            # What broke has its message still in hand; the broker gives it to somebody else when the process ends.
            await self.armed.stop()
            self._start_missing()
            await self._ready()
        await _until(self._are_queues_empty, "the queues are empty")
        undriven = await self.store.count_undriven()
        self._recorder.record("undriven", count=undriven)
        await self._cluster.stop()
        await self._record_queues()
        for document in await self.documents():
            self._recorder.record("document", document=document)
            self.claims_repeated += max(0, document["fencing_token"] - 1)
        if self.fault.verb != "raise":  # an error nobody reckons with is what that one is
            self._cluster.record_errors()
        self.refused = self._cluster.refused_writes()
        return check(read(self._recorder.path))

    async def publish(self, body: bytes, queue: str) -> None:
        """Put bytes into a queue, as a foreign program may do."""
        assert self.amqp_url
        async with await aio_pika.connect(self.amqp_url) as connection:
            channel = await connection.channel()
            await channel.default_exchange.publish(aio_pika.Message(body), routing_key=queue)

    async def _submit(self, names: list[str]) -> None:
        tasks = [{**self._wanted[name], "idempotency_key": name} for name in names]
        try:
            async with self._client() as client:
                answer = await client.post("/tasks/bulk", json={"tasks": tasks})
            told = answer.json()["items"] if answer.status_code == 200 else [{"status": None}] * len(names)
        except httpx.TransportError:
            told = [{"status": None}] * len(names)
        for name, outcome in zip(names, told, strict=True):
            if outcome["status"] in (200, 202):
                self._recorder.record(
                    "submit.ok", submission=name, status=outcome["status"], task=outcome["task"]["task_id"]
                )
            else:
                self._recorder.record("submit.unknown", submission=name, status=None)

    def _client(self) -> httpx.AsyncClient:
        address = self._processes["front"].address
        return httpx.AsyncClient(base_url=f"{address}/api/v1", trust_env=False, timeout=20)

    def _start_missing(self) -> None:
        for role in ("front", "back"):
            if role not in self._processes or not self._processes[role].is_alive:
                self._start(role)

    def _start(self, role: Role, **settings: str) -> None:
        command = "dev" if not self.amqp_url else "api" if role == "front" else "worker"
        make = _Worker if command == "worker" else _Api
        name = f"{command}-{len(self._cluster.members) + 1}"
        environment = settings_of({**self._settings, **settings})
        member = make(name, (command, *_APP), self._folder, self._recorder, environment)
        member.forks = self._forks
        self._cluster.members.append(member)
        member.start()
        roles: tuple[Role, ...] = (role,) if self.amqp_url else ("front", "back")
        self._processes.update(dict.fromkeys(roles, member))

    async def _ready(self) -> None:
        await asyncio.gather(*(member.ready() for member in set(self._processes.values())))

    async def _is_over(self) -> bool:
        documents = await self.documents()
        wanted = len(self._wanted)
        assert len(documents) >= wanted, f"{len(documents)} of {wanted} tasks are there"
        return all(map(self._is_at_rest, documents))

    def _is_at_rest(self, document: Mapping[str, Any]) -> bool:
        if document["status"] not in FINAL_STATUSES or document["published_sequence"] < document["sequence"]:
            return False
        return self._listener is None or self._listener.heard(document["_id"]) >= document["sequence"]

    async def _are_queues_empty(self) -> bool:
        return not any((await self._queues()).values())

    async def _queues(self) -> dict[str, int]:
        """Messages ready, by queue."""
        if not self.amqp_url:
            return {}
        async with await aio_pika.connect(self.amqp_url) as connection:
            channel = await connection.channel()
            queues = [await channel.declare_queue(name, passive=True) for name in _QUEUES]
            return {queue.name: queue.declaration_result.message_count or 0 for queue in queues}

    async def _record_queues(self) -> None:
        for name, messages in (await self._queues()).items():
            self._recorder.record("queue", name=name, messages=messages)


async def _until(is_true: Callable[[], Awaitable[bool] | bool], what: str) -> None:
    """Wait; reads files and starts nothing, so it may block the loop for a moment."""
    end = time.monotonic() + _PATIENCE
    while True:
        answer = is_true()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        assert time.monotonic() < end, f"not within {_PATIENCE:g} s: {what}"
        await asyncio.sleep(_LOOK_SECONDS)
