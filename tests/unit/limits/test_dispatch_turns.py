"""Turns at dispatch: which tasks get a turn instead of a message, and what happens if bucket or store are away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from taskframework import RateLimit, task
from taskframework.brokers.base import Broker
from taskframework.errors import StoreUnavailableError
from taskframework.limits.buckets import LimiterUnavailableError, StoreBuckets
from taskframework.limits.dispatch_turns import DispatchTurns
from taskframework.limits.rate_turns import RateTurns
from taskframework.model.events import TaskSubmittedEvent
from taskframework.model.marks import Mark
from taskframework.model.rate_limits import RATE, AttemptLimit, Bucket, TakePermits
from taskframework.model.scope import EVERYONE
from taskframework.model.task import Task
from taskframework.model.task_fields import LimitWait
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.producer import DispatchPolicy, TaskMessageProducer
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from tests.unit.limits.published import Published

#: One attempt in ten seconds for each tenant; one at once after a pause.
LIMIT = AttemptLimit(0.1, 1)
TEN_SECONDS = timedelta(seconds=10)


@task("keyed", rate_limit=RateLimit("openai", key="tenant"))
def keyed(parameters: dict[str, str]) -> None: ...


@task("shared", rate_limit="openai")
def shared(parameters: dict[str, str]) -> None: ...


class Buckets(StoreBuckets):
    """Counts the questions; may be away."""

    reads = 0
    is_away = False

    async def read(self, record_id: str) -> Bucket | None:
        self.reads += 1
        if self.is_away:
            raise LimiterUnavailableError
        return await super().read(record_id)


class Store(SqliteStore):
    """May take no marks."""

    is_away = False

    async def mark(self, *marks: Mark) -> None:
        if self.is_away:
            raise StoreUnavailableError("away")
        await super().mark(*marks)


class Process:
    """A producer with its turns, on a store and a clock of its own."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.store = Store(path, clock=self.clock)
        self.buckets = Buckets(self.store)
        self.broker = Published()
        registry = TaskRegistry()
        registry.register(keyed)
        registry.register(shared)
        self.put_off: list[str] = []
        limits = {"openai": LIMIT}
        self.rule = RateTurns(self.buckets, limits, self.store, self.clock, self.put_off.append)
        self.turns = DispatchTurns([self.rule], registry, self.store)
        self.producer = TaskMessageProducer(
            self.store, cast(Broker, self.broker), self.clock, DispatchPolicy(), turns=self.turns
        )

    async def submit(self, tenant: str, count: int = 1, **fields: Any) -> list[Task]:
        """Store tasks of a tenant, and let the producer hear of them; return them as they are afterwards."""
        fields = {"task_type": "keyed", **fields}
        tasks = [new_task(now=self.clock.now(), parameters={"tenant": tenant}, **fields) for _ in range(count)]
        for submitted in tasks:
            await self.store.insert([submitted])
            self.producer.on_event(TaskSubmittedEvent(submitted))
        await self.producer.wait_until_sent()
        return await self.read(tasks)

    async def read(self, tasks: Sequence[Task]) -> list[Task]:
        found = await self.store.get_many([task.task_id for task in tasks], EVERYONE)
        return [found[task.task_id] for task in tasks]

    async def use_up(self, tenant: str, attempts: int = 1) -> None:
        """Let workers take so many permits or turns of a tenant."""
        for _ in range(attempts):
            await self.buckets.take(TakePermits(RATE.id_of("openai", tenant), LIMIT, in_line=True))

    @property
    def sent(self) -> int:
        return len(self.broker.messages)


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(tmp_path / "tasks.db")
    await process.store.open()
    yield process
    await process.producer.close()
    await process.store.close()


async def test_at_the_usual_rate_nobody_asks_the_bucket(process: Process) -> None:
    for _ in range(5):
        await process.submit("ann")
        process.clock.advance(10)
    for at in range(5):
        await process.submit(f"tenant {at}")
    await process.submit("ann", 5, task_type="shared")
    assert (process.sent, process.buckets.reads) == (15, 0)


async def test_a_flood_of_one_key_gets_turns_one_after_the_other_and_other_keys_get_messages(process: Process) -> None:
    await process.use_up("busy")
    first, *others = await process.submit("busy", 31)
    [quiet] = await process.submit("quiet")
    assert [message.task_id for message in process.broker.messages] == [first.task_id, quiet.task_id]
    assert first.waits_for_limit is None
    due = [task.next_dispatch_at for task in others]
    assert due == [process.clock.now() + TEN_SECONDS * place for place in range(1, 31)]
    assert {(task.attempts, task.dispatches) for task in others} == {(0, 0)}
    turns = [task.waits_for_limit for task in others]
    assert turns == [LimitWait(RATE.id_of("openai", "busy"), 1, time) for time in due if time is not None]
    assert process.put_off == ["openai"] * 30


async def test_while_no_worker_takes_permits_every_task_gets_its_message(process: Process) -> None:
    await process.submit("busy", 10)
    assert process.sent == 10


async def test_a_turn_that_comes_soon_is_waited_for_by_the_worker(process: Process) -> None:
    await process.use_up("busy")
    await process.submit("busy")
    process.clock.advance(8.5)
    await process.submit("busy", 3)
    assert process.sent == 4
    assert process.buckets.reads


async def test_turns_that_nobody_uses_hold_up_no_newcomer(process: Process) -> None:
    await process.use_up("busy")
    await process.submit("busy", 100)  # and all of them are cancelled
    process.clock.advance(60)
    await process.submit("busy", 2)
    assert process.sent == 3


async def test_the_sweeper_sends_a_task_whose_turn_has_come_and_gives_turns_to_others(process: Process) -> None:
    await process.use_up("busy")
    [_, with_turn, newcomer] = await process.submit("busy", 3)
    assert await process.producer.dispatch(with_turn)
    assert process.sent == 2
    of_old = LimitWait(RATE.id_of("openai", "busy"), 1, process.clock.now())
    replayed = newcomer.evolve(dispatch_epoch=2, waits_for_limit=of_old)
    assert await process.producer.dispatch(replayed)
    await process.producer.wait_until_sent()
    assert process.sent == 2


async def test_a_task_that_was_sent_meanwhile_gets_no_turn(process: Process) -> None:
    await process.use_up("busy")
    await process.submit("busy")
    task = new_task(now=process.clock.now(), task_type="keyed", parameters={"tenant": "busy"})
    await process.store.insert([task])
    process.clock.advance(5)
    assert await process.store.apply(process.producer.reservation(task.task_id, 1)) is not None
    process.producer.on_event(TaskSubmittedEvent(task))
    await process.producer.wait_until_sent()
    [found] = await process.read([task])
    assert (found.waits_for_limit, found.dispatches) == (None, 1)


async def test_without_an_answer_of_the_bucket_workers_decide(process: Process) -> None:
    await process.use_up("busy")
    process.buckets.is_away = True
    await process.submit("busy", 3)
    assert process.sent == 3


async def test_a_mistake_leaves_its_tasks_to_the_sweeper_and_the_next_get_their_turns(
    process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await process.use_up("busy")
    with monkeypatch.context() as patched:
        patched.setattr(process.rule, "waits_of", None)
        await process.submit("busy", 2)
    assert caplog.messages == ["tasks under limits are left to the sweeper: rate/openai/busy"]
    [later] = await process.submit("busy")
    assert (process.sent, later.waits_for_limit is not None) == (1, True)


async def test_a_task_that_comes_when_the_last_turn_was_just_written_gets_its_turn(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await process.use_up("busy")
    await process.submit("busy")
    earlier, later = (new_task(now=process.clock.now(), parameters={"tenant": "busy"}, task_type="keyed") for _ in "12")
    await process.store.insert([later])
    is_written = asyncio.Event()

    async def write(turns: object) -> None:
        await is_written.wait()

    with monkeypatch.context() as patched:
        patched.setattr(process.turns, "_write", write)
        process.producer.on_event(TaskSubmittedEvent(earlier))
        await eventually(lambda: bool(is_written._waiters))
    is_written.set()
    asyncio.get_running_loop().call_soon(process.producer.on_event, TaskSubmittedEvent(later))
    await asyncio.sleep(0)
    await process.producer.wait_until_sent()
    [found] = await process.read([later])
    assert found.waits_for_limit is not None


async def test_without_the_store_tasks_are_left_to_the_sweeper(process: Process) -> None:
    await process.use_up("busy")
    process.store.is_away = True
    [_, *others] = await process.submit("busy", 3)
    assert process.sent == 1
    assert {task.next_dispatch_at for task in others} == {process.clock.now() + timedelta(seconds=5)}
