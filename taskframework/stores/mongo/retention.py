"""Deletion of ended tasks after their time.

A sub-task stays while its parent stays, a parent while it has sub-tasks, and a task of a stream while an earlier task
is live, because no reader of the results can have read it yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial

from taskframework.model.status import DEAD, FINAL, TaskStatus
from taskframework.model.streams import StreamKey
from taskframework.stores.mongo.client import BY_ID, Collection
from taskframework.stores.mongo.documents import Document, with_utc
from taskframework.stores.mongo.expressions import has_passed, in_status
from taskframework.stores.mongo.indexes import STREAM, SUBTASKS
from taskframework.stores.mongo.queries import BY_POSITION
from taskframework.stores.mongo.records import forget_keys
from taskframework.stores.retention import Piece, Place, Walk

_FIELDS = ("user_id", "idempotency_key", "finished_at", "purge_at", "parent.task_id", "subtasks.round", "stream")
_COMPLETED = FINAL - DEAD
#: Ended tasks whose own `purge_at` has passed; they have this time if their type says how long they stay.
_PAST_PURGE_TIME: Document = {"status": in_status(*FINAL), **has_passed("purge_at")}
#: The index for each field whose time decides.
_INDEX = {"finished_at": "ended", "purge_at": "purge"}


class Purge:
    """Deletes ended tasks and their idempotency keys."""

    def __init__(self, tasks: Collection, records: Collection) -> None:
        """Prepare; nothing is read yet."""
        self._tasks = tasks
        self._records = records
        self._walks = {statuses: Walk[str]() for statuses in (FINAL, _COMPLETED, DEAD)}

    async def __call__(self, finished: timedelta | None, dead_letters: timedelta | None, limit: int) -> int:
        """Delete at most `limit` tasks that ended longer ago than they are kept; None keeps tasks forever."""
        kept = {statuses: time for statuses, time in ((_COMPLETED, finished), (DEAD, dead_letters)) if time is not None}
        due = {
            "$or": [
                _PAST_PURGE_TIME,
                *({**_ended(statuses, time), "purge_at": None} for statuses, time in kept.items()),
            ]
        }
        removed = await self._walks[FINAL].continue_walk(partial(self._look, _PAST_PURGE_TIME, "purge_at", due), limit)
        for statuses, time in kept.items():
            look = partial(self._look, _ended(statuses, time), "finished_at", due)
            removed += await self._walks[statuses].continue_walk(look, limit - removed)
        return removed

    async def _look(self, over: Document, order: str, due: Document, place: Place[str] | None, most: int) -> Piece[str]:
        """One look at ended tasks whose events are published, in the order of the times in the field `order`."""
        over = {**over, "publish_at": None}
        oldest_first, index = {order: 1, "_id": 1}, _INDEX[order]
        found = await self._tasks.find(
            {**over, **_after(place, order)}, sort=oldest_first, limit=most, fields=_FIELDS, index=index
        )
        kept = await self._kept_by_family(found, due) | await self._kept_by_stream(found)
        kept |= {task["_id"] for task in found if order != "purge_at" and task.get("purge_at")}
        gone = [task for task in found if task["_id"] not in kept]
        await forget_keys(self._records, gone)
        removed = await self._tasks.delete_by_ids([task["_id"] for task in gone], over) if gone else 0
        end = None if len(found) < most else Place(with_utc(found[-1][order]), str(found[-1]["_id"]))
        return Piece(removed, end)

    async def _kept_by_family(self, tasks: Sequence[Document], due: Document) -> set[str]:
        """The ids of the tasks that have sub-tasks, or a parent that stays."""
        parent_of = {task["_id"]: task["parent"]["task_id"] for task in tasks if task.get("parent")}
        staying: set[str] = set()
        if parent_of:
            parents = {"_id": {"$in": sorted(set(parent_of.values()))}, "$nor": [due]}
            staying = {task["_id"] for task in await self._tasks.find(parents, fields=("_id",), index=BY_ID)}
        return {task_id for task_id, parent in parent_of.items() if parent in staying} | await self._parents(tasks)

    async def _kept_by_stream(self, tasks: Iterable[Document]) -> set[str]:
        """The ids of the tasks that have a live task before them in their stream."""
        streams: dict[StreamKey, dict[int, str]] = {}
        for task in tasks:
            if place := task.get("stream"):
                streams.setdefault(StreamKey(task["user_id"], place["key"]), {})[place["position"]] = task["_id"]
        kept: set[str] = set()
        for stream, positions in streams.items():
            earlier = {"user_id": stream.user_id, "stream.key": stream.key, "stream.position": {"$lt": max(positions)}}
            live = {**earlier, "finished_at": None}
            first = await self._tasks.find(live, sort=BY_POSITION, limit=1, fields=("stream.position",), index=STREAM)
            if first:
                front = first[0]["stream"]["position"]
                kept |= {task_id for position, task_id in positions.items() if position > front}
        return kept

    async def _parents(self, tasks: Iterable[Document]) -> set[str]:
        """The ids of the tasks that still have sub-tasks."""
        ids = [task["_id"] for task in tasks if task.get("subtasks")]
        if not ids:
            return set()
        among: Document = {"$match": {"parent.task_id": {"$in": ids}}}
        pipeline = [among, {"$group": {"_id": "$parent.task_id"}}]
        return {found["_id"] for found in await self._tasks.aggregate(pipeline, index=SUBTASKS)}


def _ended(statuses: Iterable[TaskStatus], kept: timedelta) -> Document:
    """Filter: tasks that ended longer ago than they are kept."""
    return {"status": in_status(*statuses), **has_passed("finished_at", by=kept)}


def _after(place: Place[str] | None, order: str) -> Mapping[str, object]:
    """Filter: tasks after a place."""
    if place is None:
        return {}
    later = [{order: {"$gt": place.at}}, {"_id": {"$gt": place.tie}}]
    return {order: {"$type": "date", "$gte": place.at}, "$or": later}
