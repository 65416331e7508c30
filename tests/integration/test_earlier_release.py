"""MongoDB databases that an earlier release uses or used: no key is accepted twice, and its index goes in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from taskframework.errors import IdempotencyConflictError
from taskframework.model.idempotency import IDEMPOTENCY, IdempotencyKey, key_id
from taskframework.model.task import Task
from taskframework.stores.mongo import earlier_release
from taskframework.stores.mongo.store import MongoStore
from taskframework.submission.types import declared_types
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from tests.support.earlier_release import INDEX, EarlierRelease
from tests.support.submission import keyed_inserts

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)


@pytest.fixture
def old(mongo_url: str) -> Iterator[EarlierRelease]:
    with EarlierRelease(mongo_url) as release:
        yield release


@pytest.fixture
def indexes(mongo_url: str) -> Iterator[Any]:
    """The names of the indexes on the tasks."""
    with MongoClient[dict[str, Any]](mongo_url) as client:
        tasks = client.get_default_database()["tasks"]
        yield lambda: set(tasks.index_information())


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[MongoStore]:
    store = MongoStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(old: EarlierRelease, mongo_url: str) -> AsyncIterator[MongoStore]:
    """A store beside a process of the earlier release."""
    async with opened(mongo_url) as store:
        yield store


async def submitted(store: MongoStore, key: str, **values: Any) -> Task:
    given = {"user_id": "alice", "idempotency_key": key, "parameters_hash": "hash"} | values
    return (await insert_one(keyed_inserts(store, DAY), new_task(now=store.now(), **given))).task


async def look(store: MongoStore) -> None:
    await store._parts.earlier.clean_up()


async def named(store: MongoStore, key: str) -> str | None:
    """The task that the record of a key names."""
    found = await store.read_records([key_id("alice", key)])
    return IDEMPOTENCY.content(found[key_id("alice", key)]).task_id if found else None


async def test_a_new_database_never_has_the_index(mongo_url: str, indexes: Any) -> None:
    async with opened(mongo_url) as store:
        await look(store)
        assert INDEX not in indexes()
        assert "earlier release" not in (await store.inspect()).facts


async def test_a_collection_of_another_program_is_left_alone(mongo_url: str) -> None:
    with MongoClient[dict[str, Any]](mongo_url) as client:
        theirs = client.get_default_database()["task_types"]
        await asyncio.to_thread(theirs.insert_one, {"_id": 1, "name": "theirs"})
        async with opened(mongo_url) as store:
            await look(store)
        assert await asyncio.to_thread(theirs.count_documents, {}) == 1


async def test_without_earlier_processes_the_index_is_dropped_at_the_first_start(mongo_url: str, indexes: Any) -> None:
    with EarlierRelease(mongo_url) as old:
        known = {f"k/%{n}": old.submit(f"k/%{n}") for n in range(1_200)}
    await eventually(lambda: asyncio.to_thread(is_alone, mongo_url))
    async with opened(mongo_url) as store:
        assert INDEX not in indexes()
        assert {key: (await submitted(store, key)).task_id for key in list(known)[::100]} == dict(
            list(known.items())[::100]
        )
        with pytest.raises(IdempotencyConflictError):
            await submitted(store, "k/%7", parameters_hash="other")
        assert len(await store.list_records("idempotency", limit=2_000)) == 1_200


async def test_both_releases_find_tasks_of_the_other_while_both_run(
    old: EarlierRelease, store: MongoStore, indexes: Any
) -> None:
    by_new = await submitted(store, "new")
    await look(store)
    assert INDEX in indexes()
    by_old = await asyncio.to_thread(old.submit, "old")
    assert (await submitted(store, "old")).task_id == by_old
    assert await named(store, "old") == by_old, "the record says what the index knew"
    with pytest.raises(IdempotencyConflictError):
        await submitted(store, "old", parameters_hash="other")
    assert await asyncio.to_thread(old.submit, "new") == by_new.task_id
    assert "connections of it are open" in (await store.inspect()).facts["earlier release"]


async def test_each_key_has_a_record_and_the_index_is_dropped_after_the_earlier_release(
    old: EarlierRelease, store: MongoStore, indexes: Any
) -> None:
    by_old = {key: await asyncio.to_thread(old.submit, key) for key in "abc"}
    by_new = await submitted(store, "new")
    await asyncio.to_thread(old.close)
    await until_gone(store)
    assert INDEX not in indexes()
    assert {key: await named(store, key) for key in (*by_old, "new")} == {**by_old, "new": by_new.task_id}
    assert "earlier release" not in (await store.inspect()).facts


async def test_keys_that_both_accept_at_once_are_one_task_each(old: EarlierRelease, store: MongoStore) -> None:
    """The index goes as soon as the earlier release has left, in the middle of the new one's submissions."""
    keys = [f"key-{n}" for n in range(60)] * 3
    ids: dict[str, set[str]] = {key: set() for key in keys}

    async def by_old() -> None:
        for key in random.sample(keys, len(keys)):
            ids[key].add(await asyncio.to_thread(old.submit, key))
        await asyncio.to_thread(old.close)
        await until_gone(store)

    async def by_new() -> None:
        for key in random.sample(keys, len(keys)):
            ids[key].add((await submitted(store, key)).task_id)

    await asyncio.gather(by_old(), *(by_new() for _ in range(4)))
    await by_new()
    assert {key: len(found) for key, found in ids.items() if len(found) != 1} == {}


async def test_submissions_of_one_key_at_once_all_find_the_task_of_the_earlier_release(
    old: EarlierRelease, store: MongoStore
) -> None:
    """They are one group of inserts, in which the index refuses each."""
    by_old = await asyncio.to_thread(old.submit, "key")
    found = await asyncio.gather(*(submitted(store, "key") for _ in range(20)))
    assert {task.task_id for task in found} == {by_old}


async def test_an_earlier_release_that_starts_again_shares_its_keys_again(
    old: EarlierRelease, store: MongoStore, mongo_url: str, indexes: Any
) -> None:
    await asyncio.to_thread(old.close)
    await until_gone(store)
    again = await asyncio.to_thread(EarlierRelease, mongo_url)
    task_id = await asyncio.to_thread(again.submit, "again")
    assert (await submitted(store, "again")).task_id == task_id
    await asyncio.to_thread(again.close)
    await until_gone(store)
    assert (await submitted(store, "again")).task_id == task_id


async def test_a_record_of_a_submission_under_way_is_left_alone_for_a_while(
    old: EarlierRelease, store: MongoStore, mongo_url: str, indexes: Any
) -> None:
    """Its process has written the record and not the task; meanwhile the earlier release accepted the key."""
    passed = timedelta(0)
    release = earlier_release.EarlierRelease(store._parts.connection, store, lambda: store.now() + passed)
    content = IdempotencyKey("not-there", "hash")
    await store.write_records([IDEMPOTENCY.new("alice", "key", content=content, expires_at=store.now() + HOUR)])
    task_id = await asyncio.to_thread(old.submit, "key")
    await asyncio.to_thread(old.close)
    await eventually(lambda: asyncio.to_thread(is_alone, mongo_url))
    for _ in range(3):
        await release.clean_up()
        assert (await named(store, "key"), INDEX in indexes()) == ("not-there", True)
    passed = MINUTE
    await release.clean_up()
    assert (await named(store, "key"), INDEX in indexes()) == (task_id, False)


@pytest.mark.parametrize("connected", [None, 3], ids=["cannot be asked", "of another installation"])
async def test_the_index_is_dropped_after_a_day_without_keys_of_the_earlier_release(
    old: EarlierRelease, store: MongoStore, indexes: Any, connected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def those(_: object) -> int | None:
        return connected

    monkeypatch.setattr(earlier_release, "count_connections", those)
    passed = timedelta(0)
    release = earlier_release.EarlierRelease(store._parts.connection, store, lambda: store.now() + passed)
    for hours in (0, 10, 20):
        passed = timedelta(hours=hours)
        await release.clean_up()
    created = store.now() + passed
    task_id = await asyncio.to_thread(lambda: old.submit("old", now=created))  # late: the day begins again
    for minutes in (20 * 60 + 5, 30 * 60, 44 * 60):
        passed = timedelta(minutes=minutes)
        await release.clean_up()
        assert INDEX in indexes(), minutes
    passed = timedelta(hours=45)
    await release.clean_up()
    assert INDEX not in indexes()
    assert await named(store, "old") == task_id


async def test_task_types_that_the_earlier_release_declared_are_known(mongo_url: str) -> None:
    known = '{"task_type": "a.b", "parameters_schema": {"$ref": 1}, "result_schema": {}, "priority": "high"}'
    with EarlierRelease(mongo_url) as old:
        old.declare("a.b", known)
        async with opened(mongo_url) as store:
            assert [(each.task_type, each.priority) for each in await declared_types(store)] == [("a.b", "high")]
    async with opened(mongo_url) as store:
        assert [each.parameters_schema for each in await declared_types(store)] == [{"$ref": 1}]


def is_alone(url: str) -> bool:
    """Whether the server has noticed that the earlier release has closed its connections."""
    with MongoClient[dict[str, Any]](url) as client:
        clients = client.admin.aggregate([{"$currentOp": {"allUsers": True, "idleConnections": True}}])
        return "taskframework" not in {entry.get("appName") for entry in clients}


async def until_gone(store: MongoStore) -> None:
    """Look until the server has noticed that the connections are closed."""

    async def is_gone() -> bool:
        await look(store)
        return INDEX not in await store._tasks.indexes()

    await eventually(is_gone)
