"""The file: made, opened, upgraded, refused, inspected."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskframework.clock import SystemClock
from taskframework.errors import (
    StoreClosedError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from taskframework.model.marks import ReserveDispatch
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task, new_task_id
from taskframework.model.waiting import Wait
from taskframework.stores.sqlite import ExecutionLock, SqliteStore, connection, migrate
from taskframework.stores.sqlite.rows import FIXED, MOVING, UNUSUAL_FIXED, UNUSUAL_MOVING, new_row
from taskframework.submission.types import declared_types
from taskframework.testing.conformance.store_suite import HOUR, claim_task, insert_one, make_move, put, read_task
from taskframework.testing.factories import new_task
from tests.support.submission import keyed_inserts

#: Read here, where no event loop waits for the disk.
SCRIPTS = migrate.migrations()


async def test_a_file_can_be_opened_again(path: Path) -> None:
    for _ in range(3):
        store = SqliteStore(path)
        await store.open()
        await put(store)
        await store.close()
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT count(*) FROM tasks").fetchall() == [(3,)]


async def test_other_users_may_not_read_a_new_file_or_its_log(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await put(store)
    modes = {file.name.removeprefix(path.name): file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(("", "-wal", "-shm"), 0o600)
    await store.close()


@pytest.mark.parametrize("is_replaced", [True, False])
async def test_a_file_that_is_deleted_while_it_is_open_takes_no_tasks(path: Path, is_replaced: bool) -> None:
    store, away = SqliteStore(path), path.with_name("away.db")
    await store.open()
    before = await put(store)
    path.rename(away)
    if is_replaced:
        path.touch()
    for write in (put(store), store.ping(), store.apply(ReserveDispatch(before.task_id, 1, HOUR, HOUR))):
        with pytest.raises(StoreUnavailableError, match="was deleted or replaced while this process has it open"):
            await write
    away.rename(path)
    after = await put(store)
    await store.close()
    async with opened(path) as again:
        assert {task.task_id for task in (await again.list_tasks(EVERYONE, TaskFilter(), limit=9)).items} == {
            before.task_id,
            after.task_id,
        }


async def test_a_relative_path_stays_valid_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore(Path("tasks.db"))
    await store.open()
    monkeypatch.chdir("/")
    await put(store)
    await store.close()


async def test_doctor_finds_a_file_that_was_deleted_under_its_process(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    with ExecutionLock(path):
        path.unlink()
        report = await store.inspect()
    [problem] = report.problems
    assert problem.startswith(f"{path} was deleted or moved while process {os.getpid()} ")
    await store.close()


async def test_a_file_keeps_the_mode_that_somebody_gave_it(path: Path) -> None:
    path.touch()
    path.chmod(0o660)
    store = SqliteStore(path)
    await store.open()
    await put(store)
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o660}
    await store.close()


async def test_two_stores_open_a_new_file_at_once(path: Path) -> None:
    stores = [SqliteStore(path) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    task = await put(stores[0])
    assert await read_task(stores[3], task.task_id) == task
    for store in stores:
        await store.close()


async def test_a_new_file_is_waited_for_while_another_process_prepares_it(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        opening = asyncio.create_task((store := SqliteStore(path)).open())
        # Long enough for a refusal; on a machine that is slower than that the test only sees less.
        await asyncio.wait([opening], timeout=0.3)
        other.execute("ROLLBACK")
        await opening
        await store.close()


async def test_closing_twice_is_closing(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.close()
    await store.close()


async def test_a_call_to_a_closed_store_raises_an_error(path: Path) -> None:
    store = SqliteStore(path)
    for call in (store.ping, store.count_by_status, lambda: insert_one(store, new_task())):
        with pytest.raises(StoreClosedError, match="not open"):
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
        assert raw.execute("PRAGMA journal_mode").fetchall() == [("delete",)]


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
        for page in range(40, path.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 200)
    await store.open()
    with pytest.raises(StoreMisconfiguredError, match="damaged"):
        await store.list_tasks(EVERYONE, TaskFilter(), limit=500)
    await store.close()
    report = await store.inspect()
    assert any("damaged" in problem for problem in report.problems)


async def test_a_migration_is_whole_or_not_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "CREATE TABLE half (a);\nCREATE TABLE half (a);\n"
    monkeypatch.setattr(connection, "migrations", lambda: [*SCRIPTS, broken])
    with pytest.raises(StoreUnavailableError, match="half already exists"):
        await SqliteStore(path).open()
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT name FROM sqlite_master").fetchall() == []
        assert raw.execute("PRAGMA user_version").fetchall() == [(0,)]


async def test_an_older_file_is_upgraded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await _make(path, tasks=1)
    script = "ALTER TABLE tasks ADD COLUMN extra TEXT;\n-- with a comment; and a semicolon\nCREATE TABLE more (a);\n"
    monkeypatch.setattr(connection, "migrations", lambda: [*SCRIPTS, script])
    await store.open()
    assert len((await store.list_tasks(EVERYONE, TaskFilter(), limit=5)).items) == 1
    await store.close()
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA user_version").fetchall() == [(len(SCRIPTS) + 1,)]
        assert raw.execute("SELECT count(*) FROM more").fetchall() == [(0,)]


async def test_a_file_of_the_first_release_learns_of_task_types(path: Path) -> None:
    await asyncio.to_thread(_leave_earlier_file, path, SCRIPTS[:1], [new_task()])
    async with opened(path) as store:
        assert await declared_types(store) == []
        assert len((await store.list_tasks(EVERYONE, TaskFilter(), limit=5)).items) == 1


async def test_keys_and_declarations_of_the_release_before_records_are_known(path: Path) -> None:
    pairs = [("alice", "a"), ("bob", "a"), ("a/b%", "%2F/$ '\"x")]
    tasks = [new_task(user_id=user, idempotency_key=key) for user, key in pairs]
    declared = '{"task_type":"a.b","parameters_schema":{"maximum":1e30},"result_schema":{},"priority":"high"}'
    await asyncio.to_thread(_leave_earlier_file, path, SCRIPTS[:2], [*tasks, new_task()], declared)
    async with opened(path) as store:
        for task in tasks:
            again = await insert_one(keyed_inserts(store, HOUR), task.evolve(task_id=new_task_id()))
            assert (again.is_new, again.task.task_id) == (False, task.task_id)
        assert len(await store.list_records("idempotency", limit=9)) == len(tasks)
        assert {record.expires_at is None for record in await store.list_records("idempotency", limit=9)} == {False}
        assert [each.task_type for each in await declared_types(store)] == ["a.b"]


async def test_a_task_of_the_release_before_subtasks_lives_on(path: Path) -> None:
    task = new_task(not_before=SystemClock().now() - HOUR)
    await asyncio.to_thread(_leave_earlier_file, path, SCRIPTS[:3], [task])
    async with opened(path) as store:
        running, fence = await claim_task(store, task)
        assert running.stage == "execute"
        waiting = await make_move(store, Wait(fence, "worker-1", None, "approved", None, None))
        assert waiting.status is TaskStatus.WAITING
        assert await store.undriven(5) == []


def _leave_earlier_file(path: Path, scripts: list[str], tasks: list[Task], declared: str | None = None) -> None:
    """Make a file as an earlier release left it, with these tasks and one declared task type."""
    with closing(sqlite3.connect(path)) as raw:
        migrate.migrate(raw, path, scripts)
        there = {name for _, name, *_ in raw.execute("PRAGMA table_info(tasks)")}
        for row in map(new_row, tasks):
            columns = (*FIXED, *(() if row.is_usual else (*UNUSUAL_FIXED, *UNUSUAL_MOVING)), *MOVING)
            values = dict(zip(columns, row.inserted(), strict=True))
            known = {name: value for name, value in values.items() if name in there}
            names, places = ", ".join(known), ", ".join("?" * len(known))
            number = raw.execute(f"INSERT INTO tasks ({names}) VALUES ({places})", list(known.values())).lastrowid
            raw.execute("INSERT INTO task_parameters VALUES (?, ?)", (number, row.parameters))
        if declared is not None:
            raw.execute("INSERT INTO task_types VALUES ('a.b', ?)", [declared])
        raw.commit()


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


async def test_a_commit_is_synced_to_the_disk(store: SqliteStore) -> None:
    def pragma(name: str) -> Any:
        return store._database.write(lambda raw: raw.execute(f"PRAGMA {name}").fetchall())

    assert await pragma("synchronous") == [(2,)]
    assert await pragma("journal_mode") == [("wal",)]


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
    log = path.with_name(f"{path.name}-wal")
    assert log.stat().st_size > 0
    assert report.facts["size"] == f"{path.stat().st_size + log.stat().st_size:,} bytes"


async def test_doctor_warns_before_the_disk_is_full(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    [problem] = (await store.inspect()).problems
    assert "1,048,576 bytes left" in problem
    assert "free some space" in problem


async def test_doctor_names_a_remedy_for_each_problem(path: Path) -> None:
    missing = await SqliteStore(path.parent / "missing" / "tasks.db").inspect()
    assert "Create it" in missing.problems[0]
    path.write_bytes(b"no database " * 1000)
    assert "set another file" in (await SqliteStore(path).inspect()).problems[0]
    await _make(path.with_name("new.db"))
    with closing(sqlite3.connect(path.with_name("new.db"))) as raw:
        raw.execute("PRAGMA user_version = 99")
    assert "upgrade" in (await SqliteStore(path.with_name("new.db")).inspect()).problems[0]


async def _make(path: Path, *, tasks: int = 0) -> SqliteStore:
    """A closed store on a new file."""
    store = SqliteStore(path)
    await store.open()
    await asyncio.gather(*(insert_one(store, new_task(parameters="x" * 500)) for _ in range(tasks)))
    await store.close()
    return store
