"""How many tasks wait, run, come and end: one full type hides nothing of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from taskframework.limits.buckets import MemoryBuckets
from taskframework.model.scope import EVERYONE
from taskframework.model.status import Priority, TaskStatus
from taskframework.model.traffic import LaneTraffic
from taskframework.model.workers import PRESENCE, Presence
from taskframework.operations import explain, traffic
from taskframework.operations.explain import ExplainOperations
from taskframework.operations.traffic import read_traffic
from taskframework.settings import WorkerSettings
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.factories import new_task

MOST = 5


@pytest.fixture
async def store(store: SqliteStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> SqliteStore:
    """More tasks of one type wait than are counted; after them came a few others."""
    for module in (traffic, explain):
        monkeypatch.setattr(module, "MAX_WAITING", MOST)
    await put(store, 2 * MOST, task_type="full")
    await put(store, 2 * MOST, task_type="flaky", status=TaskStatus.RETRYING)
    clock.advance(1)
    await put(store, 1, task_type="full", priority="high")
    await put(store, 2, task_type="few")
    await put(store, 2, task_type="few", status=TaskStatus.RETRYING)
    clock.advance(1)
    return store


async def put(store: SqliteStore, number: int, **fields: Any) -> None:
    await store.insert([new_task(now=store.now(), **fields) for _ in range(number)])


async def test_a_full_type_hides_nothing_of_another(store: SqliteStore) -> None:
    seen = await read_traffic(store, ["few", "none"])
    full, few = seen.of_lane("full", Priority.NORMAL), seen.of_type("few")
    assert (full.waiting, full.is_bounded) == (MOST, True)
    assert (few.waiting, few.retrying, few.is_bounded) == (4, 2, False)
    assert seen.of_lane("full", Priority.HIGH).waiting == 1
    assert not seen.of_lane("full", Priority.HIGH).is_bounded
    assert seen.of_type("none") == LaneTraffic()
    assert seen.is_bounded
    assert not seen.is_running_bounded


async def test_running_tasks_that_are_too_many_bound_no_waiting_ones(store: SqliteStore) -> None:
    await put(store, MOST, task_type="busy", status=TaskStatus.RUNNING)
    seen = await read_traffic(store, [])
    assert seen.is_running_bounded
    assert not seen.of_type("busy").is_bounded


async def cause_of(store: SqliteStore, **fields: Any) -> str:
    """Why a task whose message was sent does not run."""
    task = new_task(now=store.now(), dispatches=1, **fields)
    await store.insert([task])
    operations = ExplainOperations(store, MemoryBuckets(FakeClock()), {}, WorkerSettings())
    return (await operations.explain(task.task_id, EVERYONE)).cause.because


async def put_worker(store: SqliteStore, **fields: Any) -> None:
    now = store.now()
    worker = Presence("worker-1", "host", 1, "1.0", ("few", "full", "busy"), 2, 2, now, now)
    await store.write_records([PRESENCE.new("worker-1", content=replace(worker, **fields))])


async def test_the_tasks_ahead_of_a_task_are_counted_in_its_lane(store: SqliteStore) -> None:
    await put_worker(store)
    assert "5 or more tasks are ahead of it in the normal lane of full." in await cause_of(store, task_type="full")
    high = await cause_of(store, task_type="full", priority="high")
    assert "; 1 task is ahead of it in the high lane of full." in high


@pytest.mark.parametrize("in_flight", [1, 2])
async def test_tasks_of_another_type_that_have_all_slots_are_named(store: SqliteStore, in_flight: int) -> None:
    await put_worker(store, in_flight=in_flight)
    await put(store, 2, task_type="busy", status=TaskStatus.RUNNING)
    await put(store, 2, task_type="elsewhere", status=TaskStatus.RUNNING)
    told = await cause_of(store, task_type="few")
    assert told.endswith("All slots of its workers (2) are taken by tasks of busy.") is (in_flight == 2)
