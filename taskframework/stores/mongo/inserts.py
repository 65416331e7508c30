"""Inserts of one or many documents. For each document the caller learns that it is new, or which document existed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from taskframework.errors import StoreError, StoreUnavailableError, TaskUnreadableError, ValueNotStorableError
from taskframework.grouping import Grouping
from taskframework.model.task import Task
from taskframework.stores.mongo.codec import encode_document
from taskframework.stores.mongo.collection import BY_ID, Collection
from taskframework.stores.mongo.documents import Document, document_of, task_of
from taskframework.stores.mongo.faults import DuplicateDocumentError
from taskframework.stores.mongo.retrying import retry_within
from taskframework.stores.replies import Inserted

_GROUP_SIZE = 500

#: For refused documents with new ids: finds the stored documents with equal keys in another unique index, by position.
DuplicateFinder = Callable[[Sequence[Any]], Awaitable[dict[int, Document]]]


@dataclass(frozen=True, slots=True)
class ExistingDocument:
    """The stored document because of which another one was not inserted."""

    document: Document
    #: Whether an earlier attempt of this insert had no reply, so that the document may come from this insert.
    may_be_from_this_insert: bool


#: None: the document is new.
Reply = ExistingDocument | None


async def _find_nothing(_: Sequence[Any]) -> dict[int, Document]:
    return {}


class Inserter:
    """Inserts encoded documents into one collection."""

    def __init__(
        self,
        collection: Collection,
        point: str,
        retry_time: timedelta,
        *,
        find_duplicates: DuplicateFinder = _find_nothing,
        **limits: Any,
    ) -> None:
        """Prepare without writing.

        Args:
            collection: the collection of the documents.
            point: the failpoint after the reply.
            retry_time: how long a group is repeated while MongoDB is away.
            find_duplicates: called if another unique index than the index of ids refused a document.
            limits: the time limits of `Grouping`.
        """
        self._collection = collection
        self._points = (point,)
        self._retry_time = retry_time
        self._find_duplicates = find_duplicates
        self._group = Grouping(self._insert_group, limit=_GROUP_SIZE, **limits)

    async def drain(self) -> None:
        """Wait until all requested inserts are written."""
        await self._group.drain()

    async def insert(self, documents: Sequence[Any]) -> Sequence[Reply | StoreError]:
        """Insert independent documents, each with a reply of its own."""
        if 0 < len(documents) <= _GROUP_SIZE:  # not with `gather`: its asyncio task costs half as much as an insert
            return await self._insert_some(documents)
        groups = [documents[at : at + _GROUP_SIZE] for at in range(0, len(documents), _GROUP_SIZE)]
        replies = await asyncio.gather(*map(self._insert_some, groups))
        return [reply for group in replies for reply in group]

    async def _insert_some(self, documents: Sequence[Any]) -> Sequence[Reply | StoreError]:
        try:
            if len(documents) == 1:
                return [await self._group(documents[0])]  # together with the documents of other callers
            return await self._insert_group(documents)
        except StoreError as error:
            return [error] * len(documents)

    async def _insert_group(self, documents: Sequence[Any]) -> Sequence[Reply | StoreError]:
        may_be_applied = False

        async def insert_together() -> Sequence[Reply | StoreError]:
            nonlocal may_be_applied
            try:
                return await self._replies(documents, await self._write_group(documents), may_be_applied)
            except StoreUnavailableError:
                may_be_applied = True
                raise

        return await retry_within(insert_together, self._retry_time)

    async def _write_group(self, documents: Sequence[Any]) -> dict[int, StoreError]:
        if len(documents) == 1:
            return await self._collection.insert_once(documents[0], self._points)
        return await self._collection.insert_each(documents, self._points)

    async def _replies(
        self, documents: Sequence[Any], refused: dict[int, StoreError], may_be_applied: bool
    ) -> Sequence[Reply | StoreError]:
        replies: list[Reply | StoreError] = [refused.get(at) for at in range(len(documents))]
        duplicates = [at for at, error in refused.items() if isinstance(error, DuplicateDocumentError)]
        twins = await self._twins([documents[at] for at in duplicates])
        for at, twin in zip(duplicates, twins, strict=True):
            replies[at] = ExistingDocument(twin, may_be_applied and twin["_id"] == documents[at]["_id"])
        return replies

    async def _twins(self, documents: Sequence[Any]) -> Sequence[Document]:
        """For each of these documents its twin: the stored document because of which it was refused."""
        if not documents:
            return []
        found = await self._collection.find({"_id": {"$in": [document["_id"] for document in documents]}}, index=BY_ID)
        by_id = {document["_id"]: document for document in found}
        twins = {at: by_id[document["_id"]] for at, document in enumerate(documents) if document["_id"] in by_id}
        if missing := [at for at in range(len(documents)) if at not in twins]:
            others = await self._find_duplicates([documents[at] for at in missing])
            twins |= {missing[place]: other for place, other in others.items()}
        if unknown := [document["_id"] for at, document in enumerate(documents) if at not in twins]:
            raise StoreUnavailableError(f"MongoDB: no majority has the document yet that exists as {unknown[0]}.")
        return [twins[at] for at in range(len(documents))]


async def insert_tasks(inserter: Inserter, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
    """`TaskWrites.insert`."""
    documents = [_encoded(task) for task in tasks]
    replies = iter(await inserter.insert([document for document in documents if not isinstance(document, Exception)]))
    return [
        document if isinstance(document, Exception) else _inserted(task, next(replies))
        for task, document in zip(tasks, documents, strict=True)
    ]


def _encoded(task: Task) -> Any:
    try:
        return encode_document(document_of(task), "task")
    except ValueNotStorableError as error:
        return error


def _inserted(task: Task, reply: Reply | StoreError) -> Inserted | Exception:
    if reply is None:
        return Inserted(task, is_new=True)
    if isinstance(reply, StoreError):
        return reply
    try:
        existing = task_of(reply.document)
    except TaskUnreadableError as error:  # a newer release wrote the twin; only this caller gets the error
        return error
    # A twin from this insert has the same time of creation. Another process makes a task with this id at another time.
    return Inserted(existing, is_new=reply.may_be_from_this_insert and existing.created_at == task.created_at)
