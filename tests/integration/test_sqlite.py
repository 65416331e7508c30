"""What only the SQLite store does: one file, several processes, power cuts, files of others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from taskframework.errors import (
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    ValueNotStorableError,
)
from taskframework.model.interventions import Cancel
from taskframework.model.marks import MarkPublished
from taskframework.model.query import TaskFilter
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import Complete
from taskframework.stores.sqlite import SqliteStore, connection, migrate
from taskframework.testing.conformance.store_suite import claim_of, claimed, moved, put, put_running, stored
from taskframework.testing.factories import new_task

#: Read here, where no event loop waits for the disk.
SCRIPTS = migrate.migrations()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def raw(store: SqliteStore, path: Path) -> Iterator[sqlite3.Connection]:
    """The file as another program sees it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def document_of(raw: sqlite3.Connection, task: Task) -> dict[str, Any]:
    [(text,)] = raw.execute("SELECT document FROM tasks WHERE task_id = ?", (task.task_id,))
    document: dict[str, Any] = json.loads(text)
    return document


def overwrite(raw: sqlite3.Connection, task: Task, document: str) -> None:
    raw.execute("UPDATE tasks SET document = ? WHERE task_id = ?", (document, task.task_id))


# --- the file ---------------------------------------------------------------------------------------------------------


async def test_a_file_can_be_opened_again(path: Path) -> None:
    for _ in range(3):
        store = SqliteStore(path)
        await store.open()
        await put(store)
        await store.close()
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT count(*) FROM tasks").fetchall() == [(3,)]


async def test_two_stores_open_a_new_file_at_once(path: Path) -> None:
    stores = [SqliteStore(path) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    task = await put(stores[0])
    assert await stored(stores[3], task.task_id) == task
    for store in stores:
        await store.close()


async def test_closing_twice_is_closing(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.close()
    await store.close()


async def test_a_closed_store_says_so(path: Path) -> None:
    store = SqliteStore(path)
    for call in (store.ping, store.count_undriven, lambda: store.insert(new_task())):
        with pytest.raises(StoreUnavailableError, match="not open"):
            await call()


async def test_a_file_of_a_newer_release_is_refused(path: Path) -> None:
    await _make(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreMisconfiguredError, match=r"schema version 99.*up to \d+\..*upgrade taskframework"):
        await SqliteStore(path).open()


async def test_a_file_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE songs (title)")
    with pytest.raises(StoreMisconfiguredError, match="another program"):
        await SqliteStore(path).open()
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("songs",)]


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"once upon a time " * 1000)
    with pytest.raises(StoreMisconfiguredError, match="not a SQLite file"):
        await SqliteStore(path).open()


async def test_a_folder_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="folder exists"):
        await SqliteStore(path.parent / "missing" / "tasks.db").open()


async def test_a_failed_open_leaves_nothing_open(path: Path) -> None:
    path.write_bytes(b"x" * 5000)
    store = SqliteStore(path)
    with pytest.raises(StoreMisconfiguredError):
        await store.open()
    path.unlink()
    await store.open()
    await store.ping()
    await store.close()


async def test_a_damaged_file_is_reported_as_damaged(path: Path) -> None:
    store = await _make(path, tasks=200)
    with path.open("r+b") as file:
        for page in range(5, path.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 200)
    await store.open()
    with pytest.raises(StoreMisconfiguredError, match="damaged"):
        await store.list_tasks(TaskFilter(), limit=500)
    await store.close()
    report = await store.inspect()
    assert any("damaged" in problem for problem in report.problems)


async def test_a_migration_is_whole_or_not_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "CREATE TABLE half (a);\nCREATE TABLE half (a);\n"
    monkeypatch.setattr(migrate, "migrations", lambda: [*SCRIPTS, broken])
    with pytest.raises(StoreUnavailableError, match="half already exists"):
        await SqliteStore(path).open()
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT name FROM sqlite_master").fetchall() == []
        assert raw.execute("PRAGMA user_version").fetchall() == [(0,)]


async def test_an_older_file_is_upgraded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await _make(path, tasks=1)
    script = "ALTER TABLE tasks ADD COLUMN extra TEXT;\n-- with a comment; and a semicolon\nCREATE TABLE more (a);\n"
    monkeypatch.setattr(migrate, "migrations", lambda: [*SCRIPTS, script])
    await store.open()
    assert len((await store.list_tasks(TaskFilter(), limit=5)).items) == 1
    await store.close()
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA user_version").fetchall() == [(len(SCRIPTS) + 1,)]
        assert raw.execute("SELECT count(*) FROM more").fetchall() == [(0,)]


async def test_a_commit_is_synced_to_the_disk(store: SqliteStore) -> None:
    async with store._database.transaction() as writer:
        assert list(await writer.execute_fetchall("PRAGMA synchronous")) == [(2,)]
        assert list(await writer.execute_fetchall("PRAGMA journal_mode")) == [("wal",)]


# --- trouble ----------------------------------------------------------------------------------------------------------


async def test_a_file_that_another_process_locks_is_unavailable_for_writing_only(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BUSY_TIMEOUT", 0.05)
    store = SqliteStore(path)
    await store.open()
    task = await put(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for call in (store.ping(), store.insert(new_task()), store.apply(claim_of(task))):
            with pytest.raises(StoreUnavailableError, match=r"locked.*Another process"):
                await call
        assert await stored(store, task.task_id) == task
    await moved(store, claim_of(task))
    await store.close()


async def test_a_write_waits_for_another_process(store: SqliteStore, raw: sqlite3.Connection) -> None:
    raw.execute("BEGIN IMMEDIATE")
    insert = asyncio.create_task(store.insert(new_task()))
    reading = await asyncio.gather(*(store.count_undriven() for _ in range(20)))
    assert not insert.done()
    raw.execute("COMMIT")
    assert (await insert).is_new
    assert reading == [0] * 20


async def test_a_full_disk_is_reported_and_survived(store: SqliteStore) -> None:
    task = await put(store)
    await _limit_pages(store, 1)
    replies = await asyncio.gather(
        *(store.insert(new_task(parameters="x" * 100_000)) for _ in range(3)),
        store.apply(Cancel(task.task_id, None, "alice", None)),
        return_exceptions=True,
    )
    assert [type(reply) for reply in replies] == [StoreUnavailableError] * 4
    assert "disk is full" in str(replies[0])
    assert await stored(store, task.task_id) == task, "the group was rolled back as a whole"

    await _limit_pages(store, 1_000_000)
    await moved(store, Cancel(task.task_id, None, "alice", None))


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
        store.get("\ud800"),
        store.apply(Cancel("\ud800", None, "alice", None)),
        store.mark(MarkPublished("\ud800", 1)),
        store.list_tasks(TaskFilter(owner="\ud800"), limit=1),
        store.insert(new_task().evolve(user_id="\ud800", idempotency_key="key")),
    ]
    replies = await asyncio.gather(*calls, store.apply(claim_of(task)), return_exceptions=True)
    assert [type(reply) for reply in replies] == [ValueNotStorableError] * 5 + [Task]


# --- documents of other releases --------------------------------------------------------------------------------------


async def test_what_a_newer_release_wrote_survives_a_move(store: SqliteStore, raw: sqlite3.Connection) -> None:
    task, fence = await put_running(store)
    document = document_of(raw, task)
    document |= {"novel": {"a": [1.0, "2026-01-01T00:00:00Z"]}}
    document["history"][0]["novel"] = 1
    document["lease"]["novel"] = 2
    overwrite(raw, task, json.dumps(document))

    asked = await moved(store, Cancel(task.task_id, None, "alice", None))

    after = document_of(raw, task)
    assert after["novel"] == document["novel"]
    assert after["lease"] == document["lease"], "what the move did not change is left as it was"
    assert [entry.get("novel") for entry in after["history"]] == [1, None]
    await moved(store, Complete(fence, "worker-1", None))
    assert document_of(raw, task)["history"][0]["novel"] == 1
    assert asked.cancel is not None


async def test_a_document_nobody_can_read_harms_no_other(
    store: SqliteStore, raw: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = await put(store, idempotency_key="key"), await put(store)
    overwrite(raw, bad, json.dumps(document_of(raw, bad) | {"status": "PAUSED"}))
    raw.execute("UPDATE tasks SET publish_at = 0")

    replies = await asyncio.gather(
        store.apply(claim_of(bad)),
        store.apply(claim_of(good)),
        store.insert(new_task(idempotency_key="key")),
        store.insert(new_task()),
        return_exceptions=True,
    )

    assert [type(reply).__name__ for reply in replies] == ["StoreError", "Task", "StoreError", "Inserted"]
    assert bad.task_id in str(replies[0])
    assert "PAUSED" in str(replies[0])
    with pytest.raises(StoreError, match="newer release"):
        await store.get(bad.task_id)
    listed = await store.list_tasks(TaskFilter(), limit=10)
    assert good.task_id in {task.task_id for task in listed.items}
    assert bad.task_id not in {task.task_id for task in [*listed.items, *await store.unpublished(10)]}
    assert bad.task_id in caplog.text


async def test_a_page_ends_where_it_ends_though_its_last_task_is_unreadable(
    store: SqliteStore, raw: sqlite3.Connection
) -> None:
    tasks = [await put(store, created_at=store.now() - timedelta(seconds=n)) for n in range(4)]
    overwrite(raw, tasks[1], "{}")
    first = await store.list_tasks(TaskFilter(), limit=2)
    second = await store.list_tasks(TaskFilter(), limit=2, cursor=first.next_cursor)
    assert [*first.items, *second.items] == [tasks[0], *tasks[2:]]


# --- rows -------------------------------------------------------------------------------------------------------------


async def test_times_are_kept_in_utc_and_whole_milliseconds(store: SqliteStore) -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    at = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=zone)
    inserted = await store.insert(new_task(now=store.now()).evolve(not_before=at, deadline=at))
    assert inserted.task.not_before == datetime(2026, 3, 1, 6, 30, 0, 123_000, tzinfo=UTC)
    assert await stored(store, inserted.task.task_id) == inserted.task


async def test_a_move_does_not_rewrite_the_parameters(store: SqliteStore, raw: sqlite3.Connection) -> None:
    task = await put(store, parameters={"secret": "x" * 1000})
    raw.execute("CREATE TRIGGER fail BEFORE UPDATE ON task_parameters BEGIN SELECT raise(ABORT, 'rewritten'); END")
    running, _ = await claimed(store, task)
    assert running.parameters == task.parameters
    assert "secret" not in json.dumps(document_of(raw, task))


async def test_a_deleted_task_takes_its_parameters_along(store: SqliteStore, raw: sqlite3.Connection) -> None:
    await put(store, status=TaskStatus.CANCELLED, finished_at=store.now(), publish_at=None)
    assert await store.purge(finished=timedelta(0), dead_letters=None, limit=5) == 1
    assert raw.execute("SELECT count(*) FROM task_parameters").fetchall() == [(0,)]


async def test_concurrent_calls_share_transactions(store: SqliteStore) -> None:
    counted = 0
    transaction = store._database.transaction

    def counting() -> Any:
        nonlocal counted
        counted += 1
        return transaction()

    store._database.transaction = counting  # type: ignore[method-assign] # counts, and does the same
    await asyncio.gather(*(store.insert(new_task()) for _ in range(200)))
    assert counted <= 4


async def test_forgetting_many_dispatches_takes_several_transactions(
    store: SqliteStore, raw: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskframework.stores.sqlite.store._BATCH", 3)
    tasks = [await put(store, dispatches=7) for _ in range(10)]
    await store.forget_dispatches()
    assert {(await stored(store, task.task_id)).dispatches for task in tasks} == {0}
    assert len(await store.due_for_dispatch(20)) == 10


# --- doctor -----------------------------------------------------------------------------------------------------------


async def test_doctor_leaves_a_missing_file_missing(path: Path) -> None:
    report = await SqliteStore(path).inspect()
    assert report.problems == ()
    assert "not there yet" in report.facts["state"]
    assert not path.exists()


async def test_doctor_tells_the_facts_of_a_healthy_file(store: SqliteStore, path: Path) -> None:
    report = await store.inspect()
    assert report.problems == ()
    assert report.facts["journal mode"] == "wal"
    assert report.facts["schema version"] == str(len(SCRIPTS))
    assert report.facts["executed by"] == "no process"


async def test_doctor_names_a_remedy_for_each_problem(path: Path) -> None:
    missing = await SqliteStore(path.parent / "missing" / "tasks.db").inspect()
    assert "Create it" in missing.problems[0]
    path.write_bytes(b"no database " * 1000)
    assert "name another one" in (await SqliteStore(path).inspect()).problems[0]
    await _make(path.with_name("new.db"))
    with closing(sqlite3.connect(path.with_name("new.db"))) as raw:
        raw.execute("PRAGMA user_version = 99")
    assert "upgrade" in (await SqliteStore(path.with_name("new.db")).inspect()).problems[0]


# --- processes --------------------------------------------------------------------------------------------------------

_SUBMIT_FOR_EVER = """
import asyncio, sys
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.factories import new_task

async def submit(store):
    while True:
        inserted = await store.insert(new_task())
        print(inserted.task.task_id, flush=True)

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    await asyncio.gather(*(submit(store) for _ in range(20)))

asyncio.run(main())
"""

_CLAIM_ALL = """
import asyncio, sys
from datetime import timedelta
from taskframework.model.task import new_claim_id
from taskframework.model.transitions import Claim
from taskframework.stores.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    print("ready", flush=True)
    sys.stdin.readline()
    claims = [Claim(id, 1, new_claim_id(), "other", timedelta(hours=1)) for id in sys.argv[2].split(",")]
    replies = await asyncio.gather(*(store.apply(claim) for claim in claims))
    print(sum(reply is not None for reply in replies), flush=True)
    await store.close()

asyncio.run(main())
"""


async def test_what_was_accepted_survives_kill_9(path: Path) -> None:
    accepted = await asyncio.to_thread(_accept_until_killed, path)
    store = SqliteStore(path)
    await store.open()
    assert len(accepted) >= 100
    assert None not in [await store.get(task_id) for task_id in accepted]
    assert (await store.inspect()).problems == ()
    await store.close()


def _accept_until_killed(path: Path) -> list[str]:
    process = subprocess.Popen([sys.executable, "-c", _SUBMIT_FOR_EVER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout as output:
        accepted = [output.readline().strip() for _ in range(100)]
        os.kill(process.pid, signal.SIGKILL)
        accepted += [line.strip() for line in output if line.endswith("\n")]
    return accepted


async def test_of_two_processes_one_wins_each_claim(store: SqliteStore, path: Path) -> None:
    tasks = [await put(store) for _ in range(200)]
    ids = ",".join(task.task_id for task in tasks)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CLAIM_ALL, str(path), ids, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    process.stdin.write(b"go\n")

    replies = await asyncio.gather(*(store.apply(claim_of(task)) for task in tasks))

    mine, theirs = sum(reply is not None for reply in replies), int(await process.stdout.readline())
    assert await process.wait() == 0
    assert mine + theirs == len(tasks)
    after = [await stored(store, task.task_id) for task in tasks]
    assert {(task.fencing_token, task.sequence) for task in after} == {(1, 2)}


async def test_a_busy_process_lets_another_one_submit(store: SqliteStore, path: Path) -> None:
    """The command line submits to a file on which a worker writes without a pause."""
    other = SqliteStore(path)
    await other.open()
    busy = True

    async def write() -> None:
        while busy:
            await store.insert(new_task())

    writers = [asyncio.create_task(write()) for _ in range(20)]
    submitted = [await put(other) for _ in range(10)]
    busy = False
    await asyncio.gather(*writers)
    await other.close()
    assert None not in [await store.get(task.task_id) for task in submitted]


async def _make(path: Path, *, tasks: int = 0) -> SqliteStore:
    """A closed store on a new file."""
    store = SqliteStore(path)
    await store.open()
    await asyncio.gather(*(store.insert(new_task(parameters="x" * 500)) for _ in range(tasks)))
    await store.close()
    return store


async def _limit_pages(store: SqliteStore, pages: int) -> None:
    """Fill the disk, or make room again."""
    async with store._database.transaction() as writer:
        await writer.execute(f"PRAGMA max_page_count = {pages}")
