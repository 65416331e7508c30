"""A private replica set of three MongoDB servers, whose primary can be killed and made to step down."""

from __future__ import annotations

import contextlib
from typing import Any

from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from tests.support.mongo import MongoServer
from tests.support.process import ServerFailed, wait_until

_NAME = "rs3"
_ELECTION_TIMEOUT = 60.0


class _Member(MongoServer):
    """One server of the set: ready when it answers, whatever its role."""

    def _is_writable(self, client: MongoClient[dict[str, Any]]) -> bool:
        try:
            client.admin.command("ping")
        except PyMongoError:
            return False
        return True


class MongoSet:
    """Three servers. Elections take about two seconds; data survive kills."""

    def __init__(self) -> None:
        """Prepare the servers without starting them.

        Raises:
            ServerUnavailable: No mongod on this machine.
        """
        self.members = [_Member(replica_set=_NAME, cache_gigabytes=0.25) for _ in range(3)]

    def url_of(self, database: str) -> str:
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        return f"mongodb://{hosts}/{database}?replicaSet={_NAME}"

    def start(self) -> None:
        """Start the servers, make them a set, and return when it takes writes."""
        for member in self.members:
            member.start()
        configuration = {
            "_id": _NAME,
            "members": [
                {"_id": number, "host": f"127.0.0.1:{member.port}"} for number, member in enumerate(self.members)
            ],
            "settings": {"electionTimeoutMillis": 2_000, "heartbeatIntervalMillis": 500, "heartbeatTimeoutSecs": 2},
        }
        with self.members[0].client() as client:
            client.admin.command("replSetInitiate", configuration)
        self.primary()

    def primary(self) -> MongoServer:
        """The server that takes writes; waits for one.

        Raises:
            ServerFailed: None was elected in time.
        """
        found: list[MongoServer] = []

        def is_found() -> bool:
            found.extend(member for member in self.members if _is_primary(member))
            return bool(found)

        wait_until(is_found, "the set has a primary", timeout=_ELECTION_TIMEOUT)
        return found[0]

    def step_down(self) -> None:
        """Make the primary give up its role to another server."""
        with self.primary().client() as client, contextlib.suppress(AutoReconnect):
            try:
                client.admin.command("replSetStepDown", 10, secondaryCatchUpPeriodSecs=5)
            except OperationFailure as failure:
                raise ServerFailed(f"the primary does not step down: {failure}") from failure

    def close(self) -> None:
        for member in self.members:
            member.close()


def _is_primary(member: MongoServer) -> bool:
    if not member.is_running:
        return False
    with member.client() as client, contextlib.suppress(PyMongoError):
        return bool(client.admin.command("hello").get("isWritablePrimary"))
    return False
