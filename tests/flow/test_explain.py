"""Why a task is not running, on both installations: each cause is prepared, and named."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from taskframework import (
    BackgroundTaskExecutable,
    ConcurrencyLimit,
    RateLimit,
    Settings,
    Signal,
    TaskContext,
    TaskFramework,
    TaskOptions,
)
from taskframework.api.app import create_app
from taskframework.brokers.embedded import EmbeddedBroker
from taskframework.client import TaskClient
from taskframework.client.answers import RemoteExplanation
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import TaskStatus
from taskframework.model.versions import VERSIONS, Newest, record_id
from taskframework.stores.reading import read_record
from taskframework.tasks.declarations import DECLARATION, TaskDeclaration
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from tests.flow.conftest import BOTH, Run
from tests.support.kitchen_sink import Waits

pytestmark = pytest.mark.parametrize("urls", BOTH, indirect=True)

LATER = datetime.now(UTC) + timedelta(days=1)
NEVER = 0.001  # permits a second
SLOTS = 12


class Gated(BackgroundTaskExecutable[Any, str]):
    """Runs until the gate of `Waits` opens, whoever asks it to stop."""

    task_type = "gated"

    async def execute(self, context: TaskContext[Any]) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await Waits.gate.wait()
        await Waits.gate.wait()
        return "done"


class Tenant(BaseModel):
    tenant: str = "a"


class AtOnce(Gated):
    task_type = "at-once"
    options = TaskOptions(concurrency_limit=1)


class AtOnceByTenant(BackgroundTaskExecutable[Tenant, None]):
    task_type = "at-once-by-tenant"
    options = TaskOptions(concurrency_limit=ConcurrencyLimit(1, key="tenant"))

    async def execute(self, context: TaskContext[Tenant]) -> None:
        await Waits.gate.wait()


class Limited(BackgroundTaskExecutable[None, None]):
    task_type = "limited"
    options = TaskOptions(rate_limit="openai")

    async def execute(self, context: TaskContext[None]) -> None:
        """Nothing."""


class LimitedByTenant(BackgroundTaskExecutable[Tenant, None]):
    task_type = "limited-by-tenant"
    options = TaskOptions(rate_limit=RateLimit("openai", key="tenant"))

    async def execute(self, context: TaskContext[Tenant]) -> None:
        """Nothing."""


class Plans(BackgroundTaskExecutable[Any, Any]):
    """Waits for a sub-task of a type that its parameters name, or for a signal."""

    task_type = "plans"

    async def execute(self, context: TaskContext[Any]) -> Any:
        if context.parameters is None:
            return context.wait_for(signal="approved")
        await context.submit_subtask(context.parameters, None)
        return None

    async def on_signal(self, context: TaskContext[Any], signal: Signal) -> Any:
        return signal.payload


class Elsewhere(BackgroundTaskExecutable[None, None]):
    """Known to the installation, and to none of its workers."""

    task_type = "elsewhere"

    async def execute(self, context: TaskContext[None]) -> None:
        """Nothing."""


EXTRA = (Gated, AtOnce, AtOnceByTenant, Limited, LimitedByTenant, Plans)


class Stage:
    """An installation with a worker, and how to ask it why."""

    def __init__(self, framework: TaskFramework, http: httpx.AsyncClient, client: TaskClient) -> None:
        self.framework = framework
        self.http = http
        self.client = client

    async def submit(self, task_type: str, parameters: Any = None, **options: Any) -> str:
        return (await self.framework.submit(task_type, parameters, **options)).task_id

    async def cause(self, task_id: str, code: str) -> RemoteExplanation:
        """The explanation, as soon as it is this cause; over HTTP."""

        heard: list[RemoteExplanation] = []

        async def is_explained() -> bool:
            heard[:] = [await self.client.explain(task_id)]
            return heard[0].code == code

        try:
            await eventually(is_explained, what=f"the cause is {code}")
        except AssertionError as error:
            raise AssertionError(f"it is {heard}") from error
        [found] = heard
        assert (found.task_id, found.status) == (task_id, await self.status(task_id))
        return found

    async def status(self, task_id: str) -> TaskStatus:
        return (await self.framework.get(task_id)).status

    async def runs(self, task_type: str, parameters: Any = None, **options: Any) -> str:
        """A task that runs until the gate is opened."""
        task_id = await self.submit(task_type, parameters, **options)
        await eventually(lambda: self._is_running(task_id), what=f"{task_type} runs")
        return task_id

    async def _is_running(self, task_id: str) -> bool:
        return await self.status(task_id) is TaskStatus.RUNNING

    async def insert(self, **fields: Any) -> str:
        """A task that no process was told of."""
        store = self.framework.services.store
        task = new_task(now=store.now(), task_type="waits", parameters=None, **fields)
        await store.insert([task])
        return task.task_id


@pytest.fixture
async def stage(run: Run) -> AsyncIterator[Stage]:
    limiter = {"type": "store", "providers": {"openai": {"rate": NEVER, "burst_capacity": 1}}}
    async with (
        run(concurrency=SLOTS, extra=EXTRA, rate_limiter=limiter, recovery={"dispatch_grace": "1s"}) as framework,
        httpx.AsyncClient(transport=httpx.ASGITransport(create_app(framework)), base_url="http://api") as http,
        TaskClient("http://api", http=http) as client,
    ):
        assert framework.process.worker is not None
        await framework.process.worker.sign_of_life.write()
        yield Stage(framework, http, client)
        Waits.gate.set()


async def test_each_cause_that_keeps_a_task_from_running_is_named(
    stage: Stage, settings: Callable[..., Settings]
) -> None:
    for prepare in (
        _what_is_over,
        _what_runs,
        _what_waits_for_others,
        _what_waits_in_a_stream,
        _what_is_superseded,
        _what_is_paused,
        _what_waits_for_its_time,
        _what_a_bucket_holds_back,
        _what_waits_for_a_slot,
        _what_no_worker_runs,
        _what_is_suspected,
        _what_was_sent,
    ):
        await prepare(stage)
    await _the_whole_installation(stage)
    await _without_the_broker(stage, settings)
    await _without_redis(stage, settings)


async def _what_is_over(stage: Stage) -> None:
    over = await stage.cause(await stage.submit("count-words", {"text": "one"}), "final")
    assert "COMPLETED" in over.because
    failed = await stage.cause(await stage.submit("broken"), "final")
    assert "a bug" in failed.because
    assert "tasks retry" in failed.change


async def _what_runs(stage: Stage) -> None:
    running = await stage.runs("gated")
    assert (await stage.cause(running, "running")).details["attempt"] == 1
    await stage.client.cancel(running, reason="ordered twice")
    asked = await stage.cause(running, "cancel_requested")
    assert "ordered twice" in asked.because


async def _what_waits_for_others(stage: Stage) -> None:
    parent = await stage.submit("plans", "waits")

    async def names_its_subtask() -> bool:
        return bool((await stage.cause(parent, "waiting_for_subtasks")).details["open"])

    await eventually(names_its_subtask, what="the sub-task is stored")
    signalled = await stage.cause(await stage.submit("plans"), "waiting_for_signal")
    assert "'approved'" in signalled.because


async def _what_waits_in_a_stream(stage: Stage) -> None:
    stream = {"key": "orders", "mode": "serial"}
    first = await stage.runs("waits", stream=stream)
    second = await stage.cause(await stage.submit("waits", stream=stream), "waiting_for_stream")
    assert second.details["turn"] == {"task_id": first, "status": "RUNNING", "position": 0}


async def _what_is_superseded(stage: Stage) -> None:
    """The submitter of the newer version died before it cancelled the older one."""
    older = await stage.submit("waits", not_before=LATER, unique={"key": "report", "version": 4})
    store = stage.framework.services.store
    task = await stage.framework.get(older)
    record = await read_record(store, record_id(task.user_id, "report"))
    assert record is not None
    await store.write_records([VERSIONS.changed(record, Newest("newer", 5, 0), expires_at=record.expires_at)])
    superseded = await stage.cause(older, "superseded")
    assert superseded.details["newest_task_id"] == "newer"


async def _what_is_paused(stage: Stage) -> None:
    queues = stage.framework.services.queues
    await queues.pause("flaky", by="ada", reason="a bad release")
    await stage.framework.process.pauses.refresh()
    paused = await stage.cause(await stage.submit("flaky", {"succeed_at": 1}), "paused")
    assert paused.because.startswith("ada paused flaky")
    await queues.resume("flaky")
    await stage.framework.process.pauses.refresh()


async def _what_waits_for_its_time(stage: Stage) -> None:
    await stage.cause(await stage.submit("waits", not_before=LATER), "not_before")
    retrying = await stage.cause(await stage.submit("flaky", {"succeed_at": 2, "delay": 600}), "retry_at")
    assert "Attempt 1 of 5 failed (RetryableError: not yet)" in retrying.because


async def _what_a_bucket_holds_back(stage: Stage) -> None:
    await (await stage.framework.submit("limited", None)).result(timeout=60)
    limited = await stage.cause(await stage.submit("limited", None), "rate_limit")
    assert (limited.details["name"], limited.details["key"]) == ("openai", None)
    await (await stage.framework.submit("limited-by-tenant", {"tenant": "a/b"})).result(timeout=60)
    keyed = await stage.cause(await stage.submit("limited-by-tenant", {"tenant": "a/b"}), "rate_limit")
    assert keyed.details["key"] == "a/b"


async def _what_waits_for_a_slot(stage: Stage) -> None:
    holder = await stage.runs("at-once")
    second = await stage.submit("at-once")
    assert [it["task_id"] for it in (await stage.cause(second, "concurrency_limit")).details["holders"]] == [holder]
    explain = stage.framework.services.explain.explain
    await stage.framework.services.store.insert([new_task(task_id="mine", task_type="at-once", user_id="mallory")])
    told = await explain("mine", Scope.of("mallory"), stage.framework.process.broker)
    assert (told.cause.code, told.cause.details["held"], told.cause.details["holders"]) == ("concurrency_limit", 1, [])
    await stage.runs("at-once-by-tenant", {"tenant": "b"})
    keyed = await stage.cause(await stage.submit("at-once-by-tenant", {"tenant": "b"}), "concurrency_limit")
    assert keyed.details["key"] == "b"


async def _what_no_worker_runs(stage: Stage) -> None:
    registry = TaskRegistry()
    declared = TaskDeclaration.of(registry.register(Elsewhere))
    await stage.framework.services.store.write_records([DECLARATION.new("elsewhere", content=declared)])
    nobody = await stage.cause(await stage.submit("elsewhere"), "no_worker")
    assert nobody.details["last_worker_id"] is None


async def _what_is_suspected(stage: Stage) -> None:
    due = stage.framework.services.store.now()
    first = await stage.insert(crashes=2, next_dispatch_at=due)
    await eventually(lambda: stage._is_running(first), what="the first suspect runs")
    second = await stage.cause(await stage.insert(crashes=2, next_dispatch_at=due), "suspect")
    assert second.details["running"] == [first]


async def _what_was_sent(stage: Stage) -> None:
    worker = stage.framework.process.worker
    assert worker is not None
    fillers = [await stage.submit("waits") for _ in range(SLOTS)]
    sent = await stage.cause(fillers[-1], "sent")
    assert sent.details["ahead"] is not None
    await _with_all_slots_taken(stage, fillers[-1])
    unsent = await stage.cause(await stage.insert(next_dispatch_at=LATER), "about_to_be_sent")
    assert "is about to be sent" in unsent.because


async def _with_all_slots_taken(stage: Stage, waiting: str) -> None:
    """By tasks that wait for the same gate: those of its own type, and those that were prepared before."""
    worker = stage.framework.process.worker
    assert worker is not None

    async def are_all_taken() -> bool:
        return worker.in_flight == SLOTS

    await eventually(are_all_taken, what="all slots are taken")
    await worker.sign_of_life.write()
    sent = await stage.cause(waiting, "sent")
    assert f"All slots of its workers ({SLOTS}) are taken: " in sent.because
    assert "the others by tasks of " in sent.because
    assert sum(sent.details["running_by_type"].values()) == SLOTS


async def _the_whole_installation(stage: Stage) -> None:
    """All that was prepared, at a glance."""
    overview = (await stage.http.get("/api/v1/admin/overview")).json()
    assert (overview["workers"], overview["dead_letters"], overview["is_bounded"]) == (1, 1, False)
    seen = {it["task_type"]: it for it in overview["types"]}
    assert (seen["elsewhere"]["waiting"], seen["at-once"]["running"]) == (1, 1)
    assert seen["broken"]["failed_per_second"] > 0
    assert {problem["code"] for problem in overview["problems"]} == {"no_worker", "failing"}
    [queue] = [
        it for it in (await stage.http.get("/api/v1/admin/queues")).json()["items"] if it["task_type"] == "waits"
    ]
    assert queue["lanes"]["normal"]["running"] == seen["waits"]["running"] > 0
    assert queue["lanes"]["normal"]["oldest_at"] is not None


async def _without_the_broker(stage: Stage, settings: Callable[..., Settings]) -> None:
    waiting = await stage.insert(next_dispatch_at=LATER)
    async with _cut_off(stage, settings) as broker:
        explanation = await stage.framework.services.explain.explain(waiting, EVERYONE, broker)
    assert explanation.cause.code == "broker_away"


async def _without_redis(stage: Stage, settings: Callable[..., Settings]) -> None:
    """Asked of a process that looks for Redis where it is not."""
    limited = await stage.submit("limited")
    keyed = new_task(task_type="limited-by-tenant", parameters={"tenant": "new"})
    await stage.framework.services.store.insert([keyed])
    limiter = {"type": "redis", "redis_url": "redis://127.0.0.1:1", "providers": {"openai": {"rate": 1}}}
    elsewhere = TaskFramework(settings(rate_limiter=limiter))
    async with elsewhere.running(worker=False):
        for task_id in (limited, keyed.task_id):
            explanation = await elsewhere.services.explain.explain(task_id, EVERYONE)
            assert (explanation.cause.code, explanation.cause.details["name"]) == ("limiter_away", "openai")
        assert "limiter_away" in [problem.code for problem in (await elsewhere.services.overview.read()).problems()]


@asynccontextmanager
async def _cut_off(stage: Stage, settings: Callable[..., Settings]) -> AsyncIterator[Any]:
    """A broker that is away: the embedded one interrupted, or a process that looks for RabbitMQ where it is not."""
    async with AsyncExitStack() as stack:
        broker = stage.framework.process.broker
        if isinstance(broker, EmbeddedBroker):
            broker.interrupt()
            yield broker
            return
        elsewhere = TaskFramework(settings(broker={"url": "amqp://127.0.0.1:1/"}))
        await stack.enter_async_context(elsewhere.running(worker=False, api=True))
        yield elsewhere.process.broker
