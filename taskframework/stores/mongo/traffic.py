"""Counts of tasks by type and lane, up to a bound."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from taskframework.model.status import lane_of
from taskframework.model.traffic import Crowd, LaneCount, Tally
from taskframework.stores.mongo.client import Collection
from taskframework.stores.mongo.documents import Document, with_utc
from taskframework.stores.mongo.expressions import in_status


async def tally(tasks: Collection, crowd: Crowd, most: int, due_before: datetime, since: datetime | None) -> Tally:
    """`TaskStore.tally`."""
    pipeline = _pipeline(crowd, most, due_before, since)
    found = await tasks.aggregate(pipeline, index="ended" if crowd.time == "finished_at" else "list_by_status")
    return Tally(tuple(map(_counted, found)), sum(entry["count"] for entry in found) >= most)


def _pipeline(crowd: Crowd, most: int, due_before: datetime, since: datetime | None) -> Sequence[Document]:
    times: Document = {} if since is None else {"$gte": since}
    if crowd.time == "finished_at":
        times["$type"] = "date"  # as in the partial index
    direction = -1 if crowd.is_newest_first else 1
    return [
        {"$match": {"status": in_status(*crowd.statuses)} | ({crowd.time: times} if times else {})},
        # The server merges the tasks of each status in this order, and reads no more tasks than the bound.
        {"$sort": {crowd.time: direction, "_id": direction}},
        {"$limit": most},
        {
            "$group": {
                "_id": {"task_type": "$task_type", "priority": "$priority"},
                "count": {"$sum": 1},
                "due": {"$sum": {"$cond": [{"$lt": ["$not_before", due_before]}, 1, 0]}},
                "first_at": {"$min": f"${crowd.time}"},
                "claimable_since": {"$min": "$not_before"},
            }
        },
    ]


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
