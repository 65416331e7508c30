"""The MongoDB store does what every store must do, with either driver."""

from __future__ import annotations

import asyncio

import pytest

from taskframework.stores.base import TaskStore
from taskframework.stores.mongo.client import Driver
from taskframework.stores.mongo.store import MongoStore
from taskframework.testing.conformance.store import StoreConformance


class OnMongo(StoreConformance):
    """On the server's own clock."""

    driver: Driver

    @pytest.fixture(autouse=True)
    def _url(self, mongo_url: str) -> None:
        self.url = mongo_url

    async def make_store(self) -> TaskStore:
        store = MongoStore(self.url, driver=self.driver)
        await store.open()
        return store

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class TestMongoStoreOnMotor(OnMongo):
    driver = "motor"


class TestMongoStoreOnPymongo(OnMongo):
    driver = "pymongo"
