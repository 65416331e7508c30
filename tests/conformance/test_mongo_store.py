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

from taskframework.stores.base import TaskStore
from taskframework.stores.mongo.client import MongoDriver
from taskframework.stores.mongo.store import MongoStore
from taskframework.testing.conformance.store import StoreConformance
from tests.conformance.idempotency_cases import IdempotencyCases
from tests.conformance.replay_cases import ReplayCases
from tests.conformance.schedule_cases import ScheduleCases

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

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class TestMongoStoreOnMotor(OnMongo):
    driver = "motor"


class TestMongoStoreOnPymongoThatRemembersNothing(OnMongo):
    """The other driver and the plain way at once: what a store remembers knows nothing of drivers."""

    driver = "pymongo"
    options: ClassVar[dict[str, Any]] = {"remembered": 0}
