"""What is wrong about the address of a MongoDB store, or with the server there, is said with its remedy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from taskframework.errors import StoreMisconfiguredError, StoreUnavailableError
from taskframework.stores.mongo import deployment
from taskframework.stores.mongo.client import MongoDriver
from taskframework.stores.mongo.store import MongoStore
from tests.support.servers import MongoServer

#: How long a driver looks for a member of the set: the drivers wait as long as this before they say that there is none.
PATIENCE = timedelta(seconds=2)
both_drivers = pytest.mark.parametrize("driver", ["motor", "pymongo"])


@asynccontextmanager
async def started(server: MongoServer) -> AsyncIterator[MongoServer]:
    try:
        await asyncio.to_thread(server.start)
        yield server
    finally:
        await asyncio.to_thread(server.close)


async def refusal(store: MongoStore) -> str:
    """Why the store does not open, which `doctor` says too."""
    with pytest.raises(StoreMisconfiguredError) as refused:
        await store.open()
    assert (await store.inspect()).problems == (str(refused.value),)
    return str(refused.value)


@both_drivers
async def test_a_standalone_is_refused_with_the_remedy(driver: MongoDriver) -> None:
    async with started(MongoServer(replica_set=None)) as server:
        said = await refusal(MongoStore(server.url, driver=driver, timeout=PATIENCE))
        assert said.startswith("MongoDB runs as a standalone server, which")
        said = await refusal(
            MongoStore(f"mongodb://127.0.0.1:{server.port}/test?replicaSet=rs7", driver=driver, timeout=PATIENCE)
        )
        assert said.startswith("MongoDB runs as a standalone server, not as a member of replica set 'rs7'.")
        assert "Start mongod with --replSet rs7 and run rs.initiate()" in said


@both_drivers
async def test_the_name_of_another_replica_set_is_refused_with_the_right_one(
    driver: MongoDriver, mongo_server: MongoServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deployment, "_WARN_AFTER_SECONDS", 0.0)
    said = await refusal(MongoStore(mongo_server.url.replace("=rs0", "=rs7"), driver=driver, timeout=PATIENCE))
    assert "names the replica set 'rs7', but the servers there are in 'rs0'" in said
    assert "Write replicaSet=rs0" in said
    waited_for = f"waiting for MongoDB at 127.0.0.1:{mongo_server.port} ..."
    assert caplog.messages == [waited_for] * 2, "before it gives up, which takes a while"


@both_drivers
async def test_a_replica_set_that_was_never_initiated_has_its_own_error(driver: MongoDriver) -> None:
    async with started(MongoServer(initiates=False)) as server:
        with pytest.raises(StoreUnavailableError, match=r"not initiated.*run rs\.initiate\(\)"):
            await MongoStore(server.url, driver=driver, timeout=PATIENCE).open()


@pytest.mark.parametrize("url", ["mongodb://127.0.0.1:1", "mongodb://user:se?cret@host/x", "mongodb://h/x?w=1&bad%"])
async def test_an_unusable_address_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(StoreMisconfiguredError, match=r"store\.url") as refused:
        await MongoStore(url).open()
    assert "cret" not in str(refused.value)
