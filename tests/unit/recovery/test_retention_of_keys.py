"""Idempotency keys and other records go when their time is over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskframework import BackgroundTaskExecutable, TaskContext
from taskframework.bus import EventBus
from taskframework.model.idempotency import GRACE, key_id, key_record
from taskframework.model.interventions import Cancel
from taskframework.model.marks import MarkPublished
from taskframework.model.records import Record
from taskframework.model.scope import EVERYONE
from taskframework.model.task import Task
from taskframework.recovery.retention import RetentionRepair
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.requests import SubmitRequest
from taskframework.submission.types import TaskTypes
from taskframework.tasks.registry import TaskRegistry
from taskframework.tasks.retention import retention_from_times
from taskframework.testing.clock import FakeClock
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.factories import new_task
from tests.support.submission import keyed_inserts, submission_into

DAY = timedelta(days=1)
BATCH = 2


class Plain(BackgroundTaskExecutable[None, None]):
    task_type = "plain"

    async def execute(self, context: TaskContext[None]) -> None: ...


def retention_of(store: SqliteStore, **kept: timedelta | None) -> RetentionRepair:
    usual: dict[str, Any] = {"finished": 7 * DAY, "dead_letters": 90 * DAY, "idempotency_keys": DAY}
    return RetentionRepair(store, **(usual | kept), limit=BATCH)


async def keyed(store: SqliteStore, clock: FakeClock, kept: timedelta, **values: Any) -> Task:
    """Submit a task with a key."""
    task = new_task(now=clock.now(), idempotency_key="key", parameters_hash="hash", **values)
    return (await insert_one(keyed_inserts(store, kept), task)).task


async def knows_the_key(store: SqliteStore) -> bool:
    return bool(await store.read_records([key_id("alice", "key")]))


async def test_records_that_only_a_newer_release_can_read_hold_up_no_others(
    store: SqliteStore, clock: FakeClock
) -> None:
    newer = [
        Record(f"idempotency/alice/{n}", "idempotency", {"of": "a newer release"}, None, clock.now()) for n in "12"
    ]
    await store.write_records(newer)
    task = await keyed(store, clock, DAY)
    await store.apply(Cancel(task.task_id, EVERYONE, "alice", None))
    clock.advance(8 * DAY)
    await store.mark(MarkPublished(task.task_id, 9))
    assert await retention_of(store).purge(), "it deleted the task"
    assert not await retention_of(store).purge(), "it would look at the same records again, without a pause"
    assert await store.get(task.task_id, EVERYONE) is None
    assert not await knows_the_key(store), "its record came after a whole group of the others"
    kept = await store.read_records([record.id for record in newer])
    assert [record.data for record in kept.values()] == [{"of": "a newer release"}] * 2
    clock.advance(timedelta(hours=1))
    assert await retention_of(store).purge(), "it looks at them again"


async def test_damaged_records_are_left_as_they_are(store: SqliteStore, clock: FakeClock) -> None:
    damaged = [Record(f"idempotency/alice/{n}", "idempotency", None, None, clock.now()) for n in "12"]
    await store.write_records(damaged)
    before = await store.read_records([record.id for record in damaged])
    clock.advance(DAY)
    assert not await retention_of(store).purge(), "it would look at the same records again, without a pause"
    assert await store.read_records([record.id for record in damaged]) == before


@pytest.mark.parametrize("days", [0, 3], ids=["ends at once", "ends late"])
async def test_a_key_is_kept_for_a_day_after_the_end_of_its_task(
    store: SqliteStore, clock: FakeClock, days: int
) -> None:
    retention = retention_of(store)
    task = await keyed(store, clock, DAY)
    for _ in range(days * 24):
        clock.advance(timedelta(hours=1))
        await retention.purge()
        assert (await keyed(store, clock, DAY)).task_id == task.task_id
    await store.apply(Cancel(task.task_id, EVERYONE, "alice", None))
    clock.advance(DAY - timedelta(seconds=1))
    await retention.purge()
    assert await knows_the_key(store)
    clock.advance(GRACE + timedelta(seconds=1))
    await retention.purge()
    assert not await knows_the_key(store)
    assert await store.get(task.task_id, EVERYONE) is not None
    assert (await keyed(store, clock, DAY)).task_id != task.task_id


async def test_the_key_of_a_submission_that_died_is_removed_when_its_time_is_over(
    store: SqliteStore, clock: FakeClock
) -> None:
    record = key_record(new_task(now=clock.now(), idempotency_key="key"), DAY)
    await store.write_records([record])
    retention = retention_of(store)
    clock.advance(DAY)
    await retention.purge()
    assert await knows_the_key(store)
    clock.advance(GRACE)
    await retention.purge()
    assert not await knows_the_key(store)


@pytest.mark.parametrize("kept", [timedelta(hours=1), None], ids=["less time", "for ever"])
async def test_a_task_stays_as_long_as_its_key(
    store: SqliteStore, clock: FakeClock, kept: timedelta | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "taskframework.recovery.retention")
    registry = TaskRegistry()
    registry.register(Plain)
    service = submission_into(
        store, TaskTypes(registry, store), EventBus(), keys_kept=DAY, kept=retention_from_times(kept, kept)
    )

    async def submit() -> Task:
        return (await service.submit(SubmitRequest(task_type="plain", user_id="alice", idempotency_key="key"))).task

    task = await submit()
    await store.apply(Cancel(task.task_id, EVERYONE, "alice", None))
    await store.mark(MarkPublished(task.task_id, 2))
    clock.advance(DAY - timedelta(minutes=1))
    await retention_of(store, finished=kept).purge()
    assert (await submit()).task_id == task.task_id
    clock.advance(timedelta(minutes=2) + GRACE)
    await retention_of(store, finished=kept).purge()
    assert (await submit()).task_id != task.task_id
    assert (await store.get(task.task_id, EVERYONE) is None) is (kept is not None)
    assert caplog.messages == (["deleted 1 ended task whose retention is over"] if kept else [])


async def test_no_key_outlives_a_task_that_is_kept_for_less_time(store: SqliteStore, clock: FakeClock) -> None:
    task = await keyed(store, clock, 9 * DAY)
    await store.apply(Cancel(task.task_id, EVERYONE, "alice", None))
    await store.mark(MarkPublished(task.task_id, 2))
    clock.advance(timedelta(hours=2))
    await retention_of(store, finished=timedelta(hours=1), idempotency_keys=9 * DAY).purge()
    assert await store.get(task.task_id, EVERYONE) is None
    assert not await knows_the_key(store)


async def test_a_backlog_of_records_is_removed_batch_by_batch(store: SqliteStore, clock: FakeClock) -> None:
    names = [f"note/{n}" for n in range(2 * BATCH + 1)]
    await store.write_records([Record(name, "note", {}, expires_at=clock.now()) for name in names])
    retention = retention_of(store)
    looks = [await retention.purge() for _ in range(3)]
    assert looks == [True, True, False]
    assert await store.list_records("note", limit=1) == []
