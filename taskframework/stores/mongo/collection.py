"""The calls of one collection with either MongoDB driver, which raise the framework's errors."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pymongo
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import AutoReconnect, PyMongoError
from pymongo.read_concern import ReadConcern

from taskframework import failpoint
from taskframework.background import current_loop, refuse_other_loop
from taskframework.errors import StoreError, StoreUnavailableError
from taskframework.stores.mongo.codec import with_plain_integers
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.faults import (
    UNCERTAIN_CODES,
    IndexMissingError,
    PartlyRefused,
    driver_call,
    driver_errors,
    write_error,
)

#: The failpoints after the reply to a write.
Points = Iterable[str]
#: How much longer than the driver's time limit a call may take. The driver's limit begins when one of its threads takes
#: the call up; without a second limit, calls waited for a thread for minutes while MongoDB was away. The driver has a
#: second to be first, because its error contains the reason.
_DRIVER_FIRST = timedelta(seconds=1)
#: The index on `_id`. Updates name it as a hint: otherwise the planner also tries indexes on other fields of the guard.
BY_ID = "_id_"
_MAJORITY = {"w": "majority", "j": True}
#: Reads the state that a majority had at one moment. With "majority" only, a document that moves in the index may be
#: read twice.
_SNAPSHOT = ReadConcern("snapshot")
#: The most documents of one reply to a read, so that nearly every read is one call. Without this the first reply has
#: only 101. No reply is larger than 16 MB.
_MAX_PER_REPLY = 1_000


class Collection:
    """The calls that the store makes on one collection. They raise only errors of the framework."""

    def __init__(
        self, raw: AsyncCollection[Document], run: Callable[[Document], Awaitable[Document]], timeout: timedelta
    ) -> None:
        """Prepare the calls.

        Args:
            raw: the driver's collection. That of Motor has the same calls as that of PyMongo, except `aggregate`, but
                no types.
            run: runs a command on this collection's database.
            timeout: the driver's time limit for one call.
        """
        self._raw = raw
        self._run = run
        self._seconds = (timeout + _DRIVER_FIRST).total_seconds()
        self._loop = current_loop()
        #: Called when a query finds that its index does not exist.
        self.on_missing_index: Callable[[], None] = lambda: None

    def _call(self) -> AbstractAsyncContextManager[None]:
        refuse_other_loop(self._loop)  # the driver would write, and then fail to take the reply
        return driver_call(self._seconds)

    async def find_one(self, filter: Document) -> Document | None:
        async with self._call():
            return await self._raw.find_one(filter)

    async def find(
        self,
        filter: Document,
        *,
        sort: Mapping[str, int] | None = None,
        limit: int = 0,
        fields: Sequence[str] | None = None,
        index: str | None = None,
        at_one_moment: bool = False,
    ) -> list[Document]:
        """The matching documents; `limit` 0 means all. Without the name of an index the server chooses one.
        `at_one_moment`: as for `aggregate`.
        """
        raw = self._raw.with_options(read_concern=_SNAPSHOT) if at_one_moment else self._raw
        async with self._query():
            order = list(sort.items()) if sort else None
            cursor = raw.find(filter, fields, sort=order, limit=limit, hint=index, batch_size=_MAX_PER_REPLY)
            return await cursor.to_list(None)

    async def batches(
        self, filter: Document, fields: Sequence[str], index: str, size: int = _MAX_PER_REPLY
    ) -> AsyncIterator[list[Document]]:
        """All matching documents, `size` at a time."""
        cursor = self._raw.find(filter, fields, hint=index, batch_size=size)
        while True:
            async with self._query():
                found = await cursor.to_list(size)
            if not found:
                return
            yield found

    async def count_all(self) -> int:
        """How many documents there are, by the server's own counter; it stays wrong after the server was killed."""
        async with self._call():
            return await self._raw.estimated_document_count()

    async def server_run(self) -> object:
        """A value that identifies this run of the server that answers: it changes with a restart or another server."""
        async with self._call():
            return (await self._run({"hello": 1})).get("topologyVersion", {}).get("processId")

    async def aggregate(
        self, pipeline: Sequence[Document], *, index: str | None = None, at_one_moment: bool = False
    ) -> list[Document]:
        """The result of a pipeline. `at_one_moment` reads all documents in the state of a majority at one moment."""
        raw = self._raw.with_options(read_concern=_SNAPSHOT) if at_one_moment else self._raw
        options: dict[str, Any] = {"batchSize": _MAX_PER_REPLY} | ({} if index is None else {"hint": index})
        async with self._query():
            cursor: Any = raw.aggregate(list(pipeline), **options)
            if inspect.iscoroutine(cursor):  # pymongo returns a coroutine, motor the cursor itself
                cursor = await cursor
            return cast("list[Document]", await cursor.to_list(None))

    async def update_one(self, filter: Document, update: Sequence[Any], points: Points) -> Document | None:
        """The document after the update, or None if no document matched."""
        async with self._call():
            document = await self._raw.find_one_and_update(
                filter, list(update), return_document=pymongo.ReturnDocument.AFTER, hint=BY_ID
            )
            await failpoint.replied(points, _connection_closed_error)
            return document

    async def update_once(self, filter: Document, update: Sequence[Any], points: Points) -> Document | None:
        """`update_one`, but sent only once: see `_write_once`."""
        command = {"findAndModify": self._raw.name, "query": filter, "update": list(update), "new": True, "hint": BY_ID}
        reply = await self._write_once(command, points)
        return cast("Document | None", with_plain_integers(reply["value"]))

    async def upsert_one(self, filter: Document, update: Sequence[Any], points: Points) -> Document:
        """The document after the update; the update inserts the document if it does not exist.

        Raises:
            DuplicateDocumentError: if another process inserted the document at the same moment; now it exists.
        """
        async with self._call():
            document = await self._raw.find_one_and_update(
                filter, list(update), upsert=True, return_document=pymongo.ReturnDocument.AFTER
            )
            await failpoint.replied(points, _connection_closed_error)
            return cast("Document", document)

    async def update_by_ids(self, filter: Document, update: Sequence[Any], points: Points) -> int:
        """Update all documents that match a filter, which has to name them by ids; return how many matched."""
        async with self._call():
            result = await self._raw.update_many(filter, list(update), hint=BY_ID)
            await failpoint.replied(points, _connection_closed_error)
            return int(result.matched_count)

    async def update_each(
        self, updates: Sequence[tuple[Document, Sequence[Any]]], points: Points
    ) -> dict[int, StoreError]:
        """Make independent updates at once; return the errors of the updates that the server refused, by position."""
        operations = [pymongo.UpdateOne(filter, list(update), hint=BY_ID) for filter, update in updates]
        return await self._each(self._raw.bulk_write(operations, ordered=False), points)

    async def insert_each(self, documents: Sequence[Any], points: Points) -> dict[int, StoreError]:
        """Insert independent documents at once; return the errors of documents that the server refused, by position."""
        return await self._each(self._raw.insert_many(documents, ordered=False), points)

    async def replace_one(self, filter: Document, document: Any, points: Points) -> bool:
        """Replace the document that matches; return whether a document matched."""
        async with self._call():
            result = await self._raw.replace_one(filter, document, hint=BY_ID)
            await failpoint.replied(points, _connection_closed_error)
            return bool(result.matched_count)

    async def insert_once(self, document: Any, points: Points) -> dict[int, StoreError]:
        """`insert_each` of one document, but sent only once: see `_write_once`."""
        reply = await self._write_once({"insert": self._raw.name, "documents": [document]}, points)
        return {entry["index"]: write_error(entry) for entry in reply.get("writeErrors", ())}

    async def _each(self, write: Awaitable[Any], points: Points) -> dict[int, StoreError]:
        try:
            async with self._call():
                try:
                    await write
                finally:  # a reply that reports refusals can be lost too
                    await failpoint.replied(points, _connection_closed_error)
        except PartlyRefused as partly:
            return partly.refused
        return {}

    @asynccontextmanager
    async def _query(self) -> AsyncIterator[None]:
        """`driver_call` for a query that names an index."""
        try:
            async with self._call():
                yield
        except IndexMissingError:
            self.on_missing_index()
            raise

    async def _write_once(self, command: Document, points: Points) -> Document:
        """Send a write as a plain command.

        The drivers' own methods repeat the write if a connection breaks; this method is for callers that repeat it
        anyway. It saves half a millisecond for a task that is written alone.
        """
        async with self._call():
            reply = await self._run({**command, "writeConcern": _MAJORITY})
            await failpoint.replied(points, _connection_closed_error)
        doubts = [entry for entry in reply.get("writeErrors", ()) if entry["code"] in UNCERTAIN_CODES]
        if (unconfirmed := reply.get("writeConcernError")) is not None:
            doubts.append(unconfirmed)
        if doubts:
            raise StoreUnavailableError(f"MongoDB: {doubts[0]['errmsg']}.")
        return reply

    async def delete_by_ids(self, ids: Sequence[str], filter: Document, points: Points = ()) -> int:
        """Delete the documents of these ids that match; return how many were deleted."""
        chosen = {"$and": [{"_id": {"$in": list(ids)}}, filter]}
        async with self._call():
            result = await self._raw.delete_many(chosen, hint=BY_ID)
            await failpoint.replied(points, _connection_closed_error)
            return int(result.deleted_count)

    async def indexes(self) -> Mapping[str, Any]:
        """Options of every index, by name."""
        with driver_errors():
            return await self._raw.index_information()

    async def drop_index(self, name: str) -> None:
        with driver_errors():
            await self._raw.drop_index(name)

    async def drop(self) -> None:
        """Delete the whole collection, if it exists."""
        with driver_errors():
            await self._raw.drop()

    async def create_indexes(self, definitions: Sequence[Mapping[str, Any]]) -> None:
        with driver_errors():
            await self._raw.create_indexes([pymongo.IndexModel(**definition) for definition in definitions])


def _connection_closed_error() -> PyMongoError:
    """The drivers' error if the connection breaks before the reply, and again during their second write."""
    return AutoReconnect("connection closed")
