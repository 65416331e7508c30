"""Why a task does not end: what its worker's record tells of the worker."""

from __future__ import annotations

from datetime import timedelta

from taskframework.limits.buckets import MemoryBuckets
from taskframework.model.message import rfc3339
from taskframework.model.records import Record
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task_fields import Lease
from taskframework.model.workers import PRESENCE, Presence
from taskframework.operations.explain import ExplainOperations
from taskframework.settings import WorkerSettings
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.factories import new_task

SECOND = timedelta(seconds=1)


async def test_a_killed_worker_is_the_cause_before_its_lease_is_over(store: SqliteStore, clock: FakeClock) -> None:
    settings = WorkerSettings(lease=30 * SECOND)
    killed_at = store.now()
    worker = Presence("worker-1", "host", 1, "1.0", ("test-task",), 2, 1, killed_at, killed_at)
    await store.write_records([PRESENCE.new("worker-1", content=worker)])
    lease = Lease("worker-1", "claim", killed_at + settings.lease)
    await store.insert([new_task(task_id="it", now=killed_at, status=TaskStatus.RUNNING, lease=lease)])
    explain = ExplainOperations(store, MemoryBuckets(clock), {}, settings).explain

    clock.advance(10)
    assert "the worker renews it" in (await explain("it", EVERYONE)).cause.because
    clock.advance(10)
    silent = (await explain("it", EVERYONE)).cause
    assert silent.because.endswith(f", but has sent no sign of life since {rfc3339(killed_at)}.")
    taken_after = rfc3339(killed_at + settings.lease + settings.lease_grace)
    assert silent.change == f"If the worker does not renew its lease, the task is taken from it after {taken_after}."
    clock.advance(11)
    over = (await explain("it", EVERYONE)).cause
    assert "has not renewed its lease" in over.because
    assert over.details["taken_over_after"] == taken_after


async def test_a_damaged_report_of_some_worker_hides_no_cause(store: SqliteStore, clock: FakeClock) -> None:
    damaged = Record(PRESENCE.id_of("worker-1"), PRESENCE.name, {"worker_id": 1})
    await store.write_records([damaged])
    await store.insert([new_task(task_id="it", now=store.now())])
    explain = ExplainOperations(store, MemoryBuckets(clock), {}, WorkerSettings()).explain
    assert (await explain("it", EVERYONE)).cause.code == "no_worker"
