"""Which workers count as idle, and how often their reports are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from taskframework.brokers.base import Broker
from taskframework.errors import BrokerUnavailableError, StoreUnavailableError
from taskframework.model.status import Priority
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


class Queues:
    """A broker with so many messages in each queue of normal tasks."""

    def __init__(self, ready: int | None = 0) -> None:
        self.ready = ready
        self.is_away = False

    async def queue_depth(self, task_type: str, lane: Priority) -> int | None:
        if self.is_away:
            raise BrokerUnavailableError("no answer")
        return self.ready if lane is Priority.NORMAL else 0


def seen_by(store: SqliteStore, clock: FakeClock, queues: Queues) -> IdleWorkers:
    return IdleWorkers(store, cast(Broker, queues), "own", clock)


@pytest.mark.parametrize(
    ("fields", "is_idle"),
    [
        ({}, True),
        ({"in_flight": 10}, False),
        ({"worker_id": "own"}, False),
        ({"task_types": ("mail",)}, False),
        ({"seen_at": START - timedelta(minutes=1)}, False),
    ],
)
async def test_another_worker_with_a_free_slot_is_idle(
    store: SqliteStore, fields: dict[str, Any], is_idle: bool
) -> None:
    worker = replace(IDLE, **fields)
    await store.write_records([PRESENCE.new(worker.worker_id, content=worker)])
    assert await seen_by(store, FakeClock(), Queues()).can_begin("charge", Priority.NORMAL) is is_idle


async def test_questions_asked_at_once_get_the_same_answer(store: SqliteStore) -> None:
    await store.write_records([PRESENCE.new("other", content=IDLE)])
    idle = seen_by(store, FakeClock(), Queues())
    assert await asyncio.gather(*(idle.can_begin(name, Priority.NORMAL) for name in IDLE.task_types)) == [True, True]


async def test_no_worker_counts_as_idle_while_messages_wait_in_the_queue(store: SqliteStore) -> None:
    await store.write_records([PRESENCE.new("other", content=IDLE)])
    queues = Queues(1)
    idle = seen_by(store, FakeClock(), queues)
    assert not await idle.can_begin("charge", Priority.NORMAL)
    assert await idle.can_begin("charge", Priority.LOW)
    queues.ready = None  # there is no such queue
    assert not await idle.can_begin("charge", Priority.NORMAL)
    queues.is_away = True
    assert not await idle.can_begin("charge", Priority.NORMAL)


async def test_reports_are_read_as_often_as_they_come(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    idle = seen_by(store, clock, Queues())
    assert not await idle.can_begin("charge", Priority.NORMAL)
    await store.write_records([PRESENCE.new("other", content=IDLE)])
    assert not await idle.can_begin("charge", Priority.NORMAL)
    clock.advance(REPORT_INTERVAL)
    assert await idle.can_begin("charge", Priority.NORMAL)

    async def fails(kind: str, *, limit: int, after: str = "") -> Any:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(store, "list_records", fails)
    clock.advance(REPORT_INTERVAL)
    assert not await idle.can_begin("charge", Priority.NORMAL), "while the store is away nobody is known to be idle"
