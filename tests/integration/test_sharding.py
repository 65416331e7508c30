"""A collection of tasks can be sharded by hashed `_id`: nothing else is unique, and what is hot names its documents."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from taskframework.model.attempts import Claim, Complete, Fail, RecordStep, Release, ReportProgress
from taskframework.model.interventions import Cancel, Postpone, Reap, Replay
from taskframework.model.marks import MarkDispatched, MarkPublished, PostponeRelay
from taskframework.model.scope import EVERYONE
from taskframework.model.task import new_claim_id
from taskframework.model.transitions import Fence
from taskframework.stores.mongo.store import MongoStore
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.conformance.store_suite import insert_one, make_error
from taskframework.testing.factories import new_task
from tests.support.driver_commands import DriverCommands, recorded_commands
from tests.support.submission import keyed_inserts

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
#: Where a command has the filters that say which documents it is about.
FILTERS: dict[str, Callable[[dict[str, Any]], list[Any]]] = {
    "find": lambda command: [command["filter"]],
    "update": lambda command: [each["q"] for each in command["updates"]],
    "delete": lambda command: [each["q"] for each in command["deletes"]],
    "findAndModify": lambda command: [command["query"]],
    "insert": lambda command: command["documents"],
}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> DriverCommands:
    return recorded_commands(monkeypatch)


@pytest.fixture(params=["motor", "pymongo"])
async def store(request: pytest.FixtureRequest, mongo_url: str, commands: DriverCommands) -> AsyncIterator[MongoStore]:
    store = MongoStore(mongo_url, driver=request.param)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    async def make() -> None:
        store = SqliteStore(tmp_path / "tasks.db")
        await store.open()
        await store.close()

    asyncio.run(make())
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection:
        yield connection


async def live(store: MongoStore, together: int) -> None:
    """Everything that happens to a task often, so many tasks at a time."""
    past = store.now() - MINUTE
    inserts = keyed_inserts(store, HOUR)
    plain = [new_task(now=past, idempotency_key=f"key-{n}" if n % 2 else None) for n in range(together)]
    await asyncio.gather(*(insert_one(inserts, task) for task in plain))
    many = [new_task(now=past, idempotency_key=f"many-{n}") for n in range(together)]
    await inserts.insert(many)
    again = [task.evolve(task_id=new_claim_id()) for task in plain if task.idempotency_key]
    await asyncio.gather(*(insert_one(inserts, task) for task in again))
    await store.mark(*(MarkDispatched(task.task_id, 1, SECOND, MINUTE) for task in many))
    fences = [Fence(task.task_id, 1, new_claim_id()) for task in (*plain, *many)]
    claims = [Claim(fence.task_id, 1, fence.claim_id, "worker-1", HOUR, "test-task") for fence in fences]
    assert all(await asyncio.gather(*map(store.apply, claims)))
    assert len(await store.renew(fences, HOUR)) == len(fences)
    assert await store.cancel_requests(fences) == {}
    await asyncio.gather(*(store.apply(ReportProgress(fence, 1)) for fence in fences))
    await asyncio.gather(*(store.apply(RecordStep(fence, "a", 1)) for fence in fences))
    ends: list[Any] = [Complete(fence, "worker-1", 1) for fence in fences[::2]]
    ends += [Fail(fence, "worker-1", make_error(), n % 2 == 0, HOUR) for n, fence in enumerate(fences[1::2])]
    await asyncio.gather(*map(store.apply, ends))
    task_id = fences[0].task_id
    await store.apply(Cancel(task_id, EVERYONE, "a", None))
    await store.apply(Replay(task_id, EVERYONE, "a", SECOND))
    await store.apply(Postpone(task_id, 2, SECOND, 9))
    await store.apply(Release(fences[0], "worker-1"))
    await store.apply(Reap(task_id, 1, MINUTE, 3, SECOND))
    await store.mark(*(PostponeRelay(task.task_id, MINUTE) for task in many))
    await store.mark(*(MarkPublished(task.task_id, 3) for task in many))
    assert await store.get(task_id, EVERYONE) is not None
    records = list((await store.read_records(["idempotency/alice/key-1", "idempotency/alice/many-0"])).values())
    await store.delete_records([record for record in await store.write_records(records) if record])
    await store.finished_at([task_id])


@pytest.mark.parametrize("together", [1, 8])
async def test_each_frequent_command_names_its_documents_by_id(
    store: MongoStore, commands: DriverCommands, together: int
) -> None:
    await asyncio.sleep(0)
    commands.sent.clear()
    await live(store, together)
    hot = [command for command in commands.sent if next(iter(command)) in FILTERS]
    assert {next(iter(command)) for command in hot} >= {"find", "update", "insert"}
    for command in hot:
        for filter in FILTERS[next(iter(command))](command):
            assert _names_its_documents(filter), command


def _names_its_documents(filter: Any) -> bool:
    if "$and" in filter:
        return any(map(_names_its_documents, filter["$and"]))
    named = filter.get("_id")
    return isinstance(named, str) or (isinstance(named, dict) and named.keys() == {"$in"})


async def test_only_the_id_is_unique_in_mongodb(store: MongoStore, mongo_url: str) -> None:
    await live(store, 2)
    with MongoClient[dict[str, Any]](mongo_url) as client:
        database = client.get_default_database()
        for name in database.list_collection_names():
            unique = {name for name, index in database[name].index_information().items() if index.get("unique")}
            assert unique == set(), name


def test_only_the_id_is_unique_in_sqlite(file: sqlite3.Connection) -> None:
    tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    assert {"tasks", "records"} <= set(tables)
    for table in tables:
        indexes = file.execute(f"SELECT name FROM pragma_index_list('{table}') WHERE \"unique\"").fetchall()
        for (index,) in indexes:
            columns = file.execute(f"SELECT name FROM pragma_index_info('{index}')").fetchall()
            assert columns in ([("task_id",)], [("id",)]), index
