"""Records in MongoDB: their data are stored as fields, so that guarded writes can compute with them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from collections.abc import Collection as Several
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from pydantic_core import from_json

from taskframework.errors import StoreError, ValueNotStorableError
from taskframework.model.idempotency import key_id
from taskframework.model.records import Record, RecordChange, RecordUnreadableError, id_range, new_revision
from taskframework.model.streams import STREAMS, PassTurn, TakePositions
from taskframework.stores.mongo.codec import encode_document
from taskframework.stores.mongo.collection import BY_ID, Collection
from taskframework.stores.mongo.documents import Document, encode_value, with_utc
from taskframework.stores.mongo.expressions import Changes, Expression, has_passed
from taskframework.stores.mongo.faults import DuplicateDocumentError
from taskframework.stores.mongo.indexes import EXPIRING
from taskframework.stores.mongo.inserts import Inserter, Reply
from taskframework.stores.mongo.joint import JointRequests
from taskframework.stores.mongo.record_changes import (
    are_turns_unchanged,
    may_take,
    passed_turns,
    steps_of,
    taken_positions,
)
from taskframework.stores.mongo.retrying import retry_within

Change = TypeVar("Change", bound=RecordChange)

RECORD_FAILPOINT = "record.reply"


class RecordCalls(ABC):
    """The calls of `Records`. The store that inherits them has the collection."""

    @property
    @abstractmethod
    def _records(self) -> Collection: ...

    @property
    @abstractmethod
    def _retry_time(self) -> timedelta: ...

    @abstractmethod
    def now(self) -> datetime: ...

    @property
    @abstractmethod
    def _record_inserter(self) -> Inserter: ...

    async def read_records(self, ids: Several[str]) -> dict[str, Record]:
        found = await self._records.find({"_id": {"$in": list(ids)}}, index=BY_ID) if ids else []
        return {document["_id"]: _record_of(document) for document in found}

    async def write_records(self, records: Sequence[Record]) -> Sequence[Record | None]:
        # One insert writes all new records; each changed record is written by itself, because it needs its own reply.
        written = [replace(record, revision=new_revision()) for record in records]
        documents = [_document_of(record) for record in written]
        new = [at for at, record in enumerate(records) if record.revision is None]
        others = [at for at, record in enumerate(records) if record.revision is not None]
        replaced = await asyncio.gather(
            *(
                self._records.replace_one(_same_revision(records[at]), documents[at], (RECORD_FAILPOINT,))
                for at in others
            ),
            return_exceptions=True,  # so that no write is still running when the caller gets an error
        )
        inserted = await self._record_inserter.insert([documents[at] for at in new])
        applied = {at for at, reply in zip(new, inserted, strict=True) if _was_inserted(reply, written[at])}
        applied |= {at for at, reply in zip(others, replaced, strict=True) if _was_replaced(reply)}
        return [record if at in applied else None for at, record in enumerate(written)]

    async def change_record(self, change: RecordChange) -> Record:
        *before, last = steps_of(change)
        pipeline = [{"$set": fields} for fields in (*before, {"revision": new_revision(), **last})]
        while True:
            try:
                document = await self._records.upsert_one({"_id": change.record_id}, pipeline, (RECORD_FAILPOINT,))
            except DuplicateDocumentError:  # another process inserted the record at this moment
                continue
            except StoreError as error:
                if type(error) is not StoreError:
                    raise
                raise RecordUnreadableError(change.record_id) from error  # the server cannot compute with its data
            return _record_of(document)

    async def take_positions(self, takes: Sequence[TakePositions]) -> Sequence[Record]:
        return await retry_within(lambda: self._take(takes), self._retry_time)

    async def _take(self, takes: Sequence[TakePositions]) -> Sequence[Record]:
        found: dict[str, Record] = {}
        if len(takes) > 1:
            await self._change_jointly(takes, may_take, taken_positions)
            found = await self.read_records([take.record_id for take in takes])
            new = [take.change(None, self.now()) for take in takes if take.record_id not in found]
            found |= {record.id: record for record in await self.write_records(new) if record is not None}
        return [await self._taken(take, found.get(take.record_id)) for take in takes]

    async def pass_turns(self, passes: Sequence[PassTurn]) -> Sequence[bool]:
        found: dict[str, Record] = {}
        if len(passes) > 1:
            if await self._change_jointly(passes, are_turns_unchanged, passed_turns) == len(passes):
                return [True] * len(passes)
            found = await self.read_records([pass_.record_id for pass_ in passes])
        # A record that was not found has to be created; and a single change needs one call only.
        records = [found.get(pass_.record_id) or await self.change_record(pass_) for pass_ in passes]
        return [pass_.was_applied(record) for pass_, record in zip(passes, records, strict=True)]

    async def _taken(self, take: TakePositions, record: Record | None) -> Record:
        """This record, if it shows the positions taken; otherwise the reply to a write for this request alone."""
        if record is None or take.first_in(STREAMS.content(record)) is None:
            return await self.change_record(take)
        return record

    async def _change_jointly(
        self,
        requests: Sequence[Change],
        guard: Callable[[JointRequests[Change]], Expression],
        changes: Callable[[JointRequests[Change]], Changes],
    ) -> int:
        """Change all of these records that exist and whose guard holds, by one write; return how many were changed."""
        ids = [request.record_id for request in requests]
        joint = JointRequests(requests, ids)
        new = {"revision": joint.each(lambda _: new_revision()), **changes(joint)}
        guarded = {**joint.id_filter, "$expr": guard(joint)}
        return await self._records.update_by_ids(guarded, [{"$set": new}], [RECORD_FAILPOINT] * len(ids))

    async def delete_records(self, records: Sequence[Record]) -> int:
        if not records:
            return 0
        # A revision belongs to one record, so no record can match by the revision of another record.
        revisions = {"revision": {"$in": [record.revision for record in records]}}
        return await self._records.delete_by_ids([record.id for record in records], revisions, (RECORD_FAILPOINT,))

    async def list_records(self, kind: str, *, limit: int, after: str = "") -> Sequence[Record]:
        found = await self._records.find({"_id": ids_of(kind, after)}, sort={"_id": 1}, limit=limit, index=BY_ID)
        return [_record_of(document) for document in found]

    async def expired_records(self, limit: int) -> Sequence[Record]:
        found = await self._records.find(has_passed("expires_at"), sort={"expires_at": 1}, limit=limit, index=EXPIRING)
        return [_record_of(document) for document in found]


def ids_of(kind: str, after: str = "") -> Document:
    """The ids of the records of a kind, as a condition."""
    first, last = id_range(kind, after)
    return {"$gt": first, "$lt": last}


async def keys_of(records: Collection, tasks: Sequence[Document]) -> Sequence[Document]:
    """The idempotency keys that stand for these tasks, as far as `forget_keys` needs them."""
    keyed = [task for task in tasks if task["idempotency_key"] is not None]
    ids = [key_id(task["user_id"], task["idempotency_key"]) for task in keyed]
    if not ids:
        return []
    those = {"_id": {"$in": ids}, "data.task_id": {"$in": [task["_id"] for task in keyed]}}
    return await records.find(those, fields=("revision", "data.task_id"), index=BY_ID)


async def forget_keys(records: Collection, keys: Sequence[Document]) -> None:
    """Delete idempotency keys, except those that were written since they were read."""
    if keys:
        unchanged = {"revision": {"$in": [key["revision"] for key in keys]}}
        await records.delete_by_ids([key["_id"] for key in keys], unchanged, (RECORD_FAILPOINT,))


def _same_revision(record: Record) -> Document:
    return {"_id": record.id, "revision": record.revision}


def _was_inserted(reply: Reply | StoreError, record: Record) -> bool:
    if isinstance(reply, StoreError):
        raise reply
    return reply is None or reply.document["revision"] == record.revision


def _was_replaced(reply: bool | BaseException) -> bool:
    if isinstance(reply, BaseException):
        raise reply
    return reply


def _document_of(record: Record) -> Any:
    fields = {"_id": record.id, "kind": record.kind, "revision": record.revision, "expires_at": record.expires_at}
    try:
        return encode_document({**fields, "data": encode_value(record.data)}, "record")
    except ValueNotStorableError:  # perhaps a number has more than 64 bits, which BSON does not support
        return encode_document({**fields, "data": record.data_as_json()}, "record")


def _record_of(document: Document) -> Record:
    data, expires_at = document["data"], document["expires_at"]
    return Record(
        document["_id"],
        document["kind"],
        from_json(data) if isinstance(data, bytes) else data,
        document["revision"],
        None if expires_at is None else with_utc(expires_at),
    )
