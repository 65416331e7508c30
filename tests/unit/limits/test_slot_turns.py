"""Turns of concurrency limits with a key: who gets a message, who waits in the store, and who is woken."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from taskframework import ConcurrencyLimit, task
from taskframework.brokers.base import Broker
from taskframework.errors import StoreUnavailableError
from taskframework.limits.dispatch_turns import DispatchTurns
from taskframework.limits.slot_turns import SlotTurns
from taskframework.limits.slots import SlotKeeper
from taskframework.model.events import TaskSubmittedEvent
from taskframework.model.marks import Mark
from taskframework.model.records import Record, RecordChange
from taskframework.model.scope import EVERYONE
from taskframework.model.slots import SLOTS, GiveSlotBack, TakeSlot
from taskframework.model.task import Task
from taskframework.stores.reading import read_record
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.producer import DispatchPolicy, TaskMessageProducer
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.clock import FakeClock
from taskframework.testing.factories import new_task
from tests.unit.limits.published import Published


@task("keyed", concurrency_limit=ConcurrencyLimit(2, key="tenant"))
def keyed(parameters: dict[str, str]) -> None: ...


@task("shared", concurrency_limit=2)
def shared(parameters: dict[str, str]) -> None: ...


class Store(SqliteStore):
    """Counts the changes of records; may refuse them. Tells when marks are about to be written."""

    changes = 0
    is_away = False

    async def change_record(self, change: RecordChange) -> Record:
        self.changes += 1
        if self.is_away:
            raise StoreUnavailableError("away")
        return await super().change_record(change)

    async def before_marks(self) -> None: ...

    async def mark(self, *marks: Mark) -> None:
        await self.before_marks()
        await super().mark(*marks)


class Process:
    """A producer with its turns, on a store and a clock of its own."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.store = Store(path, clock=self.clock)
        self.broker = Published()
        registry = TaskRegistry()
        registry.register(keyed)
        registry.register(shared)
        self.waits: list[str] = []
        self.keeper = SlotKeeper(self.store, lambda due: self.producer.dispatch_now(due))
        turns = DispatchTurns([SlotTurns(self.keeper, {}, self.clock, self.waits.append)], registry, self.store)
        self.producer = TaskMessageProducer(
            self.store, cast(Broker, self.broker), self.clock, DispatchPolicy(), turns=turns
        )

    async def submit(self, tenant: str, count: int = 1, task_type: str = "keyed") -> list[Task]:
        """Store tasks of a tenant, and let the producer hear of them; return them as they are afterwards."""
        own: dict[str, Any] = {"parameters": {"tenant": tenant}, "task_type": task_type}
        tasks = [new_task(now=self.clock.now(), **own) for _ in range(count)]
        await self.store.insert(tasks)
        for submitted in tasks:
            self.producer.on_event(TaskSubmittedEvent(submitted))
        await self.producer.wait_until_sent()
        found = await self.store.get_many([task.task_id for task in tasks], EVERYONE)
        return [found[task.task_id] for task in tasks]

    async def take(self, task: Task, tenant: str = "busy") -> bool:
        """Let a worker take a slot for a task."""
        claim = f"claim of {task.task_id}"
        take = TakeSlot(SLOTS.id_of("keyed", tenant), 2, task.task_id, claim, "w", 1, 1.0, 15.0)
        return (await self.keeper.change(take)).held_by(claim) is not None

    async def end(self, task: Task, tenant: str = "busy") -> None:
        """Let the attempt of a task end."""
        await self.keeper.give_back(SLOTS.id_of("keyed", tenant), f"claim of {task.task_id}")

    @property
    def sent(self) -> Sequence[str]:
        return [message.task_id for message in self.broker.messages]


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(tmp_path / "tasks.db")
    await process.store.open()
    yield process
    await process.producer.close()
    await process.store.close()


async def test_at_the_usual_rate_nobody_asks_for_the_slots(process: Process) -> None:
    for _ in range(5):
        await process.submit("ann", 2)
        process.clock.advance(1)
    await process.submit("ann", 20, task_type="shared")
    assert (len(process.sent), process.store.changes) == (30, 0)


async def test_a_flood_of_one_key_waits_in_the_store_and_other_keys_get_messages(process: Process) -> None:
    first = await process.submit("busy", 2)
    for running in first:
        assert await process.take(running)
    flood = await process.submit("busy", 100)
    [quiet] = await process.submit("quiet")
    assert process.sent == [*(task.task_id for task in first), quiet.task_id]
    assert process.waits == ["keyed"] * 100
    for waiting in flood:
        assert waiting.waits_for_limit is not None
        assert waiting.waits_for_limit.limit == SLOTS.id_of("keyed", "busy")
        assert waiting.next_dispatch_at is not None
        assert 45 <= (waiting.next_dispatch_at - process.clock.now()).total_seconds() <= 75
    await process.end(first[0])
    assert process.sent[3:] == [flood[0].task_id], "one slot, one task, in the order of submission"
    await process.end(first[1])
    assert process.sent[3:] == [flood[0].task_id, flood[1].task_id]


async def test_as_many_get_a_message_as_slots_are_free(process: Process) -> None:
    await process.submit("busy", 2)
    flood = await process.submit("busy", 100)
    assert process.sent[2:] == [task.task_id for task in flood[:2]]


async def test_a_slot_that_is_given_back_before_the_tasks_can_be_found_wakes_one(process: Process) -> None:
    first = await process.submit("busy", 2)
    for running in first:
        await process.take(running)

    async def end_now() -> None:
        process.store.before_marks = Store.before_marks.__get__(process.store)  # type: ignore[method-assign]
        await process.end(first[0])
        assert process.sent[2:] == [], "nobody is found yet"

    process.store.before_marks = end_now  # type: ignore[method-assign]
    flood = await process.submit("busy", 3)
    assert process.sent[2:] == [flood[0].task_id]


async def test_a_woken_task_gets_its_message_without_another_question(process: Process) -> None:
    first = await process.submit("busy", 2)
    for running in first:
        await process.take(running)
    [waiting] = await process.submit("busy")
    process.clock.advance(80)
    assert await process.producer.dispatch(waiting)
    assert process.sent[2:] == [waiting.task_id]


async def test_while_the_store_is_away_workers_decide(process: Process) -> None:
    first = await process.submit("busy", 2)
    for running in first:
        await process.take(running)
    process.store.is_away = True
    await process.submit("busy", 3)
    assert len(process.sent) == 5


async def test_slots_that_only_a_newer_release_can_read_hold_up_nobody(process: Process) -> None:
    await process.submit("busy", 2)
    limit = SLOTS.id_of("keyed", "busy")
    await process.store.write_records([Record(limit, SLOTS.name, {"holders": "of tomorrow"})])
    await process.submit("busy", 3)
    assert len(process.sent) == 5


async def test_a_record_that_was_made_for_waiting_tasks_alone_goes_away(process: Process) -> None:
    await process.submit("busy", 5)
    record = await read_record(process.store, SLOTS.id_of("keyed", "busy"))
    assert record is not None
    assert record.expires_at is not None
    assert record.expires_at - process.clock.now() == timedelta(seconds=180)
    assert SLOTS.content(record).number == 2
    await process.keeper.change(GiveSlotBack(record.id, "of nobody"))
