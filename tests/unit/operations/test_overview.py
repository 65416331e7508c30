"""Why a type is behind: the limits that let no more of its tasks begin."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from taskframework.limits.buckets import MemoryBuckets
from taskframework.model.counts import TaskCounts
from taskframework.model.rate_limits import RATE, AttemptLimit, TakePermits
from taskframework.model.slots import SLOTS, Holder, Slots
from taskframework.model.workers import PRESENCE, Presence
from taskframework.operations.limits import LimitOperations
from taskframework.operations.overview import OverviewOperations
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.types import TaskTypes
from taskframework.tasks.declarations import DECLARATION, TaskDeclaration
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.clock import FakeClock
from taskframework.testing.factories import new_task

RATE_LIMIT = AttemptLimit(0.01, 1)
HOLDER = Holder("other", "claim", "worker-1", 0.0, 1.0)
CHARGE = TaskDeclaration(task_type="charge", parameters_schema={}, result_schema={}, priority="normal")


@pytest.fixture
async def store(store: SqliteStore, clock: FakeClock) -> SqliteStore:
    """A task has waited for ten minutes, and a worker runs its type."""
    await store.insert([new_task(now=store.now(), task_type="charge")])
    clock.advance(timedelta(minutes=10))
    now = store.now()
    worker = Presence("worker-1", "host", 1, "1.0", ("charge",), 2, 0, now, now)
    await store.write_records([PRESENCE.new("worker-1", content=worker)])
    return store


async def advice(store: SqliteStore, buckets: MemoryBuckets, declared: TaskDeclaration = CHARGE) -> str:
    """What the problem `behind` advises."""
    await store.write_records([DECLARATION.new("charge", content=declared)])

    async def not_counted() -> TaskCounts | None:
        return None

    types, limits = TaskTypes(TaskRegistry(), store), LimitOperations(buckets, {"openai": RATE_LIMIT}, store)
    overview = await OverviewOperations(store, types, not_counted, limits=limits).read()
    [problem] = overview.problems()
    assert problem.code == "behind"
    return problem.text


async def test_without_a_limit_more_workers_are_advised(store: SqliteStore, clock: FakeClock) -> None:
    await store.write_records([SLOTS.new("other-type", content=Slots(1, (HOLDER,)))])
    assert "Start more workers" in await advice(store, MemoryBuckets(clock))


async def test_a_rate_limit_that_is_used_up_is_named(store: SqliteStore, clock: FakeClock) -> None:
    buckets = MemoryBuckets(clock)
    await buckets.take(TakePermits(RATE.id_of("openai", "acme"), RATE_LIMIT))
    told = await advice(store, buckets, replace(CHARGE, rate_limit="openai"))
    assert "The rate limit 'openai' for acme is used up" in told


async def test_slots_that_are_all_in_use_are_named(store: SqliteStore, clock: FakeClock) -> None:
    await store.write_records([SLOTS.new("charge", content=Slots(1, (HOLDER,)))])
    assert "All slots of charge are in use" in await advice(store, MemoryBuckets(clock))
