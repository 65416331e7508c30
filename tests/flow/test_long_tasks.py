"""Tasks that run longer than the broker's patience: once each, and without a slot or a message kept from others.

The node takes a delivery back after 6 s and looks every second, as a real one does after 30 minutes and every minute.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from taskframework import BackgroundTaskExecutable, Settings, TaskContext, TaskFramework, TaskStatus
from taskframework.brokers.base import Delivery
from taskframework.model.message import read_message
from taskframework.testing.eventually import eventually
from taskframework.worker.consumer import TaskConsumer
from tests.conftest import _unavailable
from tests.support.kitchen_sink import Counts, Waits
from tests.support.servers import RabbitServer, ServerUnavailable

#: A busy machine must acknowledge within half of it.
TIMEOUT = timedelta(seconds=6)
#: Longer than two rounds of taking back and delivering again.
LONG = 14.5


class Sleeps(BackgroundTaskExecutable[float, None]):
    """Runs for so many seconds."""

    task_type = "sleeps"
    executions: ClassVar[Counter[str]] = Counter()

    async def execute(self, context: TaskContext[float]) -> None:
        self.executions[context.task_id] += 1
        await asyncio.sleep(context.parameters)


class SleepsInThread(Sleeps):
    """The same as a plain function."""

    task_type = "sleeps-in-thread"

    def execute(self, context: TaskContext[float]) -> None:  # type: ignore[override]  # an author may write either
        self.executions[context.task_id] += 1
        time.sleep(context.parameters)


@pytest.fixture(scope="module")
def impatient_server() -> Iterator[RabbitServer]:
    """A node with a short consumer timeout."""
    try:
        server = RabbitServer(
            config={"consumer_timeout": str(round(TIMEOUT.total_seconds() * 1000))},
            advanced="[{rabbit, [{channel_tick_interval, 1000}]}].",
        )
    except ServerUnavailable as error:
        _unavailable(str(error))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def urls(impatient_server: RabbitServer, mongo_url: str) -> Iterator[dict[str, str]]:
    vhost = impatient_server.new_vhost()
    yield {"broker": impatient_server.url_of(vhost), "store": mongo_url}
    impatient_server.delete_vhost(vhost)


@pytest.fixture
def deliveries(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each task's message was delivered to a worker of this process."""
    counted: Counter[str] = Counter()
    take = TaskConsumer.take_delivery

    def counting(self: TaskConsumer, consumed_as: str, delivery: Delivery) -> None:
        counted[read_message(delivery.body).task_id] += 1
        take(self, consumed_as, delivery)

    monkeypatch.setattr(TaskConsumer, "take_delivery", counting)
    return counted


@pytest.fixture
def worker(settings: Callable[..., Settings]) -> Callable[..., Any]:
    """Run one worker: `async with worker(concurrency=2) as framework`."""

    @asynccontextmanager
    async def running(*, concurrency: int = 100, **broker: object) -> AsyncIterator[TaskFramework]:
        framework = TaskFramework(settings(worker={"concurrency": concurrency}, broker=broker))
        for executable in (Sleeps, SleepsInThread, Waits, Counts):
            framework.register(executable)
        async with framework.running():
            await eventually(lambda: _worker(framework).is_live, timeout=20, what="every queue is consumed")
            yield framework

    return running


async def test_a_long_task_runs_once_and_is_delivered_once(
    worker: Callable[..., Any], deliveries: Counter[str]
) -> None:
    async with worker(consumer_timeout=TIMEOUT) as framework:
        await _run_long_tasks(framework)
        assert set(deliveries.values()) == {1}, "acknowledged too late"


async def test_a_timeout_that_is_not_set_right_is_learned(
    worker: Callable[..., Any], deliveries: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with worker() as framework:
        await _run_long_tasks(framework)
        if set(deliveries.values()) == {1}:
            return  # RabbitMQ 4.3 keeps to what each consumer asks for, so there is nothing to learn
        assert framework.process.broker.consumer_timeout == TIMEOUT
        [advice] = [message for message in caplog.messages if "broker.consumer_timeout" in message]
        assert "took a delivery back after 6 s" in advice
        assert max(deliveries.values()) == 2, "what was learned does not count for what is in hand"


async def test_tasks_that_a_worker_full_of_long_tasks_cannot_run_go_to_another_worker(
    worker: Callable[..., Any],
) -> None:
    Waits.gate, Waits.started = asyncio.Event(), 0
    async with worker(concurrency=2, consumer_timeout=TIMEOUT) as busy:
        long = [await busy.submit("waits") for _ in range(2)]
        await eventually(lambda: Waits.started == 2)
        # Taken in as soon as the first early acknowledgement gives credit back: it waits here, with nobody else to run.
        early = await busy.submit("counts")
        await eventually(lambda: _worker(busy).problem == "paused: long tasks hold all slots")
        async with worker(concurrency=2, consumer_timeout=TIMEOUT) as idle:
            late = [await busy.submit("counts") for _ in range(4)]
            for handle in [early, *late]:
                assert (await handle.finished(timeout=60)).history[-1].worker_id == _worker(idle).worker_id
            assert _worker(busy).problem is not None
            assert [(await handle.task()).status for handle in long] == [TaskStatus.RUNNING] * 2
            Waits.gate.set()
            for handle in long:
                assert await handle.result(timeout=60) == "done"
            await eventually(lambda: _worker(busy).problem is None, what="the free slots are used again")
    assert Waits.started == 2


async def _run_long_tasks(framework: TaskFramework) -> None:
    handles = [await framework.submit(name, LONG) for name in ("sleeps", "sleeps-in-thread")]
    for handle in handles:
        task = await handle.finished(timeout=60)
        assert (task.status, task.attempts, task.crashes, task.fencing_token) == (TaskStatus.COMPLETED, 1, 0, 1)
        assert Sleeps.executions[handle.task_id] == 1


def _worker(framework: TaskFramework) -> Any:
    return framework.process.worker
