"""Whether a MongoDB deployment can keep the promises, and what `doctor` shows of it."""

from __future__ import annotations

from taskframework.errors import StoreError, StoreMisconfiguredError
from taskframework.stores.base import StoreReport
from taskframework.stores.mongo.client import Connection, Driver, driver_version, time_limit
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.indexes import DEAD_MESSAGE_INDEXES, INDEX_BUILD, TASK_INDEXES, drift, ensure

#: Partial indexes with `$in` came with MongoDB 6.0.
_OLDEST_WIRE_VERSION = 17


async def prepare(connection: Connection) -> None:
    """Refuse what cannot keep the promises, and create missing indexes.

    Raises:
        StoreMisconfiguredError: with the remedy.
    """
    check(await connection.hello())
    with time_limit(INDEX_BUILD):
        await ensure(connection.tasks, TASK_INDEXES)
        await ensure(connection.dead_messages, DEAD_MESSAGE_INDEXES)


def check(hello: Document) -> None:
    """Accept a replica set or a router of MongoDB 6.0 or newer.

    Raises:
        StoreMisconfiguredError: with the remedy.
    """
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise StoreMisconfiguredError(
            "MongoDB runs as a standalone server, which cannot repeat a write safely after a lost reply.",
            hint="Start mongod with --replSet rs0 and run rs.initiate() once; one node is enough.",
        )
    if hello["maxWireVersion"] < _OLDEST_WIRE_VERSION:
        raise StoreMisconfiguredError("MongoDB is older than 6.0.", hint="Use MongoDB 6.0 or newer.")


async def inspect(connection: Connection, driver: Driver) -> StoreReport:
    """Look without changing anything; what cannot be asked becomes a problem."""
    facts = {"driver": driver_version(driver), "database": connection.name}
    problems: list[str] = []
    try:
        facts["server"] = f"MongoDB {(await connection.command({'buildInfo': 1}))['version']}"
        hello = await connection.hello()
        facts["replica set"] = f"{hello.get('setName')} ({len(hello.get('hosts', ()))} members)"
        check(hello)
        problems += await drift(connection.tasks, TASK_INDEXES)
        problems += await drift(connection.dead_messages, DEAD_MESSAGE_INDEXES)
    except StoreError as error:
        problems.append(str(error))
    return StoreReport(facts, tuple(problems))
