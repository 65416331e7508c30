"""Documents and rows: of this release, of a newer one, of none."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from taskframework.errors import StoreUnavailableError, TaskUnreadableError
from taskframework.model.attempts import Complete
from taskframework.model.drivers import DISPATCH
from taskframework.model.interventions import Cancel
from taskframework.model.marks import MakeDue, ReserveDispatch
from taskframework.model.options import StreamPlace
from taskframework.model.query import TaskFilter
from taskframework.model.records import RecordUnreadableError
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.streams import STREAMS, Stream, StreamKey, TakePositions, Turn
from taskframework.model.task import SCHEMA_VERSION, Task, new_task_id
from taskframework.model.task_fields import LimitWait, ParentLink
from taskframework.model.traffic import CountedTasks
from taskframework.recovery.loop import make_reservations
from taskframework.recovery.sweeper import forget_dispatches
from taskframework.stores.replies import Inserted
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.conformance.store_suite import (
    HOUR,
    MINUTE,
    claim_task,
    insert_one,
    make_claim,
    make_move,
    put,
    put_final,
    put_running,
    read_task,
)
from taskframework.testing.factories import new_task


async def test_fields_of_a_newer_release_survive_a_move(store: SqliteStore, raw: sqlite3.Connection) -> None:
    task, fence = await put_running(store)
    document = _document_of(raw, task)
    document |= {"novel": {"a": [1.0, "2026-01-01T00:00:00Z"]}}
    document["history"][0]["novel"] = 1
    document["lease"]["novel"] = 2
    _overwrite(raw, task, json.dumps(document))

    asked = await make_move(store, Cancel(task.task_id, EVERYONE, "alice", None))

    after = _document_of(raw, task)
    assert after["novel"] == document["novel"]
    assert after["lease"] == document["lease"], "what the move did not change is left as it was"
    assert [entry.get("novel") for entry in after["history"]] == [1, None]
    await make_move(store, Complete(fence, "worker-1", None))
    assert _document_of(raw, task)["history"][0]["novel"] == 1
    assert asked.cancel is not None


async def test_a_document_nobody_can_read_harms_no_other(
    store: SqliteStore, raw: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = await put(store), await put(store)
    _overwrite(raw, bad, json.dumps(_document_of(raw, bad) | {"status": "PAUSED"}))
    raw.execute("UPDATE tasks SET publish_at = 0")

    replies = await asyncio.gather(
        store.apply(make_claim(bad)),
        store.apply(make_claim(good)),
        insert_one(store, new_task(task_id=bad.task_id)),
        insert_one(store, new_task()),
        return_exceptions=True,
    )

    kinds = [type(reply).__name__ for reply in replies]
    assert kinds == ["TaskUnreadableError", "Task", "TaskUnreadableError", "Inserted"]
    assert bad.task_id in str(replies[0])
    assert "PAUSED" not in str(replies[0])
    with pytest.raises(TaskUnreadableError, match="changed by hand or is damaged") as damaged:
        await store.get(bad.task_id, EVERYONE)
    assert "PAUSED" in damaged.value.reason
    _overwrite(raw, bad, json.dumps(_document_of(raw, bad) | {"schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(TaskUnreadableError, match="newer release"):
        await store.get(bad.task_id, EVERYONE)
    listed = await store.list_tasks(EVERYONE, TaskFilter(), limit=10)
    assert good.task_id in {task.task_id for task in listed.items}
    assert bad.task_id not in {task.task_id for task in listed.items}
    [told] = [record for record in caplog.records if record.getMessage().startswith("left out:")]
    assert bad.task_id in told.getMessage()
    assert (told.levelname, told.exc_info) == ("WARNING", None), "as for MongoDB: it is said with each list"


async def test_an_unreadable_task_is_left_out_by_repairs(
    store: SqliteStore, raw: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = [await put(store, next_dispatch_at=store.now()) for _ in range(3)]
    _overwrite(raw, tasks[1], "{}")
    reservations = [ReserveDispatch(task.task_id, 1, MINUTE, MINUTE) for task in tasks]
    won = await make_reservations(store, reservations)
    assert [task.task_id for task in won] == [tasks[0].task_id, tasks[2].task_id]
    assert tasks[1].task_id in caplog.text
    await store.close()
    with pytest.raises(StoreUnavailableError):
        await make_reservations(store, reservations)


async def test_marks_leave_out_an_unreadable_task_and_log_it_once(
    store: SqliteStore, raw: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = [await put(store, next_dispatch_at=store.now() + HOUR) for _ in range(3)]
    _overwrite(raw, tasks[1], "{}")
    for _ in range(2):
        await store.mark(*(MakeDue(task.task_id, task.dispatch_epoch) for task in tasks))
    due = {task.task_id for task in await store.due(DISPATCH, 9)}
    assert due == {tasks[0].task_id, tasks[2].task_id}
    [told] = [record for record in caplog.records if tasks[1].task_id in record.getMessage()]
    assert told.levelname == "WARNING"


async def test_a_document_that_is_no_json_ends_no_query(store: SqliteStore, raw: sqlite3.Connection) -> None:
    now = store.now()
    late: dict[str, Any] = {"not_before": now - 2 * MINUTE, "next_dispatch_at": now - MINUTE}
    waiting = [await put(store, **late, waits_for_limit=LimitWait("slots/a", 1, now)) for _ in range(2)]
    running = [await put_running(store) for _ in range(2)]
    dead = [await put_final(store, TaskStatus.FAILED) for _ in range(2)]
    for task, _ in running:
        await make_move(store, Cancel(task.task_id, EVERYONE, "alice", None))
    for bad in (waiting[0], running[0][0], dead[0]):
        _overwrite(raw, bad, "{")

    ids = {task.task_id for task in waiting}
    assert {task.task_id for task in await store.due(DISPATCH, 9)} == ids
    assert {task.task_id for task in await store.waiting_for("slots/a", 9)} == ids
    [put_off] = await store.put_off("test-task", now - HOUR, now + HOUR, 9)
    assert put_off.task_id == waiting[1].task_id
    assert list(await store.cancel_requests([fence for _, fence in running])) == [running[1][1]]
    assert (await store.claims_of([task.task_id for task, _ in running]))[running[1][0].task_id]
    listed = await store.list_tasks(EVERYONE, TaskFilter(dead=True), limit=9)
    assert (listed.items, listed.left_out) == ((dead[1],), (dead[0].task_id,))
    found = await store.search_tasks(EVERYONE, TaskFilter(correlation_id="correlation-1", error="a"), limit=9)
    assert found.items == ()
    assert sum(group.count for group in await store.count_dead(EVERYONE, TaskFilter(dead=True), most=9)) == 2


async def test_a_record_that_is_no_json_hides_no_other(store: SqliteStore, raw: sqlite3.Connection) -> None:
    expired = {"expires_at": store.now() - MINUTE}
    ids = ["stream/alice/a", "stream/alice/b"]
    await store.write_records([STREAMS.new("alice", key, content=Stream(is_halted=True), **expired) for key in "ab"])
    raw.execute("UPDATE records SET data = '{' WHERE id = ?", (ids[0],))

    found = [await store.list_records("stream", limit=9), await store.expired_records(9)]
    assert [[record.id for record in records] for records in found] == [ids, ids]
    bad, good = (await store.read_records(ids)).values()
    assert (STREAMS.is_readable(bad), STREAMS.is_readable(good)) == (False, True)
    assert await store.halted_streams(9) == [StreamKey("alice", "b")]
    with pytest.raises(RecordUnreadableError, match=ids[0]):
        await store.change_record(TakePositions(StreamKey("alice", "a"), MINUTE, "serial", 1))


async def test_a_spoiled_task_gets_no_turn_that_the_record_of_its_stream_cannot_keep(
    store: SqliteStore, raw: sqlite3.Connection
) -> None:
    blocked = {"status": TaskStatus.BLOCKED, "next_dispatch_at": None, "unblock_at": store.now() + HOUR}
    bad, good = [await put(store, **blocked, stream=StreamPlace(key, "serial", 0)) for key in "ab"]
    _overwrite(raw, bad, "{}")
    with pytest.raises(TaskUnreadableError, match=bad.task_id):
        await store.next_blocked([StreamKey("alice", "a"), StreamKey("alice", "b")])
    stream = StreamKey("alice", "b")
    assert await store.next_blocked([stream]) == {stream: Turn(good.task_id, 0, 0)}


async def test_a_time_that_was_changed_by_hand_harms_no_count(store: SqliteStore, raw: sqlite3.Connection) -> None:
    bad, good = await put(store), await put(store)
    raw.execute("UPDATE tasks SET not_before = 'now' WHERE task_id = ?", (bad.task_id,))
    [lane] = (await store.count_lanes(CountedTasks.WAITING, 10, due_before=store.now() + MINUTE)).counted
    assert (lane.count, lane.claimable_since) == (1, good.not_before)


async def test_the_twin_of_a_task_that_nobody_can_read_fails_alone(store: SqliteStore, raw: sqlite3.Connection) -> None:
    bad = await put(store)
    _overwrite(raw, bad, json.dumps(_document_of(raw, bad) | {"status": "PAUSED"}))
    tasks = [new_task(task_id=bad.task_id if n == 1 else new_task_id()) for n in range(4)]
    replies = await store.insert(tasks)
    assert [type(reply) for reply in replies] == [Inserted, TaskUnreadableError, Inserted, Inserted]
    assert all([await store.get(task.task_id, EVERYONE) for task in tasks if task.task_id != bad.task_id])


async def test_a_page_ends_where_it_ends_though_its_last_task_is_unreadable(
    store: SqliteStore, raw: sqlite3.Connection
) -> None:
    tasks = [await put(store, created_at=store.now() - timedelta(seconds=n)) for n in range(4)]
    _overwrite(raw, tasks[1], "{}")
    first = await store.list_tasks(EVERYONE, TaskFilter(), limit=2)
    second = await store.list_tasks(EVERYONE, TaskFilter(), limit=2, cursor=first.next_cursor)
    assert [*first.items, *second.items] == [tasks[0], *tasks[2:]]


async def test_a_page_of_subtasks_ends_where_it_ends_though_its_last_one_is_unreadable(
    store: SqliteStore, raw: sqlite3.Connection
) -> None:
    tasks = [await put(store, parent=ParentLink("parent", 0, slot)) for slot in (3, 2, 1, 0)]
    _overwrite(raw, tasks[1], "{}")
    filter = TaskFilter(parent_task_id="parent")
    first = await store.list_tasks(EVERYONE, filter, limit=2)
    second = await store.list_tasks(EVERYONE, filter, limit=2, cursor=first.next_cursor)
    assert [*first.items, *second.items] == [tasks[0], *tasks[2:]]


async def test_times_are_kept_in_utc_and_whole_milliseconds(store: SqliteStore) -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    at = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=zone)
    inserted = await insert_one(store, new_task(now=store.now()).evolve(not_before=at, deadline=at))
    assert inserted.task.not_before == datetime(2026, 3, 1, 6, 30, 0, 123_000, tzinfo=UTC)
    assert await read_task(store, inserted.task.task_id) == inserted.task


async def test_a_move_does_not_rewrite_the_parameters(store: SqliteStore, raw: sqlite3.Connection) -> None:
    task = await put(store, parameters={"secret": "x" * 1000})
    raw.execute("CREATE TRIGGER fail BEFORE UPDATE ON task_parameters BEGIN SELECT raise(ABORT, 'rewritten'); END")
    running, _ = await claim_task(store, task)
    assert running.parameters == task.parameters
    assert "secret" not in json.dumps(_document_of(raw, task))


async def test_a_deleted_task_takes_its_parameters_along(store: SqliteStore, raw: sqlite3.Connection) -> None:
    await put(store, status=TaskStatus.CANCELLED, finished_at=store.now(), publish_at=None)
    assert await store.purge(finished=timedelta(0), dead_letters=None, limit=5) == 1
    assert raw.execute("SELECT count(*) FROM task_parameters").fetchall() == [(0,)]


async def test_concurrent_calls_share_transactions(store: SqliteStore) -> None:
    counted = 0
    write = store._database.write

    def counting(*arguments: Any) -> Any:
        nonlocal counted
        counted += 1
        return write(*arguments)

    store._database.write = counting  # type: ignore[method-assign, assignment] # counts, and does the same
    await asyncio.gather(*(insert_one(store, new_task()) for _ in range(200)))
    assert counted <= 4


async def test_all_dispatches_are_forgotten_except_those_of_unreadable_tasks(
    store: SqliteStore, raw: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskframework.recovery.sweeper._FORGET_BATCH_SIZE", 3)
    tasks = [await put(store, dispatches=7) for _ in range(10)]
    _overwrite(raw, tasks[4], "{}")
    await forget_dispatches(store)
    readable = [task for task in tasks if task is not tasks[4]]
    assert {(await read_task(store, task.task_id)).dispatches for task in readable} == {0}
    assert [task.task_id for task in await store.upcoming(DISPATCH, 20)] == [tasks[4].task_id]


def _document_of(raw: sqlite3.Connection, task: Task) -> dict[str, Any]:
    [(text,)] = raw.execute("SELECT document FROM tasks WHERE task_id = ?", (task.task_id,))
    document: dict[str, Any] = json.loads(text)
    return document


def _overwrite(raw: sqlite3.Connection, task: Task, document: str) -> None:
    raw.execute("UPDATE tasks SET document = ? WHERE task_id = ?", (document, task.task_id))


async def test_a_running_task_that_nobody_can_read_loses_its_lease_alone(
    store: SqliteStore, raw: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    (bad, lost), (good, held) = [await put_running(store) for _ in range(2)]
    for task in (bad, good):
        await make_move(store, Cancel(task.task_id, EVERYONE, "alice", None))
    _overwrite(raw, bad, json.dumps(_document_of(raw, bad) | {"cancel": True}))
    assert list(await store.renew([lost, held], MINUTE)) == [held]
    assert list(await store.cancel_requests([lost, held])) == [held]
    assert f"left out: The task {bad.task_id} cannot be read" in caplog.text
