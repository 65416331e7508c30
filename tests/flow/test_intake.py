"""What a worker takes in while a server has trouble: the store is away, or RabbitMQ takes no messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import pytest

from taskframework import BackgroundTaskExecutable, Settings, TaskContext, TaskFramework, TaskStatus
from taskframework.brokers.base import Delivery
from taskframework.brokers.rabbitmq.broker import RabbitBroker
from taskframework.errors import StoreError, StoreUnavailableError
from taskframework.model.message import read_message
from taskframework.model.scope import EVERYONE
from taskframework.stores.mongo.store import MongoStore
from taskframework.testing.eventually import eventually
from taskframework.worker.consumer import TaskConsumer
from taskframework.worker.worker import Worker
from tests.flow.conftest import Run
from tests.support.kitchen_sink import ALL, Counts, Waits
from tests.support.servers import MongoServer, RabbitServer

pytestmark = pytest.mark.parametrize("urls", ["servers", "servers, plain"], indirect=True)

TASKS, SLOTS = 200, 10


class Steady(BackgroundTaskExecutable[None, None]):
    """Takes a moment, so that many wait."""

    task_type = "steady"
    executions: ClassVar[Counter[str]] = Counter()

    async def execute(self, context: TaskContext[None]) -> None:
        self.executions[context.task_id] += 1
        await asyncio.sleep(0.1)


class Arrivals:
    """What was delivered to the workers of this process."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self.redelivered = 0

    def note(self, delivery: Delivery) -> None:
        self.times[read_message(delivery.body).task_id] += 1
        self.redelivered += int(delivery.headers.get("x-delivery-count", "0")) > 0


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> Arrivals:
    noted, take = Arrivals(), TaskConsumer.take_delivery

    def noting(self: TaskConsumer, consumed_as: str, delivery: Delivery) -> None:
        noted.note(delivery)
        take(self, consumed_as, delivery)

    monkeypatch.setattr(TaskConsumer, "take_delivery", noting)
    return noted


@pytest.fixture
def failed_pings(monkeypatch: pytest.MonkeyPatch) -> list[StoreError]:
    """The looks at a store that was away."""
    failed: list[StoreError] = []
    ping = MongoStore.ping

    async def noting(self: MongoStore) -> None:
        try:
            await ping(self)
        except StoreError as error:
            failed.append(error)
            raise

    monkeypatch.setattr(MongoStore, "ping", noting)
    return failed


@contextlib.asynccontextmanager
async def working(settings: Callable[..., Settings], **sections: dict[str, Any]) -> AsyncIterator[TaskFramework]:
    framework = TaskFramework(settings(**sections))
    for executable in (Steady, Counts, Waits):
        framework.register(executable)
    async with framework.running():
        await eventually(lambda: _worker(framework).is_live, timeout=20, what="every queue is consumed")
        yield framework


# Killed, not stopped: a stop in order may take so long that everything is executed before it.
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_while_the_store_is_away_messages_are_held_and_none_comes_twice(
    settings: Callable[..., Settings],
    mongo_server: MongoServer,
    arrivals: Arrivals,
    failed_pings: list[StoreError],
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    caplog.set_level("INFO", "taskframework.worker.store_breaker")
    leave, come_back = (
        (mongo_server.kill, mongo_server.start) if how == "killed" else (mongo_server.pause, mongo_server.resume)
    )
    sections: dict[str, Any] = {
        "worker": {"concurrency": SLOTS, "lease": "60s"},
        "store": {"timeout": "1s"},
        # A message that the sweeper sends again is no redelivery.
        "recovery": {"dispatch_grace": "5m", "redispatch": "5m"},
    }
    async with working(settings, **sections) as framework:
        handles = [await framework.submit("steady") for _ in range(TASKS)]
        await framework.services.bus.drain()
        try:
            await asyncio.to_thread(leave)
            await eventually(lambda: _worker(framework).problem == "paused: the store is away", timeout=20)
            checks = (await framework.process.health.readiness()).checks
            assert checks["consumers"] == "paused: the store is away"
            held = len(arrivals.times)
            assert held < TASKS, "everything was taken in; the test shows nothing"
            # Several looks at the store, each at most three seconds after the other, find it away.
            await eventually(lambda: len(failed_pings) >= 4, timeout=20)
            assert len(arrivals.times) <= held + 3 * SLOTS, "consuming goes on"
        finally:
            await asyncio.to_thread(come_back)
        for handle in handles:
            assert (await handle.finished(timeout=60)).status is TaskStatus.COMPLETED
        assert _worker(framework).problem is None
    assert arrivals.redelivered == 0
    assert set(arrivals.times.values()) == {1}
    assert {Steady.executions[handle.task_id] for handle in handles} == {1}
    levels = [record.levelname for record in caplog.records if "store_breaker" in record.name]
    # A server that has just started on a crowded machine may be too slow for the timeout of a second again and again.
    assert levels == ["WARNING", "INFO"] * (len(levels) // 2)
    assert levels


@pytest.mark.parametrize("is_back", [False, True])
async def test_a_stop_in_the_middle_of_a_registration_starts_nothing_more(
    settings: Callable[..., Settings], is_back: bool
) -> None:
    sections: dict[str, Any] = {
        "worker": {"concurrency": SLOTS},
        "recovery": {"dispatch_grace": "5m"},
        # What runs may end: an attempt that is handed back is executed again.
        "shutdown": {"await_termination_timeout": "20s"},
    }
    async with working(settings, **sections) as framework:
        handles = [await framework.submit("steady") for _ in range(TASKS)]
        await eventually(lambda: sum(Steady.executions[handle.task_id] for handle in handles) > SLOTS)
        worker = _worker(framework)
        framework.process.breaker.open(StoreUnavailableError("only for a moment"))
        await asyncio.sleep(0)  # the intake begins to stop its consumers
        if is_back:
            await eventually(lambda: not framework.process.breaker.is_open)
        await worker.stop()
        started = sum(Steady.executions[handle.task_id] for handle in handles)
        assert started < TASKS, "everything was executed; the test shows nothing"
        # The store answers, so at any time it may be found to be back.
        problems = {"not consuming"} if is_back else {"not consuming", "paused: the store is away"}
        assert (worker.in_flight, worker.problem in problems) == (0, True), worker.problem
    assert sum(Steady.executions[handle.task_id] for handle in handles) == started
    async with working(settings, **sections) as framework:
        for handle in handles:
            assert (await framework.handle(handle.task_id).finished(timeout=60)).status is TaskStatus.COMPLETED
    assert {Steady.executions[handle.task_id] for handle in handles} == {1}


async def test_a_memory_alarm_stops_publishing_and_nothing_else(
    settings: Callable[..., Settings], rabbit_server: RabbitServer, urls: dict[str, str]
) -> None:
    Waits.gate, Waits.started = asyncio.Event(), 0
    vhost = urls["broker"].rpartition("/")[2]
    sections: dict[str, Any] = {"broker": {"publish_timeout": "1s"}, "worker": {"concurrency": SLOTS}}
    async with working(settings, **sections) as framework:
        before = [await framework.submit("waits") for _ in range(4)]
        await eventually(lambda: Waits.started == 4)
        try:
            await _watermark(rabbit_server, "absolute", "1MB")
            async with asyncio.timeout(20):
                meanwhile = [await framework.submit("counts") for _ in range(3)]
            await eventually(lambda: not framework.process.broker.is_connected, what="the publisher knows of the alarm")
            _wait_for_confirms(framework)  # known by now, so that nobody does
            async with asyncio.timeout(20):
                meanwhile.append(await framework.submit("counts"))
            Waits.gate.set()
            for handle in before:
                assert await handle.result(timeout=60) == "done"
            await eventually(lambda: _unacknowledged(rabbit_server, vhost, "tasks.waits.normal", 0), timeout=20)
            assert _worker(framework).problem is None
            checks = (await framework.process.health.readiness()).checks
            told = (checks["broker"], checks["consumers"])
            assert told == ("takes no messages: memory or disk alarm; tasks are stored", "ok")
            services, broker = framework.services, framework.process.broker
            cause = (await services.explain.explain(meanwhile[0].task_id, EVERYONE, broker)).cause
            assert (cause.code, "memory or disk alarm" in cause.because) == ("broker_away", True)
            problems = {problem.code: problem.text for problem in (await services.overview.read(broker)).problems()}
            assert "memory or disk alarm" in problems["broker_away"]
            assert [(await handle.task()).status for handle in meanwhile] == [TaskStatus.QUEUED] * 4
        finally:
            await _watermark(rabbit_server, "0.4")
        for handle in meanwhile:
            assert await handle.result(timeout=60) == 1


async def test_one_busy_task_type_among_many_fills_all_slots_of_the_worker(settings: Callable[..., Settings]) -> None:
    Waits.gate, Waits.started = asyncio.Event(), 0
    framework = TaskFramework(settings(worker={"concurrency": 4 * SLOTS}))
    for executable in ALL:
        framework.register(executable)
    async with framework.running():
        handles = [await framework.submit("waits", priority="low") for _ in range(4 * SLOTS)]
        await eventually(lambda: Waits.started == 4 * SLOTS, timeout=30, what="every slot is taken")
        Waits.gate.set()
        for handle in handles:
            assert await handle.result(timeout=60) == "done"


def _wait_for_confirms(framework: TaskFramework) -> None:
    """From now on who waits for a confirm does so for an hour."""
    broker = framework.process.broker
    assert isinstance(broker, RabbitBroker)
    broker._publisher._timeout = 3600


async def _watermark(server: RabbitServer, *value: str) -> None:
    await asyncio.to_thread(server.ctl, "set_vm_memory_high_watermark", *value)


async def _unacknowledged(server: RabbitServer, vhost: str, queue: str, expected: int) -> bool:
    table = await asyncio.to_thread(server.ctl, "list_queues", "-p", vhost, "name", "messages")
    counts = dict(line.split() for line in table.splitlines() if line.startswith("tasks."))
    return int(counts[queue]) == expected


def _worker(framework: TaskFramework) -> Worker:
    assert framework.process.worker is not None
    return framework.process.worker


async def test_new_tasks_for_a_worker_full_of_long_tasks_run_in_an_idle_worker(run: Run) -> None:
    patient = {"redispatch": "10m", "redispatch_max": "10m"}  # no second message comes to the help of the first
    async with run(concurrency=2, recovery=patient) as busy:
        gate = Waits.gate
        long = [await busy.submit("waits") for _ in range(2)]
        await eventually(lambda: Waits.started == 2)
        async with run(concurrency=2, recovery=patient) as idle:
            worker = idle.process.worker
            assert worker is not None
            await eventually(lambda: worker.is_live)
            for handle in [await idle.submit("counts") for _ in range(8)]:
                assert (await handle.finished(timeout=60)).history[-1].worker_id == worker.worker_id
        gate.set()
        for handle in long:
            assert await handle.result(timeout=60) == "done"
