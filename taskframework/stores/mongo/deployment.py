"""Checks whether a MongoDB deployment can keep the framework's promises, and the report of `doctor` on it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from taskframework.background import end
from taskframework.errors import StoreError, StoreMisconfiguredError, StoreUnavailableError
from taskframework.model.wording import pluralize
from taskframework.stores.mongo import earlier_release
from taskframework.stores.mongo.client import Connection, MongoDriver, driver_version, time_limit
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.indexes import (
    DEAD_MESSAGE_INDEXES,
    INDEX_BUILD,
    RECORD_INDEXES,
    TASK_INDEXES,
    create_missing_indexes,
    find_index_differences,
)
from taskframework.stores.replies import StoreReport

logger = logging.getLogger(__name__)

#: Seconds without an answer after which the log says that the program waits: the error may come ten seconds later.
_WARN_AFTER_SECONDS = 2.0
#: Seconds between two attempts to create missing indexes, if MongoDB refuses this.
_PAUSE_AFTER_REFUSAL_SECONDS = 60.0
#: Partial indexes with `$in` came with MongoDB 6.0.
_OLDEST_WIRE_VERSION = 17


async def prepare(connection: Connection) -> None:
    """Refuse a deployment that cannot keep the promises, and create missing indexes.

    Raises:
        StoreMisconfiguredError: with the remedy.
    """
    await _check_primary(connection)
    await _create_missing_indexes(connection)


async def _create_missing_indexes(connection: Connection) -> list[str]:
    with time_limit(INDEX_BUILD):
        return [
            *await create_missing_indexes(connection.tasks, TASK_INDEXES),
            *await create_missing_indexes(connection.dead_messages, DEAD_MESSAGE_INDEXES),
            *await create_missing_indexes(connection.records, RECORD_INDEXES),
        ]


class IndexRepair:
    """Creates missing indexes again as soon as a query misses one. Without it, repairs would fail until the next start
    of some process.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._creating: asyncio.Task[None] | None = None
        #: Not before this time of the event loop's clock: every query that misses an index asks for a repair.
        self._next_attempt = 0.0
        for collection in (connection.tasks, connection.dead_messages, connection.records):
            collection.on_missing_index = self._request

    async def stop(self) -> None:
        if self._creating is not None:
            await end(self._creating)

    def _request(self) -> None:
        loop = asyncio.get_running_loop()
        if (self._creating is None or self._creating.done()) and loop.time() >= self._next_attempt:
            # In an empty context: the time limit and the log context of the query end before this.
            self._creating = loop.create_task(self._create(), context=contextvars.Context())

    async def _create(self) -> None:
        try:
            if created := await _create_missing_indexes(self._connection):
                logger.warning("indexes of MongoDB were missing; created again: %s", ", ".join(created))
        except StoreError as error:  # the queries that fail are logged
            logger.debug("missing indexes are not created: %s", error)
            self._next_attempt = asyncio.get_running_loop().time() + _PAUSE_AFTER_REFUSAL_SECONDS


async def _check_primary(connection: Connection) -> Document:
    """The primary's description of itself, if this deployment can keep the promises.

    A driver that knows the name of the replica set forgets servers that are not in it, and then only says that there is
    no server. So these servers are asked directly, without a name.

    Raises:
        StoreMisconfiguredError: with the remedy.
        StoreUnavailableError: if there is no primary.
    """
    with _warning_while_waiting(connection.servers):
        try:
            hello = await connection.hello()
        except StoreUnavailableError:
            if connection.servers:
                raise
            hello = await connection.hello_of_any_set()
    check_deployment(hello, connection.replica_set)
    return hello


@contextmanager
def _warning_while_waiting(servers: str) -> Iterator[None]:
    said = "waiting for MongoDB at %s ..."
    timer = asyncio.get_running_loop().call_later(_WARN_AFTER_SECONDS, logger.warning, said, servers)
    try:
        yield
    finally:
        timer.cancel()


def check_deployment(hello: Document, wanted: str | None) -> None:
    """Accept the replica set of that name (None: any), or a router, of MongoDB 6.0 or newer.

    Raises:
        StoreMisconfiguredError: with the remedy.
    """
    found = hello.get("setName")
    if found is None and hello.get("msg") != "isdbgrid":
        raise StoreMisconfiguredError(
            "MongoDB runs as a standalone server"
            + (f", not as a member of replica set {wanted!r}. A standalone" if wanted else ", which")
            + " cannot repeat a write safely after a lost reply.",
            hint=f"Start mongod with --replSet {wanted or 'rs0'} and run rs.initiate() on it once; one node is enough.",
        )
    if wanted not in (None, found):
        raise StoreMisconfiguredError(
            f"The address of the MongoDB store names the replica set {wanted!r}, but the servers there are "
            + (f"in {found!r}." if found else "routers (mongos)."),
            hint=f"Write replicaSet={found} in store.url." if found else "Leave replicaSet out of store.url.",
        )
    if hello["maxWireVersion"] < _OLDEST_WIRE_VERSION:
        raise StoreMisconfiguredError("MongoDB is older than 6.0.", hint="Use MongoDB 6.0 or newer.")


async def inspect(connection: Connection, driver: MongoDriver) -> StoreReport:
    """Look without changing anything; a question without an answer becomes a problem in the report."""
    facts = {"driver": driver_version(driver), "database": connection.name}
    problems: list[str] = []
    try:
        hello = await _check_primary(connection)
        facts["server"] = f"MongoDB {(await connection.command({'buildInfo': 1}))['version']}"
        facts["replica set"] = f"{hello.get('setName')} ({pluralize(len(hello.get('hosts', ())), 'member')})"
        if (left := await earlier_release.describe_state(connection)) is not None:
            facts["earlier release"] = left
        problems += await find_index_differences(connection.tasks, TASK_INDEXES)
        problems += await find_index_differences(connection.dead_messages, DEAD_MESSAGE_INDEXES)
        problems += await find_index_differences(connection.records, RECORD_INDEXES)
    except StoreError as error:
        problems.append(str(error))
    return StoreReport(facts, tuple(problems))
