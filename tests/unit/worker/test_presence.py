"""A worker's sign of life: its record is written again and again, put back where it is missing, and withdrawn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from taskframework.errors import StoreUnavailableError
from taskframework.model.records import Record
from taskframework.model.status import TaskStatus
from taskframework.model.task import new_claim_id
from taskframework.model.task_fields import Lease
from taskframework.model.workers import FORGOTTEN_AFTER, LOST_AFTER, PRESENCE, REPORT_INTERVAL
from taskframework.operations.workers import WorkerOperations, WorkerState
from taskframework.recovery.retention import RetentionRepair
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.conformance.store_suite import MINUTE, put
from taskframework.worker.presence import SignOfLife

WORKER = "host:7:abc"
SECOND = timedelta(seconds=1)


@pytest_asyncio.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "tasks.db", clock=clock)
    await store.open()
    yield store
    await store.close()


def sign_of_life(store: SqliteStore, running: list[int]) -> SignOfLife:
    return SignOfLife(store, WORKER, lambda: ["waits", "count-words"], 8, lambda: len(running))


async def states(store: SqliteStore) -> list[WorkerState]:
    return list((await WorkerOperations(store).list_workers(limit=10)).items)


async def test_a_presence_reports_what_the_worker_does_now(store: SqliteStore, clock: FakeClock) -> None:
    running: list[int] = []
    sign = sign_of_life(store, running)
    started_at = store.now()
    await sign.write()
    running.append(1)
    clock.advance(REPORT_INTERVAL.total_seconds())
    await sign.write()
    [state] = await states(store)
    presence = state.presence
    assert (presence.worker_id, presence.task_types) == (WORKER, ("count-words", "waits"))
    assert (presence.in_flight, presence.concurrency) == (1, 8)
    assert (presence.started_at, presence.seen_at) == (started_at, started_at + REPORT_INTERVAL)
    assert not state.is_lost


async def test_a_worker_without_reports_is_lost_then_forgotten(store: SqliteStore, clock: FakeClock) -> None:
    await sign_of_life(store, []).write()
    clock.advance(LOST_AFTER.total_seconds())
    assert [state.is_lost for state in await states(store)] == [False]
    clock.advance(1)
    assert [state.is_lost for state in await states(store)] == [True]
    retention = RetentionRepair(store, finished=None, dead_letters=None, idempotency_keys=SECOND, limit=10)
    await retention.purge()
    assert len(await states(store)) == 1
    clock.advance(FORGOTTEN_AFTER.total_seconds() - LOST_AFTER.total_seconds())
    await retention.purge()
    assert await states(store) == []


async def test_a_record_that_was_deleted_is_put_back(store: SqliteStore) -> None:
    sign = sign_of_life(store, [])
    await sign.write()
    await store.delete_records(await store.list_records(PRESENCE.name, limit=10))
    await sign.write()
    assert len(await states(store)) == 1


async def test_a_worker_that_has_left_writes_no_more_reports(store: SqliteStore) -> None:
    sign = sign_of_life(store, [])
    await sign.write()
    await sign.withdraw()
    assert await states(store) == []
    await sign.write()
    assert await states(store) == []


async def test_a_worker_started_for_a_lost_worker_removes_the_lost_record_when_it_leaves(
    store: SqliteStore, clock: FakeClock
) -> None:
    for name in ("older", "lost"):
        await SignOfLife(store, name, lambda: ["waits"], 8, int).write()
        clock.advance(1)
    stand_in = sign_of_life(store, [])
    await stand_in.write()
    clock.advance(LOST_AFTER.total_seconds() + 1)
    await stand_in.write()
    await stand_in.withdraw()
    assert [state.presence.worker_id for state in await states(store)] == ["older"], "that one is still missing"


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_store_that_is_away_does_not_hold_a_stop(
    store: SqliteStore, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(_: Collection[str]) -> dict[str, Record]:
        if hangs:
            await asyncio.Event().wait()
        raise StoreUnavailableError("away")

    monkeypatch.setattr("taskframework.worker.presence._WITHDRAW_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(store, "read_records", read)
    async with asyncio.timeout(20):
        await sign_of_life(store, []).withdraw()


async def test_only_the_running_tasks_of_the_worker_are_listed_page_by_page(store: SqliteStore) -> None:
    await sign_of_life(store, []).write()
    own = set()
    for number in range(24):
        worker = WORKER if number % 12 == 0 else "another"
        lease = Lease(worker, new_claim_id(), store.now() + MINUTE)
        task = await put(store, status=TaskStatus.RUNNING, lease=lease, next_dispatch_at=None)
        own |= {task.task_id} if worker == WORKER else set()
    operations, found, cursor, pages = WorkerOperations(store), list[str](), None, 0
    while pages == 0 or cursor is not None:
        page = await operations.list_running(WORKER, limit=1, cursor=cursor)
        found, cursor, pages = found + [task.task_id for task in page.items], page.next_cursor, pages + 1
    assert (set(found), len(found)) == (own, 2)
    assert pages > 2, "a call looks through some pages only"


async def test_workers_are_listed_a_page_at_a_time(store: SqliteStore) -> None:
    for name in ("b/1", "a:1", "c"):
        await SignOfLife(store, name, list, 1, int).write()
    operations, seen, cursor = WorkerOperations(store), [], None
    for _ in range(3):
        page = await operations.list_workers(limit=1, after=cursor)
        seen += [state.presence.worker_id for state in page.items]
        cursor = page.next_cursor
    assert (seen, cursor) == (["a:1", "b/1", "c"], None)
