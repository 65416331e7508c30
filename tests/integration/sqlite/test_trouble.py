"""Locks, full disks and calls that go away."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskframework.errors import (
    StoreUnavailableError,
    ValueNotStorableError,
)
from taskframework.model.interventions import Cancel
from taskframework.model.marks import MarkPublished
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.task import Task
from taskframework.stores.sqlite import SqliteStore, connection
from taskframework.testing.conformance.store_suite import insert_one, make_claim, make_move, put, read_task
from taskframework.testing.factories import new_task


async def test_a_file_that_another_process_locks_is_unavailable_for_writing_only(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BUSY_TIMEOUT", 0.05)
    store = SqliteStore(path)
    await store.open()
    task = await put(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for call in (store.ping(), insert_one(store, new_task()), store.apply(make_claim(task))):
            with pytest.raises(StoreUnavailableError, match=r"locked.*Another process"):
                await call
        assert await read_task(store, task.task_id) == task
    await make_move(store, make_claim(task))
    await store.close()


async def test_a_write_waits_for_another_process(store: SqliteStore, raw: sqlite3.Connection) -> None:
    raw.execute("BEGIN IMMEDIATE")
    insert = asyncio.create_task(insert_one(store, new_task()))
    reading = await asyncio.gather(*(store.undriven(1) for _ in range(20)))
    assert not insert.done()
    raw.execute("COMMIT")
    assert (await insert).is_new
    assert reading == [[]] * 20


async def test_a_full_disk_is_reported_and_survived(store: SqliteStore) -> None:
    task = await put(store)
    await _limit_pages(store, 1)
    replies = await asyncio.gather(
        *(insert_one(store, new_task(parameters="x" * 100_000)) for _ in range(3)),
        store.apply(Cancel(task.task_id, EVERYONE, "alice", None)),
        return_exceptions=True,
    )
    assert [type(reply) for reply in replies] == [StoreUnavailableError] * 4
    assert "disk is full" in str(replies[0])
    assert await read_task(store, task.task_id) == task, "the group was rolled back as a whole"

    await _limit_pages(store, 1_000_000)
    await make_move(store, Cancel(task.task_id, EVERYONE, "alice", None))


async def test_a_cancelled_write_leaves_no_transaction_open(store: SqliteStore, raw: sqlite3.Connection) -> None:
    raw.execute("BEGIN IMMEDIATE")
    waiting = [asyncio.create_task(store.ping()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    raw.execute("COMMIT")
    await asyncio.gather(*waiting, return_exceptions=True)
    await put(store)
    raw.execute("BEGIN IMMEDIATE")
    raw.execute("COMMIT")


async def test_an_id_that_is_no_text_is_a_clear_error(store: SqliteStore) -> None:
    task = await put(store)
    calls: list[Any] = [
        store.get("\ud800", EVERYONE),
        store.apply(Cancel("\ud800", EVERYONE, "alice", None)),
        store.mark(MarkPublished("\ud800", 1)),
        store.list_tasks(Scope.of("\ud800"), TaskFilter(), limit=1),
        insert_one(store, new_task().evolve(user_id="\ud800")),
    ]
    replies = await asyncio.gather(*calls, store.apply(make_claim(task)), return_exceptions=True)
    assert [type(reply) for reply in replies] == [ValueNotStorableError] * 5 + [Task]


async def _limit_pages(store: SqliteStore, pages: int) -> None:
    """Fill the disk, or make room again."""
    await store._database.write(lambda raw: raw.execute(f"PRAGMA max_page_count = {pages}"))
