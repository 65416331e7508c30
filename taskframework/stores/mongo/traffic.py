"""Counts of tasks by type and lane, up to a bound."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from taskframework.model.status import lane_of
from taskframework.model.traffic import CountedTasks, LaneCount, LaneCounts
from taskframework.stores.mongo.client import Collection
from taskframework.stores.mongo.documents import Document, with_utc
from taskframework.stores.mongo.expressions import in_status


async def count_lanes(
    tasks: Collection, selection: CountedTasks, most: int, due_before: datetime, since: datetime | None
) -> LaneCounts:
    """`TaskStore.count_lanes`."""
    pipeline = _pipeline(selection, most, due_before, since)
    found = await tasks.aggregate(pipeline, index="ended" if selection.time == "finished_at" else "list_by_status")
    return LaneCounts(tuple(map(_counted, found)), sum(entry["count"] for entry in found) >= most)


def _pipeline(selection: CountedTasks, most: int, due_before: datetime, since: datetime | None) -> Sequence[Document]:
    times: Document = {} if since is None else {"$gte": since}
    if selection.time == "finished_at":
        times["$type"] = "date"  # as in the partial index
    direction = -1 if selection.is_newest_first else 1
    return [
        {"$match": {"status": in_status(*selection.statuses)} | ({selection.time: times} if times else {})},
        # The server merges the tasks of each status in this order, and reads no more tasks than the bound.
        {"$sort": {selection.time: direction, "_id": direction}},
        {"$limit": most},
        {
            "$group": {
                "_id": {"task_type": "$task_type", "priority": "$priority"},
                "count": {"$sum": 1},
                "due": {"$sum": {"$cond": [{"$lt": ["$not_before", due_before]}, 1, 0]}},
                "first_at": {"$min": f"${selection.time}"},
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
