"""Counts of tasks: by status, and by type and lane up to a bound."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from datetime import datetime
from typing import Any

from taskframework.errors import StoreUnavailableError
from taskframework.model.status import Priority, TaskStatus, lane_of
from taskframework.model.traffic import CountedTasks, LaneCount, LaneCounts
from taskframework.stores.mongo import queries
from taskframework.stores.mongo.collection import Collection
from taskframework.stores.mongo.documents import Document, with_utc
from taskframework.stores.mongo.expressions import in_status
from taskframework.stores.mongo.indexes import ENDED, LIST_BY_STATUS, WAITING


class TrafficCalls(ABC):
    """The calls that count tasks. The store that inherits them has the collection."""

    def __init__(self) -> None:
        #: By how much the server's own counter of tasks is too low, by the run of the server.
        self._corrections: dict[object, int] = {}

    @property
    @abstractmethod
    def _tasks(self) -> Collection: ...

    async def count_by_status(self) -> dict[TaskStatus, int]:
        counter, found = await asyncio.gather(self._count(), self._tasks.aggregate(queries.COUNT_UNCOMPLETED))
        counts = {entry["_id"]: entry["count"] for entry in found}
        completed = {TaskStatus.COMPLETED.value: max(0, counter - sum(counts.values()))}
        return {status: (counts | completed).get(status.value, 0) for status in TaskStatus}

    async def count_lanes(
        self,
        selection: CountedTasks,
        most: int,
        *,
        due_before: datetime,
        since: datetime | None = None,
        queue: tuple[str, Priority] | None = None,
    ) -> LaneCounts:
        members, time, index = _of_all(selection, since) if queue is None else _of_queue(selection, *queue)
        direction = -1 if selection.is_newest_first else 1
        # The server merges the tasks of each status in this order, and reads no more tasks than the bound.
        order = {time: direction} if index == WAITING else {time: direction, "_id": direction}
        pipeline: list[Document] = [{"$match": members}, {"$sort": order}, {"$limit": most}, _group(time, due_before)]
        found = await self._tasks.aggregate(pipeline, index=index)
        counted = tuple(_counted(entry) for entry in found if _is_readable(entry["_id"]))
        return LaneCounts(counted, sum(entry["count"] for entry in found) >= most)

    async def _count(self) -> int:
        """How many tasks there are, by the server's own counter.

        After a server was killed, its counter stays wrong by what it had not written. So in each run of a server the
        counter is compared once with a true count.
        """
        run = await self._tasks.server_run()
        if run not in self._corrections:
            self._corrections[run] = await self._correction()
        return await self._tasks.count_all() + self._corrections[run]

    async def _correction(self) -> int:
        """By how much the counter is too low, apart from what tasks that come and go during the count can explain."""
        before = await self._tasks.count_all()
        try:
            found = await self._tasks.aggregate(queries.COUNT_ALL, at_one_moment=True)
        except StoreUnavailableError:  # very many tasks are not counted within the time for one call
            return 0
        after = await self._tasks.count_all()
        number: int = sum(entry["count"] for entry in found)
        lowest, highest = number - max(before, after), number - min(before, after)
        return min(max(0, lowest), highest)


def _of_all(selection: CountedTasks, since: datetime | None) -> tuple[Document, str, str]:
    """The tasks of a selection, the time that orders them, and the index that has this order."""
    times: Document = {} if since is None else {"$gte": since}
    if selection.time == "finished_at":
        times["$type"] = "date"  # as in the partial index
    members = {"status": in_status(*selection.statuses)} | ({selection.time: times} if times else {})
    return members, selection.time, ENDED if selection.time == "finished_at" else LIST_BY_STATUS


def _of_queue(selection: CountedTasks, task_type: str, lane: Priority) -> tuple[Document, str, str]:
    """The same for the waiting tasks of one lane. The index has all that is counted, so no task is read."""
    members = {"task_type": task_type, "priority": lane.value, "status": in_status(*selection.statuses)}
    return members, "not_before", WAITING


def _group(time: str, due_before: datetime) -> Document:
    return {
        "$group": {
            "_id": {
                "task_type": "$task_type",
                "priority": "$priority",
                "types": [{"$type": f"${name}"} for name in ("task_type", "priority", time, "not_before")],
            },
            "count": {"$sum": 1},
            "due": {"$sum": {"$cond": [{"$lt": ["$not_before", due_before]}, 1, 0]}},
            "first_at": {"$min": f"${time}"},
            "claimable_since": {"$min": "$not_before"},
        }
    }


def _is_readable(place: Any) -> bool:
    """Whether these tasks can be read: tasks that were changed by hand are in separate groups."""
    return bool(place["types"] == ["string", "string", "date", "date"])


def _counted(entry: Document) -> LaneCount:
    place: Any = entry["_id"]
    return LaneCount(
        place["task_type"],
        lane_of(place["priority"]),
        entry["count"],
        entry["due"],
        with_utc(entry["first_at"]),
        with_utc(entry["claimable_since"]),
    )
