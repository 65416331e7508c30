"""Several instances behind a proxy: any client finds its tasks, batches and events on any of them, whoever dies."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskframework.client import TaskClient
from taskframework.testing.eventually import eventually
from tests.chaos.cluster import Cluster, Member, settings_of
from tests.chaos.history import Recorder
from tests.support.event_reader import Reader
from tests.support.round_robin import RoundRobin

INSTANCES = 4
#: The proxy sees a request to another instance each time only if no connection is kept.
NONE_KEPT = httpx.Limits(max_keepalive_connections=0)
#: Leases that a living worker keeps on a busy machine: a task that loses three of them is a dead letter. With 2 s that
#: happened on a machine with ten times more work than processors.
SETTINGS = {"WORKER__LEASE": "6s", "RETRY__INITIAL_DELAY": "200ms", "WORKER__CONCURRENCY": "20"}


class Everything(Reader):
    """A reader of the events of all tasks. What it missed while it was away is told by `resync`, and not repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.is_listening = asyncio.Event()

    def read(self, frame: bytes) -> None:
        super().read(frame)
        if self.resyncs:
            self.begins_at = None
        self.is_listening.set()

    async def listen(self, proxy: RoundRobin) -> None:
        """Go on until cancelled, over as many connections as it takes."""
        async with httpx.AsyncClient(base_url=proxy.url, limits=NONE_KEPT, trust_env=False, timeout=30) as http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    await self.connect(http, "/api/v1/events")
                self.has.clear()

    def _read_event(self, event: dict[str, Any]) -> None:
        if "progressrevision" not in event:  # which may come twice: several processes count a batch
            super()._read_event(event)

    def _has_parent(self, view: dict[str, Any]) -> None:
        pass  # of several tasks there is no common order


class Clients:
    """Clients that know one address, and what they were told."""

    def __init__(self, ports: list[int], seed: int) -> None:
        self._ports = ports
        self._chance = random.Random(seed)
        self.finished = 0
        #: The last sequence of each task, as its own stream told it.
        self.sequences: dict[str, int] = {}

    async def with_tasks(self, number: int, tasks: int) -> None:
        """Submit one task after the other, wait for its result, and hear of it two events at a time."""
        async with self._client(number) as client:
            for _ in range(tasks):
                parameters = {"seconds": self._chance.uniform(0.1, 0.6), "fails": int(self._chance.random() < 0.2)}
                task = await client.submit("async-work", parameters)
                reader, waiting = Reader(), client.wait(task.task_id, timeout=90)
                _, result = await asyncio.gather(self._follow(f"tasks/{task.task_id}/events", reader, 2), waiting)
                told, ended = reader.has[task.task_id][0], await client.get(task.task_id)
                assert (ended.status, ended.result) == ("COMPLETED", result)
                assert told == ended.history[-1]["sequence"], "all was told"
                self.sequences[task.task_id] = told
                self.finished += 1

    async def with_batch(self, number: int, items: int) -> None:
        """Submit a batch, and hear of its items a few at a time: each once."""
        async with self._client(number) as client:
            work = [{"seconds": self._chance.uniform(0.05, 0.4)} for _ in range(items)]
            batch = await client.submit_batch("async-work", work)
            reader = Reader(begins_at=None)
            await self._follow(f"batches/{batch.batch_id}/events?items=true", reader, 7)
            assert sorted(reader.items) == list(range(items))
            assert {item["status"] for item in reader.items.values()} == {"COMPLETED"}

    async def go_on(self, tasks: int) -> None:
        """Wait until so many more tasks are finished."""
        enough = self.finished + tasks
        await eventually(lambda: self.finished >= enough, timeout=90)

    async def _follow(self, path: str, reader: Reader, events: int) -> None:
        """Read some events and leave, so that each time another instance goes on behind the last id."""
        async with (
            RoundRobin(self._ports, first=self._chance.randrange(INSTANCES)) as proxy,
            httpx.AsyncClient(base_url=proxy.url, limits=NONE_KEPT, trust_env=False, timeout=30) as http,
        ):
            while not reader.is_done:
                with contextlib.suppress(httpx.TransportError):  # the instance was killed
                    await reader.connect(http, f"/api/v1/{path}", events=events)
            assert len(proxy.taken) > 1
            assert all(port != after for port, after in zip(proxy.taken, proxy.taken[1:], strict=False))

    @contextlib.asynccontextmanager
    async def _client(self, number: int) -> AsyncIterator[TaskClient]:
        async with (
            RoundRobin(self._ports, first=number) as proxy,
            httpx.AsyncClient(limits=NONE_KEPT, trust_env=False) as http,
            TaskClient(proxy.url, http=http, patience=60) as client,
        ):
            yield client


async def _worker_that_runs_something(cluster: Cluster) -> Member:
    """As the interface tells it."""
    async with httpx.AsyncClient(base_url=cluster.apis[0].address, trust_env=False, timeout=30) as http:
        while True:
            for worker in (await http.get("/api/v1/admin/workers")).json()["items"]:
                running = (await http.get(f"/api/v1/admin/workers/{worker['worker_id']}/tasks")).json()["items"]
                found = [member for member in cluster.workers if member.pid == worker["pid"]]
                if running and found:
                    return found[0]


@contextlib.asynccontextmanager
async def _listeners(ports: list[int]) -> AsyncIterator[list[Everything]]:
    """One who hears everything at each instance, all through the block."""
    listeners = [Everything() for _ in ports]
    async with contextlib.AsyncExitStack() as proxies, asyncio.TaskGroup() as group:
        listening = []
        for number, listener in enumerate(listeners):
            proxy = await proxies.enter_async_context(RoundRobin(ports, first=number))
            listening.append(group.create_task(listener.listen(proxy)))
            await listener.is_listening.wait()
        yield listeners
        for one in listening:
            one.cancel()


async def _tell_everything(
    cluster: Cluster, clients: Clients, load: list[Coroutine[Any, Any, None]], kills: int
) -> None:
    """Let clients work, and kill an API process and a worker again and again; all of them must be told everything."""
    async with _listeners([api.port for api in cluster.apis]) as listeners:
        async with asyncio.TaskGroup() as group:
            for work in load:
                group.create_task(work)
            for kill in range(kills):
                await clients.go_on(4)
                for victim in (await _worker_that_runs_something(cluster), cluster.apis[1 + kill % 3]):
                    victim.kill()
                    victim.start()
        heard = [listener for listener in listeners if not listener.resyncs]
        assert len(heard) == INSTANCES - min(kills, 3), "who was cut is told that something is missing, nobody else"
        for listener in heard:
            await eventually(partial(_knows, listener, clients.sequences), timeout=30)


def _knows(listener: Everything, sequences: Mapping[str, int]) -> bool:
    return all(listener.has.get(task_id, (0, 0))[0] == sequence for task_id, sequence in sequences.items())


@contextlib.asynccontextmanager
async def instances(folder: Path, amqp_url: str, mongo_url: str) -> AsyncIterator[Cluster]:
    recorder = Recorder(folder / "history.jsonl", "harness")
    settings = settings_of({"BROKER__URL": amqp_url, "STORE__URL": mongo_url, **SETTINGS})
    cluster = Cluster(folder, recorder, settings)
    try:
        for _ in range(INSTANCES):
            cluster.add_api()
            cluster.add_worker()
        await cluster.ready()
        yield cluster
    finally:
        await asyncio.to_thread(cluster.close)
        recorder.close()


@pytest.mark.parametrize(
    ("submitters", "tasks_of_each", "batches", "items", "kills"),
    [
        pytest.param(8, 3, 2, 30, 1, id="short"),
        pytest.param(40, 20, 4, 500, 6, id="long", marks=[pytest.mark.chaos_long, pytest.mark.timeout(600)]),
    ],
)
async def test_any_client_finds_its_events_on_any_instance(
    tmp_path: Path,
    amqp_url: str,
    mongo_url: str,
    seed: int,
    reported: list[str],
    submitters: int,
    tasks_of_each: int,
    batches: int,
    items: int,
    kills: int,
) -> None:
    async with instances(tmp_path, amqp_url, mongo_url) as cluster:
        clients = Clients([api.port for api in cluster.apis], seed)
        load: list[Coroutine[Any, Any, None]] = [clients.with_tasks(n, tasks_of_each) for n in range(submitters)]
        load += [clients.with_batch(number, items) for number in range(batches)]
        await _tell_everything(cluster, clients, load, kills=kills)
    assert clients.finished == submitters * tasks_of_each
