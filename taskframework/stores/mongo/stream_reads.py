"""Reads of the tasks of ordered streams in MongoDB."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection as Several
from collections.abc import Sequence

from taskframework.model.query import StreamTimes
from taskframework.model.streams import STREAMS, StreamKey, Turn, stream_key_of
from taskframework.model.task import Task
from taskframework.stores.mongo import queries
from taskframework.stores.mongo.collection import BY_ID, Collection
from taskframework.stores.mongo.documents import read_documents, task_of, with_utc
from taskframework.stores.mongo.indexes import STREAM, TURNS
from taskframework.stores.mongo.records import ids_of
from taskframework.stores.reading import turn_of


class StreamCalls(ABC):
    """The calls of `StreamReads`. The store that inherits them has the collections."""

    @property
    @abstractmethod
    def _tasks(self) -> Collection: ...

    @property
    @abstractmethod
    def _records(self) -> Collection: ...

    async def list_stream(self, stream: StreamKey, *, limit: int, after_position: int = -1) -> Sequence[Task]:
        wanted = queries.in_stream(stream, after_position)
        return read_documents(
            await self._tasks.find(wanted, sort=queries.BY_POSITION, limit=limit, index=STREAM), task_of
        )

    async def stream_times(self, stream: StreamKey, *, limit: int, after_position: int = -1) -> Sequence[StreamTimes]:
        wanted, fields = queries.in_stream(stream, after_position), ("stream.position", "created_at", "finished_at")
        found = await self._tasks.find(wanted, sort=queries.BY_POSITION, limit=limit, fields=fields, index=STREAM)
        return [
            StreamTimes(
                task["stream"]["position"],
                with_utc(task["created_at"]),
                None if task["finished_at"] is None else with_utc(task["finished_at"]),
            )
            for task in found
        ]

    async def next_blocked(self, streams: Several[StreamKey]) -> dict[StreamKey, Turn]:
        if not streams:
            return {}
        found = await self._tasks.aggregate(queries.next_blocked(streams), index=TURNS)
        return {
            StreamKey(first["user_id"], first["_id"]): turn_of(first["task_id"], first["generation"], first["position"])
            for first in found
        }

    async def count_blocked(self, stream: StreamKey) -> int:
        counted = await self._tasks.aggregate([{"$match": queries.blocked(stream)}, {"$count": "count"}], index=TURNS)
        return counted[0]["count"] if counted else 0

    async def halted_streams(self, limit: int) -> Sequence[StreamKey]:
        wanted = {"_id": ids_of(STREAMS.name), "data.is_halted": True}
        found = await self._records.find(wanted, limit=limit, fields=("_id",), index=BY_ID)
        return [stream_key_of(record["_id"]) for record in found]
