"""Reads of dead letters in MongoDB: dead tasks by cause, and single kept messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from taskframework.model.letters import DeadCount
from taskframework.model.query import DeadMessage, MessageOutline, TaskFilter
from taskframework.model.scope import Scope
from taskframework.stores.mongo import lists
from taskframework.stores.mongo.collection import Collection
from taskframework.stores.mongo.documents import Document, dead_message_of, with_utc
from taskframework.stores.mongo.indexes import DEAD_MESSAGES, ENDED

_OUTLINE = ("reason", "task_type", "at")


class DeadLetterCalls(ABC):
    """The calls of the port for dead letters, without the lists. The store that inherits them has the collections."""

    @property
    @abstractmethod
    def _tasks(self) -> Collection: ...

    @property
    @abstractmethod
    def _dead_messages(self) -> Collection: ...

    async def count_dead(self, scope: Scope, filter: TaskFilter, *, most: int) -> Sequence[DeadCount]:
        counted = await self._tasks.aggregate(lists.counted_dead(scope, filter, most), index=ENDED)
        return [_count_of(group) for group in counted if isinstance(group["_id"]["task_type"], str)]

    async def outline_dead_messages(self, *, limit: int) -> Sequence[MessageOutline]:
        order = lists.newest_first("at")
        found = await self._dead_messages.find({}, sort=order, limit=limit, fields=_OUTLINE, index=DEAD_MESSAGES)
        return [MessageOutline(each["_id"], each["reason"], each["task_type"], with_utc(each["at"])) for each in found]

    async def get_dead_message(self, message_id: str) -> DeadMessage | None:
        document = await self._dead_messages.find_one({"_id": message_id})
        return None if document is None else dead_message_of(document)

    async def delete_dead_message(self, message_id: str) -> bool:
        return await self._dead_messages.delete_by_ids([message_id], {}) == 1


def _count_of(group: Document) -> DeadCount:
    cause = group["_id"]
    return DeadCount(
        cause.get("fingerprint"),
        cause["task_type"],
        int(cause["hours"]),
        group["count"],
        with_utc(group["first_at"]),
        with_utc(group["last_at"]),
        group["error_type"],
        group["error_message"],
    )
