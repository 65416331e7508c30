"""What MongoDB's driver says, in words that name who is meant."""

from __future__ import annotations

import socket

import pymongo
import pytest

from taskframework.errors import StoreUnavailableError
from taskframework.stores.mongo.faults import driver_errors


@pytest.mark.parametrize("query", ["", "?replicaSet=rs0"])
def test_a_server_that_says_nothing_is_named(query: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with (
            pymongo.MongoClient[dict[str, object]](
                f"mongodb://127.0.0.1:{port}/{query}", serverSelectionTimeoutMS=50
            ) as client,
            pytest.raises(StoreUnavailableError) as told,
            driver_errors(),
        ):
            client.admin.command("ping")
    assert told.value.message == f"MongoDB: no answer from 127.0.0.1:{port}."
