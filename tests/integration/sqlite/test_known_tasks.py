"""What the SQLite store remembers of tasks: what the file holds, and nothing that a user could have changed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from taskframework import failpoint
from taskframework.errors import StoreUnavailableError
from taskframework.model.interventions import Cancel
from taskframework.model.marks import MarkPublished
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.stores.sqlite import SqliteStore
from taskframework.stores.sqlite.groups import Change, GroupWriter
from taskframework.stores.sqlite.known_tasks import KnownTasks
from taskframework.stores.sqlite.rows import StoredTask, new_row
from taskframework.testing.conformance.comparison import differences
from taskframework.testing.conformance.store_suite import (
    claim_task,
    insert_one,
    make_claim,
    make_move,
    put,
    put_running,
    read_task,
)
from taskframework.testing.factories import new_task


def _kept(known: KnownTasks, **fields: Any) -> StoredTask:
    row = new_row(new_task(**fields))
    known.keep(row, len(str(row.moving()[-1])))
    return row


def _read(known: KnownTasks, task_id: str, *, whole: bool) -> StoredTask:
    row = known.read(task_id, whole=whole)
    assert row is not None
    return row


def test_a_known_task_is_as_it_was_whatever_was_done_with_the_one_before() -> None:
    known = KnownTasks(10)
    task = _kept(known, parameters={"n": [1]}, result={"r": [1]}, progress={"p": [1]}).task
    task_id = task.task_id
    first = _read(known, task_id, whole=True).task
    for value in (first.parameters["n"], first.result["r"], first.progress["p"], task.result["r"]):
        value.append("changed in place")
    again = _read(known, task_id, whole=True)
    assert (again.task.parameters, again.task.result, again.task.progress) == ({"n": [1]}, {"r": [1]}, {"p": [1]})
    assert "changed in place" not in str(again.moving()[-1])
    bare = first.evolve(parameters=None, progress=None, result=None)
    assert differences(_read(known, task_id, whole=False).task, bare) == []


@pytest.mark.parametrize("value", [{}, [], 0, False, ""])
def test_an_empty_value_of_a_known_task_is_remembered(value: Any) -> None:
    known = KnownTasks(10)
    task = _kept(known, progress=value, result=value).task
    again = _read(known, task.task_id, whole=True)
    assert (again.task.progress, again.task.result) == (value, value)
    assert again.document().keys() >= {"progress", "result", "history", "steps", "errors"}


def test_the_oldest_tasks_of_a_backlog_are_remembered() -> None:
    known = KnownTasks(3)
    ids = [_kept(known).task.task_id for _ in range(5)]
    assert list(known._tasks) == ids[:3]
    running = _kept(known, status=TaskStatus.RUNNING).task.task_id
    assert list(known._tasks) == [*ids[1:3], running]


def test_long_tasks_and_ended_tasks_are_not_remembered() -> None:
    known = KnownTasks(10)
    for fields in ({"result": "x" * 100_000}, {"parameters": "x" * 100_000}):
        _kept(known, **fields)
    _kept(known, status=TaskStatus.COMPLETED, publish_at=None)
    assert list(known._tasks) == []


@pytest.fixture
async def statements(store: SqliteStore) -> list[str]:
    """What the connection that writes is asked."""
    asked: list[str] = []
    await store._database.write(lambda raw: raw.set_trace_callback(asked.append))
    return asked


async def test_a_known_task_is_not_read_again(store: SqliteStore, statements: list[str]) -> None:
    task = await put(store)
    statements.clear()
    running, _ = await claim_task(store, task)
    await store.mark(MarkPublished(task.task_id, running.sequence))
    assert [text for text in statements if text.startswith("SELECT")] == []
    assert (await read_task(store, task.task_id)).published_sequence == running.sequence


async def test_a_write_by_another_process_is_seen(store: SqliteStore, raw: sqlite3.Connection) -> None:
    task, bystander = await put(store), await put(store)
    raw.execute("UPDATE tasks SET document = json_set(document, '$.dispatch_epoch', 7)")
    assert await store.apply(make_claim(task)) is None
    assert await store.apply(make_claim(bystander.evolve(dispatch_epoch=7))) is not None


async def test_a_task_that_this_process_purged_is_not_remembered(store: SqliteStore) -> None:
    running, _ = await put_running(store)
    over = await put(store, status=TaskStatus.CANCELLED, finished_at=store.now(), publish_at=store.now())
    await store._database.execute("UPDATE tasks SET publish_at = NULL WHERE task_id = ?", [over.task_id])
    assert await store.purge(finished=timedelta(0), dead_letters=None, limit=5) == 1
    assert (await insert_one(store, over)).is_new
    assert not (await insert_one(store, running)).is_new


async def test_a_task_of_a_file_that_was_opened_again_is_read(store: SqliteStore, statements: list[str]) -> None:
    task = await put(store)
    await store.close()
    await store.open()
    asked: list[str] = []
    await store._database.write(lambda raw: raw.set_trace_callback(asked.append))
    await make_move(store, make_claim(task))
    assert [text for text in asked if text.startswith("SELECT")] != []


@pytest.fixture
def _disarmed() -> Iterator[None]:
    yield
    failpoint.disarm()


@pytest.mark.usefixtures("_disarmed")
async def test_a_write_whose_reply_was_lost_is_seen(store: SqliteStore) -> None:
    task, bystander = await put(store), await put(store)
    failpoint.arm_from({"TASKFRAMEWORK_FAILPOINTS": "claim.reply@1=drop"})
    with pytest.raises(StoreUnavailableError):
        await store.apply(make_claim(task))
    assert await store.apply(make_claim(task)) is None, "the first claim holds"
    assert await store.apply(make_claim(bystander)) is not None


async def test_a_write_that_was_rolled_back_is_not_remembered(store: SqliteStore) -> None:
    task = await put(store)

    async def limit(pages: int) -> None:
        await store._database.write(lambda raw: raw.execute(f"PRAGMA max_page_count = {pages}"))

    await limit(1)
    calls = (
        store.apply(Cancel(task.task_id, EVERYONE, "alice", None)),
        insert_one(store, new_task(parameters="x" * 100_000)),
    )
    replies = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(reply) for reply in replies] == [StoreUnavailableError] * 2
    await limit(1_000_000)
    assert await store.apply(make_claim(task)) is not None, "the task is not cancelled"


async def test_a_write_that_was_given_up_is_not_remembered(store: SqliteStore, raw: sqlite3.Connection) -> None:
    task, bystander = await put(store), await put(store)
    writer = GroupWriter(store._database, store._clock, 10)
    await writer([Change.of(Cancel(bystander.task_id, EVERYONE, "alice", None))])
    raw.execute("BEGIN IMMEDIATE")
    given_up = asyncio.create_task(writer([Change.of(Cancel(task.task_id, EVERYONE, "alice", None))]))
    await asyncio.sleep(0)
    given_up.cancel()
    raw.execute("COMMIT")
    await asyncio.gather(given_up, return_exceptions=True)
    [claim] = await writer([Change.of(make_claim(task))])
    is_cancelled = (await read_task(store, task.task_id)).cancel is not None
    assert (claim is None) is is_cancelled, "it was written or not, and the next one knows"
