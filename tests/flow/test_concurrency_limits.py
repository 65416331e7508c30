"""Concurrency limits from submission to execution: how many run at once, what waits meanwhile, and what does not."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from taskframework import (
    BackgroundTaskExecutable,
    ConcurrencyLimit,
    RateLimit,
    RetryableError,
    TaskContext,
    TaskFramework,
    TaskHandle,
    TaskOptions,
    TaskStatus,
)
from taskframework.model.limits import waiting_limit
from taskframework.model.scope import EVERYONE
from taskframework.model.slots import SLOTS, Slots
from taskframework.stores.reading import read_record
from taskframework.testing.eventually import eventually
from tests.flow.conftest import Run


class Gate:
    """What runs at present, in the order in which it began, until it is let go."""

    running: ClassVar[list[str]] = []
    most: ClassVar[int] = 0
    order: ClassVar[list[str]] = []
    is_open: ClassVar[asyncio.Event]

    @classmethod
    async def pass_through(cls, name: str) -> None:
        cls.running.append(name)
        cls.order.append(name)
        cls.most = max(cls.most, len(cls.running))
        try:
            await cls.is_open.wait()
            await asyncio.sleep(0)
        finally:
            cls.running.remove(name)


class Two(BackgroundTaskExecutable[str, int]):
    """At most two of it run at once."""

    task_type = "two"
    options = TaskOptions(concurrency_limit=2)

    async def execute(self, context: TaskContext[str]) -> int:
        await Gate.pass_through(context.parameters)
        if context.parameters == "fails" and context.attempt == 1:
            raise RetryableError("once more")
        return context.attempt


class Free(BackgroundTaskExecutable[str, None]):
    """Without a limit of its own."""

    task_type = "free"

    async def execute(self, context: TaskContext[str]) -> None:
        await Gate.pass_through(context.parameters)


class Parameters(BaseModel):
    tenant: str
    name: str = ""


class ByTenant(BackgroundTaskExecutable[Parameters, int]):
    """One of each tenant runs at once."""

    task_type = "by-tenant"
    options = TaskOptions(concurrency_limit=ConcurrencyLimit(1, key="tenant"))

    async def execute(self, context: TaskContext[Parameters]) -> int:
        if context.parameters.tenant == "busy":
            await Gate.pass_through(context.parameters.name)
        return context.attempt


class Both(BackgroundTaskExecutable[Parameters, int]):
    """Two limits: a slot and a permit."""

    task_type = "both"
    options = TaskOptions(concurrency_limit=2, rate_limit=RateLimit("openai", key="tenant"))

    async def execute(self, context: TaskContext[Parameters]) -> int:
        return context.attempt


class Waiting(BackgroundTaskExecutable[None, int]):
    """Plans one of its own type, which could not run if the waiting one kept its slot."""

    task_type = "waiting"
    options = TaskOptions(concurrency_limit=1)

    async def execute(self, context: TaskContext[None]) -> int:
        if context.parent_task_id is None:
            await context.submit_subtask("waiting", None)
        return 1

    async def on_subtasks_finished(self, context: TaskContext[None], summary: Any) -> int:
        return 10 + int(summary.succeeded)


@pytest.fixture(autouse=True)
def _gate() -> None:
    Gate.running, Gate.order, Gate.most, Gate.is_open = [], [], 0, asyncio.Event()


async def slots(framework: TaskFramework, *parts: str) -> Slots:
    """The slots of a limit as they are stored."""
    record = await read_record(framework.services.store, SLOTS.id_of(*parts))
    return Slots() if record is None else SLOTS.content(record)


def _is_running(name: str) -> bool:
    return Gate.running == [name]


async def all_given_back(framework: TaskFramework, *parts: str) -> None:
    async def is_so() -> bool:
        return not (await slots(framework, *parts)).holders

    await eventually(is_so)


async def test_no_more_tasks_run_at_once_than_there_are_slots_and_all_are_done(run: Run) -> None:
    async with run(extra=[Two]) as framework:
        handles = [await framework.submit("two", str(at)) for at in range(8)]
        await eventually(lambda: len(Gate.running) == 2)
        holders = (await slots(framework, "two")).holders
        assert {holder.task_id for holder in holders} == {
            task.task_id for task in [await it.task() for it in handles] if task.status is TaskStatus.RUNNING
        }
        Gate.is_open.set()
        assert [await handle.result(timeout=60) for handle in handles] == [1] * 8
        await all_given_back(framework, "two")
    assert Gate.most == 2


async def test_the_next_task_of_a_stream_takes_a_slot_of_a_limit_in_the_settings(run: Run) -> None:
    async with run(extra=[Free], concurrency=10, at_once={"free": 10}) as framework:
        handles = [await framework.submit("free", str(at), stream={"key": "one"}) for at in range(2)]
        for at, handle in enumerate(handles):
            await eventually(partial(_is_running, str(at)))
            assert [holder.task_id for holder in (await slots(framework, "free")).holders][-1:] == [handle.task_id]
            Gate.is_open.set()
            Gate.is_open = asyncio.Event()
        await handles[-1].result(timeout=60)


async def test_a_task_that_waits_for_a_slot_holds_up_no_other_type(run: Run) -> None:
    async with run(extra=[Two], concurrency=3) as framework:
        for at in range(20):
            await framework.submit("two", str(at))
        await eventually(lambda: len(Gate.running) == 2)
        others = [await framework.submit("counts") for _ in range(20)]
        for handle in others:
            assert await handle.result(timeout=60) == 1
        assert len(Gate.order) == 2
        Gate.is_open.set()


async def test_each_key_has_its_own_slots_and_waiting_tasks_run_in_order(run: Run) -> None:
    async with run(extra=[ByTenant], recovery={"sweep_interval": "1h"}) as framework:
        busy = [await framework.submit("by-tenant", {"tenant": "busy", "name": "first"})]
        await eventually(lambda: Gate.running == ["first"])
        for name, priority in (("low", "low"), ("second", "normal"), ("third", "normal"), ("high", "high")):
            busy.append(await framework.submit("by-tenant", {"tenant": "busy", "name": name}, priority=priority))

            async def is_put_off(handle: TaskHandle = busy[-1]) -> bool:
                return waiting_limit(await handle.task()) == SLOTS.id_of("by-tenant", "busy")

            await eventually(is_put_off)
        others = [await framework.submit("by-tenant", {"tenant": f"tenant {at}"}) for at in range(5)]
        for handle in others:
            assert await handle.result(timeout=60) == 1
        Gate.is_open.set()
        assert [await handle.result(timeout=60) for handle in busy] == [1] * 5, "waiting counts no attempt"
        await all_given_back(framework, "by-tenant", "busy")
    assert (Gate.order, Gate.most) == (["first", "high", "second", "third", "low"], 1)


async def test_a_task_that_is_cancelled_while_it_waits_for_a_slot_leaves_nothing_behind(run: Run) -> None:
    async with run(extra=[ByTenant]) as framework:
        first = await framework.submit("by-tenant", {"tenant": "busy", "name": "first"})
        await eventually(lambda: Gate.running == ["first"])
        second, third = [await framework.submit("by-tenant", {"tenant": "busy", "name": str(at)}) for at in (2, 3)]
        limit, store = SLOTS.id_of("by-tenant", "busy"), framework.services.store

        async def waiting() -> list[str]:
            return [task.task_id for task in await store.waiting_for(limit, 10)]

        await eventually(lambda: _same(waiting, [second.task_id, third.task_id]))
        await framework.services.tasks.cancel(second.task_id, EVERYONE, by="ada")
        assert await waiting() == [third.task_id]
        Gate.is_open.set()
        assert await third.result(timeout=60) == 1
        await first.result(timeout=60)
        await all_given_back(framework, "by-tenant", "busy")
        assert await waiting() == []


async def _same(ask: Any, expected: list[str]) -> bool:
    return bool(await ask() == expected)


async def test_a_repeated_attempt_takes_a_slot_again(run: Run) -> None:
    Gate.is_open.set()
    async with run(extra=[Two]) as framework:
        handles = [await framework.submit("two", "fails") for _ in range(4)]
        assert [await handle.result(timeout=60) for handle in handles] == [2] * 4
        await all_given_back(framework, "two")
    assert Gate.most <= 2


async def test_a_parent_that_waits_holds_no_slot(run: Run) -> None:
    async with run(extra=[Waiting]) as framework:
        parent = await framework.submit("waiting")
        assert await parent.result(timeout=60) == 11
        await all_given_back(framework, "waiting")


async def test_a_slot_and_a_permit_are_both_needed_and_neither_is_lost(run: Run) -> None:
    limiter = {"providers": {"openai": {"rate": 20, "burst_capacity": 1}}}
    async with run(extra=[Both], rate_limiter=limiter) as framework:
        handles = [await framework.submit("both", {"tenant": str(at % 2)}) for at in range(10)]
        assert [await handle.result(timeout=60) for handle in handles] == [1] * 10
        await all_given_back(framework, "both")


async def test_a_number_in_the_settings_counts_instead_of_that_of_the_type(run: Run) -> None:
    async with run(extra=[Two], at_once={"two": 3}) as framework:
        for at in range(6):
            await framework.submit("two", str(at))
        await eventually(lambda: len(Gate.running) == 3)
        assert (await slots(framework, "two")).number == 3
        Gate.is_open.set()


async def test_a_stop_gives_slots_back_and_sends_back_what_waits(run: Run) -> None:
    async with run(extra=[Two]) as framework:
        handles = [await framework.submit("two", str(at)) for at in range(3)]
        await eventually(lambda: len(Gate.running) == 2)
        assert framework.process.worker is not None
        async with asyncio.timeout(20):
            await framework.process.worker.stop()
        await all_given_back(framework, "two")
        tasks = [await handle.task() for handle in handles]
    assert sorted(task.attempts for task in tasks) == [0, 0, 0]
