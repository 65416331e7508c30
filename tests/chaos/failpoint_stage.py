"""The stage of a failpoint scenario: what its story can do, and what is judged at its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

import aio_pika
import httpx
import orjson

from taskframework.model.schedules import SCHEDULE, Schedule
from taskframework.model.slots import SLOTS
from taskframework.model.task import Task
from taskframework.schedules import read_schedule
from taskframework.stores.base import TaskStore
from taskframework.stores.mongo.store import MongoStore
from taskframework.stores.reading import read_record
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.factories import new_task
from tests.chaos.checker import Report, check
from tests.chaos.failpoint_files import STEP
from tests.chaos.failpoint_processes import Fault, Processes, until
from tests.chaos.history import Recorder, read
from tests.chaos.listener import Listener
from tests.chaos.story import FINAL_STATUSES
from tests.chaos.truth import MongoTruth, SqliteTruth, Truth
from tests.support.forks import Forks

_TYPES = ("probe", "limited", "keyed", "single", "single-of-key", "family", "patient")
_QUEUES = (*(f"tasks.{name}.{lane}" for name in _TYPES for lane in ("high", "normal", "low")), "tasks.dlq")
#: While one of these has a time, something about a task is left to do.
_LEFT = ("spawn_at", "cascade_at", "retry_at")
_SCHEDULE = "nightly"
#: How long the stage itself waits for the server, which has much to do when many scenarios begin at once.
_STORE_TIMEOUT = timedelta(minutes=1)
_AGO = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Servers:
    """Where a scenario has a virtual host and a database of its own."""

    amqp_url: str
    mongo_url: str


class Stage:
    """A context manager around one scenario."""

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
        #: How every task ends.
        self.expected = "COMPLETED"
        #: Claims besides each task's first, if the fault costs none.
        self.repeats = 0
        #: Outcomes that must be refused because their attempt was overtaken.
        self.refusals = 0
        #: What there was of the two, once it is judged.
        self.repeated = self.refused = 0
        self._folder = folder
        self._amqp_url = servers.amqp_url if servers else None
        self._recorder = Recorder(folder / "history.jsonl", "harness")
        self._listener = Listener(servers.amqp_url, self._recorder) if servers else None
        self._wanted: dict[str, dict[str, Any]] = {}
        self._uploads: set[str] = set()
        self.store: TaskStore
        self._truth: Truth
        if servers:
            self.store, self._truth = (
                MongoStore(servers.mongo_url, timeout=_STORE_TIMEOUT),
                MongoTruth(servers.mongo_url),
            )
            places = {"BROKER__URL": servers.amqp_url, "STORE__URL": servers.mongo_url}
        else:
            file = folder / "tasks.db"
            self.store, self._truth = SqliteStore(file), SqliteTruth(file)
            places = {"STORE__URL": f"sqlite:///{file}"}
        self.processes = Processes(folder, forks, self._recorder, fault, {**places, **settings})

    async def __aenter__(self) -> Self:
        try:
            if self._listener is not None:
                await self._listener.start()
            await self.store.open()
            await self.processes.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        # The last first, and each although a case is cancelled in the middle of this: another process plays it then.
        async with contextlib.AsyncExitStack() as ending:
            ending.callback(self._recorder.close)
            ending.callback(self._truth.close)
            ending.push_async_callback(self.store.close)
            if self._listener is not None:
                ending.push_async_callback(self._listener.stop)
            ending.push_async_callback(asyncio.to_thread, self.processes.cluster.close)

    async def submit(
        self, count: int = 1, task_type: str = "probe", *, stream: Mapping[str, str] | None = None, **parameters: Any
    ) -> None:
        """Submit at once so many tasks with these parameters; a process that dies over it is asked again later."""
        for _ in range(count):
            name = f"s{len(self._wanted)}"
            wanted = {"task_type": task_type, "parameters": parameters, "correlation_id": name, "stream": stream}
            self._wanted[name] = wanted
            self._recorder.record("submit.invoke", submission=name)
        await self._submit(list(self._wanted)[-count:])

    async def upload(self, *items: dict[str, Any], breaks_off: bool = False) -> None:
        """Submit probes as a batch; the same again, which its key makes the same batch, after a process died over it.

        Args:
            items: their parameters.
            breaks_off: whether the last line is none, so that the batch stays open.
        """
        if "batch" not in self._uploads:
            self._recorder.record("submit.invoke", submission="batch")
        self._uploads.add("batch")
        lines = b"".join(orjson.dumps(item) + b"\n" for item in items) + b"{" * breaks_off
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": "batch"}
        query = {"task_type": "probe", "correlation_id": "batch"}
        told: dict[str, Any] = {"status": None}
        with contextlib.suppress(httpx.TransportError):
            async with self._client() as client:
                answer = await client.post("/batches", content=lines, headers=headers, params=query)
            if answer.status_code in (200, 202):
                told = {"status": answer.status_code, "task": {"task_id": answer.json()["batch_id"]}}
        self._answered("batch", told)

    async def submit_version(self, version: int, not_before: datetime) -> int | None:
        """Submit a probe as a version of the only key, for later; the status, or None when a process dies over it."""
        name = f"v{version}"
        if name not in self._uploads:
            self._recorder.record("submit.invoke", submission=name)
        self._uploads.add(name)
        unique = {"key": "page", "version": version}
        body = {"task_type": "probe", "parameters": {}, "correlation_id": name, "unique": unique}
        told: dict[str, Any] = {"status": None}
        with contextlib.suppress(httpx.TransportError):
            async with self._client() as client:
                answer = await client.post("/tasks", json={**body, "not_before": not_before.isoformat()})
            told = {"status": answer.status_code, "task": answer.json()}
        status: int | None = told["status"]
        # Too late means that there is a newer one; an attempt that had no answer may have been accepted all the same.
        self._answered(name, {"status": None} if status == 409 else told)
        return status

    async def submit_debounced(self, number: int) -> int | None:
        """Submit a probe with the only debounced key, for later; the status, or None when a process dies over it."""
        if "debounced" not in self._uploads:
            self._recorder.record("submit.invoke", submission="debounced")
        self._uploads.add("debounced")
        debounce = {"key": "page", "wait": "1h"}
        body = {"task_type": "probe", "parameters": {"subtasks": number}, "debounce": debounce}
        told: dict[str, Any] = {"status": None}
        with contextlib.suppress(httpx.TransportError):
            async with self._client() as client:
                answer = await client.post("/tasks", json={**body, "correlation_id": "debounced"})
            told = {"status": answer.status_code, "task": answer.json()}
        self._answered("debounced", told)
        status: int | None = told["status"]
        return status

    async def schedule(self) -> None:
        """Store a schedule whose run is due; the next one comes when all is over."""
        submission = f"schedule/{_SCHEDULE}"  # nobody waits for an answer to it
        self._recorder.record("submit.invoke", submission=submission)
        self._recorder.record("submit.unknown", submission=submission, status=None, retry_after=5, reason=None)
        at, hour = self.store.now() - _AGO, timedelta(hours=1)
        schedule = Schedule(
            name=_SCHEDULE, task_type="probe", parameters={}, every=hour, since=at - hour, next_at=at, due_at=at
        )
        await self.store.write_records([SCHEDULE.new(_SCHEDULE, content=schedule)])

    async def moved_on(self) -> str:
        """The task of the schedule's run, once the schedule is moved on."""
        found: list[str] = []

        async def is_moved_on() -> bool:
            record = await read_schedule(self.store, _SCHEDULE)
            last = None if record is None else SCHEDULE.content(record).last_run
            found.extend([] if last is None else [last.task_id])
            return bool(found)

        await until(is_moved_on, "the schedule is moved on")
        return found[-1]

    async def plant(self, **fields: Any) -> Task:
        """Store a task as a process without a broker does: due at once, for any sweeper."""
        name = f"p{len(await self.documents())}"
        self._recorder.record("submit.invoke", submission=name)
        fields = {"task_type": "probe", "parameters": {}, "correlation_id": name, **fields}
        # Some time ago, since our idea of the store's clock may be early.
        task = new_task(now=self.store.now() - _AGO, dispatch_after=timedelta(0), **fields)
        await insert_one(self.store, task)
        self._recorder.record("submit.ok", submission=name, status=202, task=task.task_id)
        return task

    async def post(self, path: str, body: Any = None, key: str | None = None) -> int | None:
        """Ask the API for something; None when it dies over it."""
        headers = {} if key is None else {"Idempotency-Key": key}
        with contextlib.suppress(httpx.TransportError):
            async with self._client() as client:
                return (await client.post(path, json={} if body is None else body, headers=headers)).status_code
        return None

    async def get(self, path: str) -> Any:
        """What the API answers; None when it dies over it, or fails."""
        with contextlib.suppress(httpx.TransportError):
            async with self._client() as client:
                answer = await client.get(path)
                return answer.json() if answer.is_success else None
        return None

    async def reads(self, is_enough: Callable[[list[dict[str, Any]] | None], bool]) -> None:
        """Read the results of the stream `o` until they are enough; None when the API dies over it."""

        async def are() -> bool:
            answer = await self.get("/streams/o/results")
            return is_enough(None if answer is None else answer["items"])

        await until(are, "the results are there")

    async def publish(self, body: bytes, queue: str) -> None:
        """Put bytes into a queue, as a foreign program may do."""
        assert self._amqp_url
        async with await aio_pika.connect(self._amqp_url) as connection:
            channel = await connection.channel()
            await channel.default_exchange.publish(aio_pika.Message(body), routing_key=queue)

    async def documents(self) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self._truth.documents)

    async def only_task(self) -> str:
        """The id of the one task there is that is no sub-task."""
        [document] = [document for document in await self.documents() if document["parent"] is None]
        return str(document["_id"])

    async def subtask(self) -> str:
        """The id of the first sub-task."""
        found = [document for document in await self.documents() if document["parent"] is not None]
        return str(min(found, key=lambda document: document["parent"]["slot"])["_id"])

    async def there_are(self, count: int, status: str) -> None:
        """Wait until so many tasks have this status."""

        async def are() -> bool:
            return [document["status"] for document in await self.documents()].count(status) == count

        await until(are, f"{count} are {status}")

    async def all_are(self, status: str) -> None:
        """Wait until every task has this status."""

        async def are() -> bool:
            return {document["status"] for document in await self.documents()} == {status}

        await until(are, f"all are {status}")

    def touch(self, name: Path) -> None:
        """Make a file that the task code looks for."""
        (self._folder / name).touch()

    def steps_done(self) -> int:
        """How often a step was really done."""
        return sum(seen.kind == STEP for seen in read(self._recorder.path))

    async def slots_are_free(self, limit: str) -> None:
        """Wait until every task is over and no slot of a concurrency limit is held, whoever was to give it back."""

        async def are_free() -> bool:
            record = await read_record(self.store, limit)
            return record is not None and not SLOTS.content(record).holders

        await self.all_are("COMPLETED")
        await until(are_free, f"every slot of {limit} is given back")

    async def repair(self) -> None:
        """Let everything run again, and ask again for every submission: it has one answer, whoever gives it."""
        await self.processes.complete()
        if self._wanted:
            await self._submit(list(self._wanted))

    async def judged(self) -> Report:
        """Wait until all is at rest, stop everything, and judge the history."""
        await until(self._is_over, "every task is final, and its events are published")
        if self.fault.verb == "pause":
            await self.processes.told("goes on")
        if self.fault.verb in ("pause", "raise"):
            # What broke has its message still in hand; the broker gives it to somebody else when the process ends.
            await self.processes.replace_armed()
        await until(self._are_queues_empty, "the queues are empty")
        self._recorder.record("undriven", count=len(await self.store.undriven(1_000)))
        await self.processes.cluster.stop()
        for name, messages in (await self._queues()).items():
            self._recorder.record("queue", name=name, messages=messages)
        for document in await self.documents():
            self._recorder.record("document", document=document)
            self.repeated += max(0, document["fencing_token"] - 1)
        if self.fault.verb != "raise":  # an error nobody reckons with is what that one is
            self.processes.cluster.record_errors()
        self.refused = self.processes.cluster.refused_writes()
        return check(read(self._recorder.path))

    async def _submit(self, names: list[str]) -> None:
        tasks = [{**self._wanted[name], "idempotency_key": name} for name in names]
        try:
            async with self._client() as client:
                answer = await client.post("/tasks/bulk", json={"tasks": tasks})
        except httpx.TransportError:
            outcomes: list[dict[str, Any]] = [{"status": None}] * len(names)
        else:
            whole = [{"status": answer.status_code}] * len(names)
            outcomes = answer.json()["items"] if answer.status_code == 200 else whole
        for name, outcome in zip(names, outcomes, strict=True):
            self._answered(name, outcome)

    def _answered(self, name: str, outcome: Mapping[str, Any]) -> None:
        status = outcome["status"]
        if status in (200, 202):
            self._recorder.record("submit.ok", submission=name, status=status, task=outcome["task"]["task_id"])
            return
        if self.fault.verb == "raise":  # an error that nobody reckons with may be a 500
            status = None
        self._recorder.record("submit.unknown", submission=name, status=status, retry_after=5, reason=outcome)

    def _client(self) -> httpx.AsyncClient:
        # Plain HTTP: to read the certificates of all authorities takes longer than most scenarios use the client.
        address = f"{self.processes.address}/api/v1"
        return httpx.AsyncClient(base_url=address, trust_env=False, timeout=20, verify=False)

    async def _is_over(self) -> bool:
        documents = await self.documents()
        wanted = len(self._wanted)
        assert len(documents) >= wanted, f"{len(documents)} of {wanted} tasks are there"
        return all(map(self._is_at_rest, documents))

    def _is_at_rest(self, document: Mapping[str, Any]) -> bool:
        if document["status"] not in FINAL_STATUSES or document["published_sequence"] < document["sequence"]:
            return False
        if any(document.get(name) is not None for name in _LEFT):
            return False
        return self._listener is None or self._listener.heard(document["_id"]) >= document["sequence"]

    async def _are_queues_empty(self) -> bool:
        return not any((await self._queues()).values())

    async def _queues(self) -> dict[str, int]:
        """Messages ready, by queue."""
        if not self._amqp_url:
            return {}
        async with await aio_pika.connect(self._amqp_url) as connection:
            channel = await connection.channel()
            queues = [await channel.declare_queue(name, passive=True) for name in _QUEUES]
            return {queue.name: queue.declaration_result.message_count or 0 for queue in queues}
