"""Which workers count as idle, and how often their reports are read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskframework.errors import StoreUnavailableError
from taskframework.model.workers import PRESENCE, REPORT_INTERVAL, Presence
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import START, FakeClock
from taskframework.worker.idle_workers import IdleWorkers

IDLE = Presence("other", "host", 1, "1.0", ("mail", "charge"), 10, 9, START, START)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "tasks.db", clock=FakeClock())
    await store.open()
    yield store
    await store.close()


@pytest.mark.parametrize(
    ("fields", "types"),
    [
        ({}, {"mail", "charge"}),
        ({"in_flight": 10}, set()),
        ({"worker_id": "own"}, set()),
        ({"seen_at": START - timedelta(minutes=1)}, set()),
    ],
)
async def test_another_worker_with_a_free_slot_is_idle(
    store: SqliteStore, fields: dict[str, Any], types: set[str]
) -> None:
    worker = replace(IDLE, **fields)
    await store.write_records([PRESENCE.new(worker.worker_id, content=worker)])
    assert await IdleWorkers(store, "own", FakeClock()).task_types() == types


async def test_reports_are_read_as_often_as_they_come(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    idle = IdleWorkers(store, "own", clock)
    assert await idle.task_types() == set()
    await store.write_records([PRESENCE.new("other", content=IDLE)])
    assert await idle.task_types() == set()
    clock.advance(REPORT_INTERVAL)
    assert await idle.task_types() == {"mail", "charge"}

    async def fails(kind: str, *, limit: int, after: str = "") -> Any:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(store, "list_records", fails)
    clock.advance(REPORT_INTERVAL)
    assert await idle.task_types() == set(), "while the store is away nobody is known to be idle"
