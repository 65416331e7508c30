"""The connection to MongoDB with either driver. Only this file and `collection` call the drivers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import pymongo
from motor._version import version as motor_version
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo.errors import PyMongoError

from taskframework.background import in_own_thread
from taskframework.errors import StoreMisconfiguredError
from taskframework.stores.mongo.codec import CODEC
from taskframework.stores.mongo.collection import Collection
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.faults import driver_errors
from taskframework.urls import redacted

MongoDriver = Literal["motor", "pymongo"]

_ADDRESS_HINT = "Correct store.url, or the files for TLS. In a password write @ as %40, : as %3A, / as %2F, % as %25."
_SERVER_SELECTION = timedelta(seconds=5)
#: The name by which the server knows this program. A release whose writes concern older releases takes the next number,
#: so that `earlier_release.py` can count the connections of older releases. Releases without a number kept no records.
APP_NAME = "taskframework/2"
TASKS = "tasks"
_COLLECTIONS = (TASKS, "dead_letters", "records")
_CLOSE_TIMEOUT = timedelta(seconds=1)  # for telling the server that a client disconnects; it can do without that


@dataclass(frozen=True, slots=True)
class Connection:
    """One pool of connections to the store's database."""

    tasks: Collection
    dead_messages: Collection
    records: Collection
    #: Finds a collection by its name, for one of another release.
    collection: Callable[[str], Collection]
    _database: Any
    _client: Any
    _to_any_set: Callable[[], Connection]

    async def command(self, command: Mapping[str, Any]) -> Document:
        with driver_errors():
            return cast("Document", await self._database.command(command, codec_options=CODEC))

    async def hello(self) -> Document:
        """The primary's description of itself; fails if there is no primary."""
        return await self.command({"hello": 1})

    async def count_clients(self, app_name: str) -> int:
        """How many connections to this server have this name, including idle connections."""
        listed = {"$currentOp": {"allUsers": True, "idleConnections": True}}
        pipeline = [listed, {"$match": {"appName": app_name}}, {"$count": "clients"}]
        with driver_errors():
            reply = await self._client.admin.command({"aggregate": 1, "pipeline": pipeline, "cursor": {}})
        return sum(counted["clients"] for counted in reply["cursor"]["firstBatch"])

    @property
    def name(self) -> str:
        return cast("str", self._database.name)

    @property
    def servers(self) -> str:
        """The servers that the driver knows: at first those of the URL; empty if they belong to another replica set."""
        known = self._client.topology_description.server_descriptions()
        return ", ".join(host if port is None else f"{host}:{port}" for host, port in known)

    @property
    def replica_set(self) -> str | None:
        """The replica set that the URL names."""
        return cast("str | None", self._client.options.replica_set_name)

    async def hello_of_any_set(self) -> Document:
        """`hello` of the servers at this address, in whichever replica set they are."""
        other = self._to_any_set()
        try:
            return await other.hello()
        finally:
            await other.close()

    async def close(self) -> None:
        with time_limit(_CLOSE_TIMEOUT):
            # motor's close is a plain function that blocks while it tells the server that it disconnects.
            if (closing := await in_own_thread(self._client.close)) is not None:
                await closing


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for TLS; if one of them is given, TLS is used."""

    #: Certificate of the authority that signed the server's certificate; None: an authority that the system trusts.
    ca: Path | None = None
    #: The program's own certificate, with its key.
    certificate: Path | None = None

    @property
    def options(self) -> Mapping[str, Any]:
        """The options by the drivers' names."""
        files = {"tlsCAFile": self.ca, "tlsCertificateKeyFile": self.certificate}
        given = {name: str(file) for name, file in files.items() if file is not None}
        return {"tls": True, **given} if given else {}


def connect(
    url: str, driver: MongoDriver, timeout: timedelta, pool_size: int, tls: TlsFiles = TlsFiles(), **options: Any
) -> Connection:
    """Prepare a pool; nothing is sent before the first call. `options` override the URL's.

    Raises:
        StoreMisconfiguredError: if the URL cannot be used.
    """
    make: Any = AsyncIOMotorClient if driver == "motor" else pymongo.AsyncMongoClient
    try:
        # The options here override the URL, so that no option of the URL weakens the promises. A `wtimeout` has no
        # effect: the drivers drop it for the time limit of the whole operation.
        client = make(
            url,
            appname=APP_NAME,
            w="majority",
            journal=True,
            readConcernLevel="majority",
            readPreference="primary",
            retryWrites=True,
            maxPoolSize=pool_size,
            serverSelectionTimeoutMS=min(timeout, _SERVER_SELECTION) // timedelta(milliseconds=1),
            timeoutMS=timeout // timedelta(milliseconds=1),
            **tls.options,
            **options,
        )
        database = client.get_default_database(codec_options=CODEC)
    except (PyMongoError, ValueError, OSError) as error:  # the files for TLS may raise OSError
        message = f"The address of the MongoDB store cannot be used: {redacted(str(error))}."
        raise StoreMisconfiguredError(message, hint=_ADDRESS_HINT) from error
    run = partial(database.command, codec_options=CODEC)

    def collection(name: str) -> Collection:
        return Collection(database[name], run, timeout)

    to_any_set = partial(connect, url, driver, timeout, pool_size=1, tls=tls, replicaSet=None)
    tasks, dead_messages, records = map(collection, _COLLECTIONS)
    return Connection(tasks, dead_messages, records, collection, database, client, to_any_set)


def driver_version(driver: MongoDriver) -> str:
    return f"motor {motor_version} on pymongo {pymongo.version}" if driver == "motor" else f"pymongo {pymongo.version}"


def time_limit(limit: timedelta) -> AbstractContextManager[None]:
    """One time limit for all calls inside the block together, instead of the client's limit for each."""
    return pymongo.timeout(limit.total_seconds())
