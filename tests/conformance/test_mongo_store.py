"""The MongoDB store does what every store must do, with either driver."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
from pymongo import MongoClient

from taskframework.model.idempotency import key_id, key_record
from taskframework.model.interventions import Replay
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.stores.base import TaskStore
from taskframework.stores.mongo.client import MongoDriver
from taskframework.stores.mongo.collection import Collection
from taskframework.stores.mongo.store import MongoStore
from taskframework.testing.conformance.store import StoreConformance
from taskframework.testing.conformance.store_suite import insert_one, put_final, read_task
from taskframework.testing.factories import new_task
from tests.conformance.idempotency_cases import IdempotencyCases
from tests.conformance.replay_cases import ReplayCases
from tests.conformance.schedule_cases import ScheduleCases
from tests.support.submission import keyed_inserts

Client = MongoClient[dict[str, Any]]

_DATABASE = f"conformance_{secrets.token_hex(6)}"


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, Client]]:
    """The test's own look at the server, by URL."""
    clients: dict[str, Client] = {}
    yield clients
    for client in clients.values():
        client.drop_database(_DATABASE)
        client.close()


class OnMongo(StoreConformance, IdempotencyCases, ReplayCases, ScheduleCases):
    """On the server's own clock, in a database that is emptied: its indexes take longer to build than most tests."""

    driver: MongoDriver
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _empty_database(self, mongo_url: str, clients: dict[str, Client]) -> None:
        self.url = urlsplit(mongo_url)._replace(path=f"/{_DATABASE}").geturl()
        if self.url not in clients:
            clients[self.url] = MongoClient(self.url)
        for collection in ("tasks", "dead_letters", "records"):
            clients[self.url][_DATABASE][collection].delete_many({})

    async def make_store(self) -> TaskStore:
        # Two hundred calls at once take longer than the usual ten seconds where much else runs.
        store = MongoStore(self.url, driver=self.driver, timeout=timedelta(minutes=1), **self.options)
        await store.open()
        return store

    async def test_a_task_that_is_replayed_while_it_is_purged_keeps_its_key(
        self, store: TaskStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ended = store.now() - timedelta(days=2)
        task = await put_final(
            store, TaskStatus.FAILED, idempotency_key="k", created_at=ended, finished_at=ended, publish_at=None
        )
        await store.write_records([key_record(task, timedelta(days=1))])
        delete = Collection.delete_by_ids

        async def replay_before(collection: Collection, ids: Any, *more: Any) -> int:
            if task.task_id in ids:
                assert await store.apply(Replay(task.task_id, EVERYONE, "operator", timedelta(days=1))) is not None
            return await delete(collection, ids, *more)

        with monkeypatch.context() as patched:
            patched.setattr(Collection, "delete_by_ids", replay_before)
            assert await store.purge(finished=timedelta(days=1), dead_letters=timedelta(days=1), limit=10) == 0
        assert (await read_task(store, task.task_id)).generation == 1
        assert list(await store.read_records([key_id(task.user_id, "k")])) != []

    async def test_a_submission_between_the_deletions_of_a_task_and_of_its_key_keeps_the_key(
        self, store: TaskStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inserts, ended = keyed_inserts(store, timedelta(days=1)), store.now() - timedelta(days=2)
        fields: dict[str, Any] = {"idempotency_key": "k", "created_at": ended, "finished_at": ended, "publish_at": None}
        task = await put_final(store, TaskStatus.COMPLETED, **fields)
        await store.write_records([key_record(task, timedelta(days=1))])
        delete = Collection.delete_by_ids

        async def submit_after(collection: Collection, ids: Any, *more: Any) -> int:
            removed = await delete(collection, ids, *more)
            if task.task_id in ids:
                assert (await insert_one(inserts, new_task(idempotency_key="k", now=store.now()))).is_new
            return removed

        with monkeypatch.context() as patched:
            patched.setattr(Collection, "delete_by_ids", submit_after)
            assert await store.purge(finished=timedelta(days=1), dead_letters=None, limit=10) == 1
        repeated = await insert_one(inserts, new_task(idempotency_key="k", now=store.now()))
        assert (repeated.task.task_id, repeated.is_new) == (task.task_id, False)

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class TestMongoStoreOnMotor(OnMongo):
    driver = "motor"


class TestMongoStoreOnPymongoThatRemembersNothing(OnMongo):
    """The other driver and the plain way at once: what a store remembers knows nothing of drivers."""

    driver = "pymongo"
    options: ClassVar[dict[str, Any]] = {"remembered": 0}
