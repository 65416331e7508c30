"""The queries of the store, as data: filters, pipelines, and where a page of a list begins."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

from taskframework.model.drivers import DISPATCH, DRIVERS, Driver
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.scope import Scope
from taskframework.model.status import CLAIMABLE, LANES, Priority, TaskStatus
from taskframework.model.streams import StreamKey
from taskframework.model.transitions import Fence
from taskframework.stores.mongo.client import TASKS
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.expressions import NOW, has_passed, in_scope, in_status
from taskframework.stores.mongo.joint import combine_filters


def _count_by_status(filter: Document, statuses: Iterable[TaskStatus]) -> list[Document]:
    """How many tasks are in each status. MongoDB counts the index keys of each status by itself in half the time that a
    group by status takes.
    """
    each: list[list[Document]] = [
        [{"$match": {**filter, "status": status}}, {"$count": "count"}, {"$set": {"_id": status}}]
        for status in sorted(statuses)
    ]
    return _union(each)


def _union(pipelines: Iterable[list[Document]]) -> list[Document]:
    """One pipeline with the results of all these pipelines."""
    first, *others = pipelines
    return [*first, *({"$unionWith": {"coll": TASKS, "pipeline": other}} for other in others)]


COUNT_ALL: Sequence[Document] = _count_by_status({}, TaskStatus)
#: Most tasks by far are completed; their number is the size of the collection without all others.
COUNT_UNCOMPLETED: Sequence[Document] = _count_by_status({}, set(TaskStatus) - {TaskStatus.COMPLETED})
ANY_STATUS = in_status(*TaskStatus)


def in_scope_by_id(task_id: str, scope: Scope) -> Document:
    return {"_id": task_id, **in_scope(scope)}


def with_cancel_request(fences: Sequence[Fence]) -> Document:
    """The tasks of these fences that run and have a cancel request; the caller then compares the leases."""
    return {
        "_id": {"$in": [fence.task_id for fence in fences]},
        "cancel": {"$ne": None},
        "lease": {"$ne": None},
    }


#: The fields of a `DueTask`, except the time of the driver.
DUE_FIELDS = (
    "schema_version",
    "task_type",
    "priority",
    "status",
    "dispatch_epoch",
    "dispatches",
    "fencing_token",
    "crashes",
    "not_before",
)


def due(driver: Driver, grace: timedelta) -> Document:
    """Tasks whose time of this driver passed more than `grace` ago."""
    return combine_filters(driven(driver), has_passed(driver.field, by=grace), _not_held_back(driver))


def upcoming(driver: Driver) -> Document:
    """Tasks whose time of this driver is still to come."""
    ahead = {driver.field: {"$type": "date"}, "$expr": {"$gt": [f"${driver.field}", NOW]}}
    return combine_filters(driven(driver), ahead, _not_held_back(driver))


def put_off(task_type: str, since: datetime, until: datetime) -> Document:
    """Tasks of a type without a message whose dispatch was put off to a time from `since` to `until`."""
    time = {DISPATCH.field: {"$gte": since, "$lte": until}}
    is_put_off = {"$expr": {"$gt": [f"${DISPATCH.field}", "$not_before"]}}
    return {**driven(DISPATCH), **time, **is_put_off, "task_type": task_type, "dispatches": 0}


def driven(driver: Driver) -> Document:
    """Tasks in which the time of this driver counts, if they have such a time."""
    status = {} if driver.covers_every_status else {"status": in_status(*driver.statuses)}
    return {**status, driver.unless: None} if driver.unless else status


def _not_held_back(driver: Driver) -> Document:
    return has_passed(driver.also_passed) if driver.also_passed else {}


def with_ids(task_ids: Iterable[str]) -> Document:
    return {"_id": {"$in": list(task_ids)}}


def running_of(task_type: str, lane: Priority) -> Document:
    """Running tasks of one queue, which means of a type and lane; an unknown priority counts as normal."""
    others = [other.value for other in LANES if other is not Priority.NORMAL]
    priority = {"$nin": others} if lane is Priority.NORMAL else lane.value
    return {"status": TaskStatus.RUNNING, "task_type": task_type, "priority": priority, "not_before": {"$type": "date"}}


def waiting_for(limit: str, lane: Priority) -> Document:
    """Tasks of a lane that wait for a limit in their current epoch: `model.limits.waiting_limit`."""
    return {
        "status": in_status(*CLAIMABLE),
        "waits_for_limit.limit": {"$type": "string", "$eq": limit},
        "priority": lane.value,
        "$expr": {"$eq": ["$waits_for_limit.dispatch_epoch", "$dispatch_epoch"]},
    }


def subtasks_of(round: RoundOfSubtasks) -> Document:
    """The sub-tasks of a round."""
    return {
        "parent.task_id": round.parent_id,
        "parent.generation": round.generation,
        "parent.round": round.round,
    }


def listed_subtasks(round: RoundOfSubtasks, after_slot: int, statuses: Collection[TaskStatus] | None) -> Document:
    """The sub-tasks after a slot. Statuses are always named, because only then the index gives the slot order."""
    wanted = ANY_STATUS if statuses is None else in_status(*statuses)
    return {**subtasks_of(round), "status": wanted, "parent.slot": {"$gt": after_slot}}


def counted_subtasks(round: RoundOfSubtasks) -> Sequence[Document]:
    """How many sub-tasks of a round are in each status."""
    return _count_by_status(subtasks_of(round), TaskStatus)


#: Up to this many sub-tasks it is quicker to group them by status; with more, to count each status by itself.
MAX_GROUPED_SUBTASKS = 1_000


def few_counted_subtasks(round: RoundOfSubtasks) -> Sequence[Document]:
    """The same for the first `MAX_GROUPED_SUBTASKS` sub-tasks, in half of the server's time."""
    return [
        {"$match": subtasks_of(round)},
        {"$limit": MAX_GROUPED_SUBTASKS},
        {"$group": {"_id": "$status", "count": {"$sum": 1}}},
    ]


def in_stream(stream: StreamKey, after_position: int = -1) -> Document:
    """The tasks of a stream after a position."""
    return {"user_id": stream.user_id, "stream.key": stream.key, "stream.position": {"$gt": after_position}}


def blocked(stream: StreamKey) -> Document:
    """The tasks of a stream that wait for their turn."""
    return {"user_id": stream.user_id, "stream.key": stream.key, "status": TaskStatus.BLOCKED}


BY_POSITION = {"stream.position": 1}


def next_blocked(streams: Iterable[StreamKey]) -> list[Document]:
    """The BLOCKED task at the lowest position of each stream.

    Because it is sorted like the index and grouped by one field, it reads all streams of a user in one scan, which
    jumps from the first task of one key to the first task of the next. A search for each key costs ten times as much.
    """
    keys: dict[str, list[str]] = {}
    for stream in streams:
        keys.setdefault(stream.user_id, []).append(stream.key)
    first = {
        "user_id": {"$first": "$user_id"},
        "task_id": {"$first": "$_id"},
        "generation": {"$first": "$generation"},
        "position": {"$first": "$stream.position"},
    }
    return _union(
        [
            {"$match": {"status": TaskStatus.BLOCKED, "user_id": user_id, "stream.key": {"$in": theirs}}},
            {"$sort": {"status": 1, "user_id": 1, "stream.key": 1, **BY_POSITION}},
            {"$group": {"_id": "$stream.key", **first}},
        ]
        for user_id, theirs in keys.items()
    )


def undriven() -> Document:
    """Tasks that lack a driver that they need: `model.drivers.missing_drivers`."""
    return {"$or": [_lacks_driver(driver) for driver in DRIVERS if driver.needed_in]}


def _lacks_driver(driver: Driver) -> Document:
    lacking = {"status": in_status(*driver.needed_in), driver.field: None}
    if driver.needed_while_below is None:
        return lacking
    number, goal = driver.needed_while_below
    return {**lacking, "$expr": {"$lt": [f"${number}", f"${goal}"]}}
