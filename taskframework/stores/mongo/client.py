"""The only file that calls the MongoDB drivers: it connects with either and speaks the framework's errors."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import bson
import pymongo
from bson.codec_options import CodecOptions, TypeDecoder, TypeRegistry
from bson.raw_bson import RawBSONDocument
from motor._version import version as motor_version
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import AutoReconnect, PyMongoError
from pymongo.read_concern import ReadConcern

from taskframework import failpoint
from taskframework.errors import StoreError, StoreMisconfiguredError, StoreUnavailableError, ValueNotStorableError
from taskframework.settings.urls import redacted
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.faults import AWAY, UNENCODABLE, PartlyRefused, driver_errors, refusal

MongoDriver = Literal["motor", "pymongo"]
#: The failpoints behind the reply to a write.
Points = Iterable[str]

_SERVER_SELECTION = timedelta(seconds=5)
_MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
#: Updates name their document; without the hint the planner tries the indexes of the guard's fields as well.
BY_ID = "_id_"
#: How a process calls itself to the server. The number is that of what it writes: a release that writes otherwise, so
#: that the two must know of each other, takes the next one. Releases before the number kept no records.
APP_NAME = "taskframework/2"
TASKS = "tasks"
_COLLECTIONS = (TASKS, "dead_letters", "records")
_MAJORITY = {"w": "majority", "j": True}
#: What a majority had at one moment. A read with "majority" alone may see an entry twice that moves in its index.
_SNAPSHOT = ReadConcern("snapshot")


class _PlainInteger(TypeDecoder):
    """Integers of 64 bits come back as `int`, not as the driver's own class."""

    bson_type = bson.Int64

    def transform_bson(self, value: int) -> int:
        return int(value)


#: Times come back without their zone; see `documents.moment`.
_CODEC: CodecOptions[Document] = CodecOptions(type_registry=TypeRegistry([_PlainInteger()]))


def encoded(document: Document, what: str) -> RawBSONDocument:
    """A document as it travels: what cannot be stored is found before it joins a group.

    Raises:
        ValueNotStorableError: naming `what`.
    """
    try:
        raw = bson.encode(document)
    except UNENCODABLE as error:
        raise ValueNotStorableError(what, str(error)[:200]) from error
    if len(raw) > _MAX_DOCUMENT_BYTES:
        raise ValueNotStorableError(what, f"it has {len(raw):,} bytes, MongoDB takes {_MAX_DOCUMENT_BYTES:,}")
    return RawBSONDocument(raw)


class Collection:
    """The calls the store makes on one collection; every one raises only errors of the framework."""

    def __init__(self, raw: AsyncCollection[Document], run: Callable[[Document], Awaitable[Document]]) -> None:
        """Make the calls.

        Args:
            raw: the driver's. Motor's has the same calls as PyMongo's but for `aggregate`, and no types.
            run: runs a command on this collection's database.
        """
        self._raw = raw
        self._run = run

    async def find_one(self, filter: Document) -> Document | None:
        with driver_errors():
            return await self._raw.find_one(filter)

    async def find(
        self,
        filter: Document,
        *,
        sort: Mapping[str, int] | None = None,
        limit: int = 0,
        fields: Sequence[str] | None = None,
        index: str | None = None,
    ) -> list[Document]:
        """The matching documents; `limit` 0 means all. Without the name of an index the server chooses."""
        with driver_errors():
            order = list(sort.items()) if sort else None
            cursor = self._raw.find(filter, fields, sort=order, limit=limit, hint=index)
            return await cursor.to_list(None)

    async def batches(
        self, filter: Document, fields: Sequence[str], index: str, size: int = 1_000
    ) -> AsyncIterator[list[Document]]:
        """All matching documents, `size` at a time."""
        cursor = self._raw.find(filter, fields, hint=index, batch_size=size)
        while True:
            with driver_errors():
                found = await cursor.to_list(size)
            if not found:
                return
            yield found

    async def count_all(self) -> int:
        """How many documents there are, as the server keeps count; after a crash of it a little wrong."""
        with driver_errors():
            return await self._raw.estimated_document_count()

    async def aggregate(
        self, pipeline: Sequence[Document], *, index: str | None = None, at_one_moment: bool = False
    ) -> list[Document]:
        """The result of a pipeline; on request over documents as they all were at one moment that cannot be undone."""
        raw = self._raw.with_options(read_concern=_SNAPSHOT) if at_one_moment else self._raw
        options: dict[str, Any] = {} if index is None else {"hint": index}
        with driver_errors():
            cursor: Any = raw.aggregate(list(pipeline), **options)
            if inspect.iscoroutine(cursor):  # pymongo's; motor gives the cursor itself
                cursor = await cursor
            return cast("list[Document]", await cursor.to_list(None))

    async def update_one(self, filter: Document, update: Sequence[Any], points: Points) -> Document | None:
        """The document after the update, or None if none matched."""
        with driver_errors():
            document = await self._raw.find_one_and_update(
                filter, list(update), return_document=pymongo.ReturnDocument.AFTER, hint=BY_ID
            )
            await failpoint.replied(points, _broken)
            return document

    async def update_once(self, filter: Document, update: Sequence[Any], points: Points) -> Document | None:
        """`update_one`, but sent only once: see `_write_once`."""
        command = {"findAndModify": self._raw.name, "query": filter, "update": list(update), "new": True, "hint": BY_ID}
        reply = await self._write_once(command, points)
        return cast("Document | None", _with_plain_integers(reply["value"]))

    async def upsert_one(self, filter: Document, update: Sequence[Any], points: Points) -> Document:
        """The document after the update; one that is not there is made by it.

        Raises:
            DuplicateDocumentError: if somebody else made it at the same moment; it is there now.
        """
        with driver_errors():
            document = await self._raw.find_one_and_update(
                filter, list(update), upsert=True, return_document=pymongo.ReturnDocument.AFTER
            )
            await failpoint.replied(points, _broken)
            return cast("Document", document)

    async def update_these(self, filter: Document, update: Sequence[Any], points: Points) -> int:
        """Make one update of the documents that the filter names by their ids; how many matched."""
        with driver_errors():
            result = await self._raw.update_many(filter, list(update), hint=BY_ID)
            await failpoint.replied(points, _broken)
            return int(result.matched_count)

    async def update_each(
        self, updates: Sequence[tuple[Document, Sequence[Any]]], points: Points
    ) -> dict[int, StoreError]:
        """Make independent updates at once; what the server refused, by position."""
        operations = [pymongo.UpdateOne(filter, list(update), hint=BY_ID) for filter, update in updates]
        return await _each(lambda: self._raw.bulk_write(operations, ordered=False), points)

    async def insert_each(self, documents: Sequence[Any], points: Points) -> dict[int, StoreError]:
        """Insert independent documents at once; what the server refused, by position."""
        return await _each(lambda: self._raw.insert_many(documents, ordered=False), points)

    async def replace_one(self, filter: Document, document: Any, points: Points) -> bool:
        """Put a whole document in the place of the one that matches, if one does."""
        with driver_errors():
            result = await self._raw.replace_one(filter, document, hint=BY_ID)
            await failpoint.replied(points, _broken)
            return bool(result.matched_count)

    async def insert_once(self, document: Any, points: Points) -> dict[int, StoreError]:
        """`insert_each` of one document, but sent only once: see `_write_once`."""
        reply = await self._write_once({"insert": self._raw.name, "documents": [document]}, points)
        return {entry["index"]: refusal(entry) for entry in reply.get("writeErrors", ())}

    async def _write_once(self, command: Document, points: Points) -> Document:
        """Send a write as a plain command.

        The drivers' own methods write again by themselves when a connection breaks; this is for callers who do so
        anyway. A task that comes alone finds the processor's caches cold, and waits half a millisecond less.
        """
        with driver_errors():
            reply = await self._run({**command, "writeConcern": _MAJORITY})
            await failpoint.replied(points, _broken)
        doubts = [entry for entry in reply.get("writeErrors", ()) if entry["code"] in AWAY]
        if (unconfirmed := reply.get("writeConcernError")) is not None:
            doubts.append(unconfirmed)
        if doubts:
            raise StoreUnavailableError(f"MongoDB: {doubts[0]['errmsg']}.")
        return reply

    async def delete_these(self, ids: Sequence[str], filter: Document, points: Points = ()) -> int:
        """Delete the documents of these ids that match; how many those were."""
        chosen = {"$and": [{"_id": {"$in": list(ids)}}, filter]}
        with driver_errors():
            result = await self._raw.delete_many(chosen, hint=BY_ID)
            await failpoint.replied(points, _broken)
            return int(result.deleted_count)

    async def indexes(self) -> Mapping[str, Any]:
        """Options of every index, by name."""
        with driver_errors():
            return await self._raw.index_information()

    async def drop_index(self, name: str) -> None:
        with driver_errors():
            await self._raw.drop_index(name)

    async def drop(self) -> None:
        """Delete the whole collection, if there is one."""
        with driver_errors():
            await self._raw.drop()

    async def create_indexes(self, definitions: Sequence[Mapping[str, Any]]) -> None:
        with driver_errors():
            await self._raw.create_indexes([pymongo.IndexModel(**definition) for definition in definitions])


@dataclass(frozen=True, slots=True)
class Connection:
    """One pool of connections to the store's database."""

    tasks: Collection
    dead_messages: Collection
    records: Collection
    _database: Any
    _client: Any
    _to_any_set: Callable[[], Connection]

    async def command(self, command: Mapping[str, Any]) -> Document:
        with driver_errors():
            return cast("Document", await self._database.command(command, codec_options=_CODEC))

    async def hello(self) -> Document:
        """What the primary says of itself; there is no answer without one."""
        return await self.command({"hello": 1})

    def collection(self, name: str) -> Collection:
        """Another collection than those of this release."""
        return Collection(self._database[name], self.command)

    async def count_clients(self, app_name: str) -> int:
        """How many connections to this server, idle ones too, were made under this name."""
        listed = {"$currentOp": {"allUsers": True, "idleConnections": True}}
        pipeline = [listed, {"$match": {"appName": app_name}}, {"$count": "clients"}]
        with driver_errors():
            reply = await self._client.admin.command({"aggregate": 1, "pipeline": pipeline, "cursor": {}})
        return sum(counted["clients"] for counted in reply["cursor"]["firstBatch"])

    @property
    def name(self) -> str:
        return cast("str", self._database.name)

    @property
    def replica_set(self) -> str | None:
        """The one that the URL names."""
        return cast("str | None", self._client.options.replica_set_name)

    @property
    def is_left_alone(self) -> bool:
        """Whether every server answered, and none belongs to the replica set that the URL names."""
        return not self._client.topology_description.server_descriptions()

    async def hello_of_any_set(self) -> Document:
        """`hello` of the servers at this address, whatever replica set they belong to, if any."""
        other = self._to_any_set()
        try:
            return await other.hello()
        finally:
            await other.close()

    async def close(self) -> None:
        # motor's close is a plain function that says good-bye to the server and waits for it.
        closing = await asyncio.to_thread(self._client.close)
        if closing is not None:
            await closing


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for TLS; with one of them there is TLS."""

    #: Of who signed the server's certificate; None: the system knows.
    ca: Path | None = None
    #: The program's own certificate, with its key.
    certificate: Path | None = None

    @property
    def options(self) -> Mapping[str, Any]:
        """By the drivers' names."""
        files = {"tlsCAFile": self.ca, "tlsCertificateKeyFile": self.certificate}
        given = {name: str(file) for name, file in files.items() if file is not None}
        return {"tls": True, **given} if given else {}


def connect(
    url: str,
    driver: MongoDriver,
    timeout: timedelta,
    pool_size: int,
    tls: TlsFiles = TlsFiles(),
    **options: Any,
) -> Connection:
    """Prepare a pool; nothing is sent before the first call. `options` override the URL's.

    Raises:
        StoreMisconfiguredError: if the URL cannot be used.
    """
    make: Any = AsyncIOMotorClient if driver == "motor" else pymongo.AsyncMongoClient
    try:
        # What is given here overrides the URL: nobody weakens the promises by an option there. A time-out for the
        # majority alone is not among them, the drivers drop it for the one of the whole operation.
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
        database = client.get_default_database(codec_options=_CODEC)
    except (PyMongoError, ValueError, OSError) as error:  # the last for files
        message = f"The address of the MongoDB store cannot be used: {redacted(str(error))}."
        raise StoreMisconfiguredError(message, hint="Correct store.url, or the files for TLS.") from error
    run = partial(database.command, codec_options=_CODEC)
    tasks, dead_messages, records = (Collection(database[name], run) for name in _COLLECTIONS)
    to_any_set = partial(connect, url, driver, timeout, pool_size=1, tls=tls, replicaSet=None)
    return Connection(tasks, dead_messages, records, database, client, to_any_set)


def driver_version(driver: MongoDriver) -> str:
    return f"motor {motor_version} on pymongo {pymongo.version}" if driver == "motor" else f"pymongo {pymongo.version}"


def time_limit(limit: timedelta) -> AbstractContextManager[None]:
    """Bound every call inside the block together, instead of each one by the client's time-out."""
    return pymongo.timeout(limit.total_seconds())


def _with_plain_integers(value: Any) -> Any:
    """The same, for the reply to a plain command: the drivers look for their own integers in what they fetch only."""
    if isinstance(value, bson.Int64):
        return int(value)
    if isinstance(value, dict):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return value
    for place, item in items:
        if isinstance(item, (dict, list, bson.Int64)):
            value[place] = _with_plain_integers(item)
    return value


async def _each(write: Callable[[], Awaitable[Any]], points: Points) -> dict[int, StoreError]:
    try:
        with driver_errors():
            try:
                await write()
            finally:  # a reply that tells of refused documents can be lost like any other
                await failpoint.replied(points, _broken)
    except PartlyRefused as partly:
        return partly.refused
    return {}


def _broken() -> PyMongoError:
    """What the drivers raise when the connection breaks before the reply, and again when they write once more."""
    return AutoReconnect("connection closed")
