"""What MongoDB's driver says, in words that name who is meant."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import pymongo
import pytest
from pymongo import _csot
from pymongo.errors import OperationFailure, ServerSelectionTimeoutError, WaitQueueTimeoutError

from taskframework.errors import StoreMisconfiguredError, StoreUnavailableError
from taskframework.stores.mongo.client import MongoDriver, connect
from taskframework.stores.mongo.faults import driver_errors


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("SSL handshake failed: db:27017: [SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred", "remove tls=true"),
        ("SSL handshake failed: db:27017: [SSL: CERTIFICATE_VERIFY_FAILED] self-signed", "store.ca_file"),
        ("SSL handshake failed: db:27017: certificate is not valid for 'db'", "Use a name in the address"),
        ("SSL handshake failed: db:27017: [SSL: TLSV1_ALERT_UNKNOWN_CA]", "set store.certificate"),
        ("db:27017: connection closed (configured timeouts: x)", "needs tls=true there"),
        ("db:27017: [Errno 111] Connection refused", "Check that it runs and that store.url is right; `task"),
    ],
)
def test_tls_on_one_side_only_is_an_error_with_a_hint(said: str, hint: str) -> None:
    with pytest.raises(StoreUnavailableError) as told, driver_errors():
        raise ServerSelectionTimeoutError(said)
    assert hint in told.value.hint


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


def test_members_that_are_away_are_no_wrong_names() -> None:
    said = "Could not reach any servers in [('127.0.0.1', 27017), ('db', 2)]. "
    said += "Replica set is configured with internal hostnames or IPs?"
    with pytest.raises(StoreUnavailableError) as told, driver_errors():
        raise ServerSelectionTimeoutError(f"{said}, Timeout: 10.0s, Topology Description: ...")
    named = "127.0.0.1:27017, db:2"
    assert told.value.message == f"MongoDB: no answer from {named}, as the replica set names its members."


def test_a_frozen_server_is_not_reported_as_too_few_connections() -> None:
    with pytest.raises(StoreUnavailableError) as told, driver_errors():
        raise WaitQueueTimeoutError(
            "Timed out while checking out a connection from connection pool. maxPoolSize: 4, timeout: 2.0"
        )
    assert told.value.message == "MongoDB: no answer on any connection."


@pytest.mark.parametrize(
    ("code", "said", "told", "hint"),
    [
        (18, "Authentication failed., full error: {...}", "Authentication failed", "?authSource=admin"),
        (
            13,
            'not authorized on tasks to execute command { listIndexes: "tasks", lsid: { id: UUID("planted") } }',
            "not authorized on tasks",
            "role readWrite on this database",
        ),
    ],
)
def test_a_refusal_says_what_the_user_needs(code: int, said: str, told: str, hint: str) -> None:
    with pytest.raises(StoreMisconfiguredError) as refused, driver_errors():
        raise OperationFailure(said, code)
    assert refused.value.message == f"MongoDB refused access: {told}."
    assert hint in refused.value.hint


@pytest.mark.parametrize("password", ["PLAN/TED", "PLAN@TED", "PLAN%TED"])
def test_a_password_that_breaks_the_address_is_refused_with_the_right_form(password: str) -> None:
    with pytest.raises(StoreMisconfiguredError) as refused:
        connect(f"mongodb://user:{password}@db/tasks", "pymongo", timedelta(seconds=1), 1)
    assert "write @ as %40, : as %3A, / as %2F, % as %25" in refused.value.hint
    assert "PLAN" not in str(refused.value)


@pytest.mark.parametrize("driver", ["motor", "pymongo"])
async def test_a_client_that_closes_does_not_wait_long_for_a_server_that_hangs(
    driver: MongoDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the driver's own limits, a process needed 26 seconds more to end."""
    connection = connect("mongodb://127.0.0.1:1/tasks?replicaSet=rs0", driver, timedelta(seconds=10), 1)
    client = connection._client.delegate if driver == "motor" else connection._client
    close, limits = client.close, list[float | None]()

    def close_and_tell() -> Any:
        limits.append(_csot.get_timeout())
        return close()

    monkeypatch.setattr(client, "close", close_and_tell)
    await connection.close()
    assert limits == [1.0]
