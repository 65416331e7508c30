"""Deletion of ended tasks after their time.

A family stays until the time of each of its tasks is over, and goes from its leaves up. A task of a stream stays while
an earlier task is live, because no reader of the results can have read it yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial

from taskframework.model.status import DEAD, FINAL, LIVE, TaskStatus
from taskframework.model.streams import StreamKey
from taskframework.stores.mongo.collection import BY_ID, Collection
from taskframework.stores.mongo.documents import Document, with_utc
from taskframework.stores.mongo.expressions import has_passed, in_status
from taskframework.stores.mongo.indexes import ENDED, PURGE, STREAM, SUBTASKS
from taskframework.stores.mongo.queries import BY_POSITION
from taskframework.stores.mongo.records import forget_keys, keys_of
from taskframework.stores.retention import FamiliesOver, Piece, Place, Walk

_FIELDS = (
    "user_id",
    "idempotency_key",
    "generation",
    "finished_at",
    "purge_at",
    "parent.task_id",
    "subtasks.round",
    "stream",
)
#: Tasks that may have sub-tasks: of their present round, or of a generation before they were replayed.
_MAY_HAVE_SUBTASKS: Document = {"$or": [{"subtasks": {"$ne": None}}, {"generation": {"$gt": 0}}]}
_COMPLETED = FINAL - DEAD
#: Ended tasks whose own `purge_at` has passed; they have this time if their type says how long they stay.
_PAST_PURGE_TIME: Document = {"status": in_status(*FINAL), **has_passed("purge_at")}
#: In families that stay, most often one of these tasks stays. They are looked for first, because that is quick.
_LIKELY_TO_STAY = LIVE | DEAD
#: The index for each field whose time decides.
_INDEX = {"finished_at": ENDED, "purge_at": PURGE}


class Purge:
    """Deletes ended tasks and their idempotency keys."""

    def __init__(self, tasks: Collection, records: Collection) -> None:
        """Prepare; nothing is read yet."""
        self._tasks = tasks
        self._records = records
        self._walks = {statuses: Walk[str]() for statuses in (FINAL, _COMPLETED, DEAD)}
        self._families = FamiliesOver()

    async def __call__(self, finished: timedelta | None, dead_letters: timedelta | None, limit: int) -> int:
        """Delete at most `limit` tasks that ended longer ago than they are kept; None keeps tasks forever."""
        self._families.start_look((finished, dead_letters))
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
        ids = [task["_id"] for task in gone]
        # Read before the tasks are deleted: afterwards a submission may store a task of the same id for the same key.
        keys = await keys_of(self._records, gone)
        removed = await self._tasks.delete_by_ids(ids, over) if gone else 0
        # A task that was replayed since it was found is still there, and keeps its key.
        left = await self._tasks.find({"_id": {"$in": ids}}, fields=["_id"]) if removed < len(ids) else []
        still_there = {task["_id"] for task in left}
        await forget_keys(self._records, [key for key in keys if key["data"]["task_id"] not in still_there])
        end = None if len(found) < most else Place(with_utc(found[-1][order]), str(found[-1]["_id"]))
        return Piece(removed, end)

    async def _kept_by_family(self, tasks: Sequence[Document], due: Document) -> set[str]:
        """The ids of the tasks that have sub-tasks, or a parent that stays."""
        parent_of = {task["_id"]: task["parent"]["task_id"] for task in tasks if task.get("parent")}
        staying = await self._staying(set(parent_of.values()), due)
        return {task_id for task_id, parent in parent_of.items() if parent in staying} | await self._parents(tasks)

    async def _staying(self, parents: set[str], due: Document) -> set[str]:
        """Those of these parents that are stored and stay: the time of some task of their family is not over."""
        if not parents:
            return set()
        ids: Document = {"_id": {"$in": sorted(parents)}}
        stored = await self._tasks.find(ids, fields=("parent.task_id", "finished_at"), index=BY_ID)
        staying = {task["_id"] for task in await self._tasks.find({**ids, "$nor": [due]}, fields=("_id",), index=BY_ID)}
        above = {task["_id"]: task["parent"]["task_id"] for task in stored if task.get("parent")}
        staying_above = await self._staying(set(above.values()), due)
        staying |= {task_id for task_id, parent in above.items() if parent in staying_above}
        others = [task for task in stored if task["_id"] not in staying]
        are_over = await asyncio.gather(*(self._is_over(task, due) for task in others))
        return staying | {task["_id"] for task, is_over in zip(others, are_over, strict=True) if not is_over}

    async def _is_over(self, parent: Document, due: Document) -> bool:
        """Return whether the time of every task below this ended one is over."""
        family = (parent["_id"], parent["finished_at"])
        if self._families.knows(*family):
            return True
        below: Document = {"parent.task_id": parent["_id"]}
        for statuses in (_LIKELY_TO_STAY, FINAL - _LIKELY_TO_STAY):
            undue = {**below, "status": in_status(*statuses), "$nor": [due]}
            if await self._tasks.find(undue, limit=1, fields=("_id",), index=SUBTASKS):
                return False
        fields = ("finished_at", "generation", "subtasks.round")
        found = await self._tasks.find({**below, **_MAY_HAVE_SUBTASKS}, fields=fields, index=SUBTASKS)
        parents = await self._parents(found)  # nearly no task that was only replayed is one
        for task in found:
            if task["_id"] in parents and not await self._is_over(task, due):
                return False
        self._families.add(*family)
        return True

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
        ids = [task["_id"] for task in tasks if task.get("subtasks") or task.get("generation")]
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
