"""What the store asks for, as data: filters, and where a page of a list begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from taskframework.model.query import Cursor, TaskFilter
from taskframework.model.status import CLAIMABLE, DEAD, LANES, LIVE, Priority, TaskStatus
from taskframework.model.transitions import Fence
from taskframework.stores.mongo.client import TASKS
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.expressions import in_status, owned, passed


def _counted(status: TaskStatus) -> list[Document]:
    return [{"$match": {"status": status}}, {"$count": "count"}, {"$set": {"_id": status}}]


_FIRST, *_OTHERS = sorted(set(TaskStatus) - {TaskStatus.COMPLETED})
#: Each status by itself: MongoDB counts the keys of one value in half the time in which it groups by the values.
#: Completed tasks are most of all, and what is left of the whole collection.
COUNT_UNCOMPLETED: tuple[Document, ...] = (
    *_counted(_FIRST),
    *({"$unionWith": {"coll": TASKS, "pipeline": _counted(status)}} for status in _OTHERS),
)
_ANY_STATUS = in_status(*TaskStatus)


def one(task_id: str, owner: str | None) -> Document:
    return {"_id": task_id, **owned(owner)}


def held(worker_id: str, fences: Sequence[Fence]) -> Document:
    """The tasks a worker still runs; a claim id belongs to one claim of one task, so the two lists cannot mix."""
    return {
        "_id": {"$in": [fence.task_id for fence in fences]},
        "status": TaskStatus.RUNNING,
        "lease.worker_id": worker_id,
        "lease.claim_id": {"$in": [fence.claim_id for fence in fences]},
    }


def asked_to_stop(fences: Sequence[Fence]) -> Document:
    """Running tasks somebody wants to end, by their ids alone."""
    return {
        "_id": {"$in": [fence.task_id for fence in fences]},
        "cancel": {"$ne": None},
        "lease": {"$ne": None},
    }


def due_for_dispatch() -> Document:
    return {"status": in_status(*CLAIMABLE), **passed("next_dispatch_at", "not_before")}


def these(task_ids: Sequence[str]) -> Document:
    return {"_id": {"$in": list(task_ids)}}


def running_of(task_type: str, lane: Priority) -> Document:
    """Running tasks that came through one queue; an unknown priority travels as normal."""
    others = [other.value for other in LANES if other is not Priority.NORMAL]
    priority = {"$nin": others} if lane is Priority.NORMAL else lane.value
    return {"status": TaskStatus.RUNNING, "task_type": task_type, "priority": priority}


def expired_leases(grace: timedelta) -> Document:
    return {"status": TaskStatus.RUNNING, **passed("lease.expires_at", by=grace)}


def past_deadline() -> Document:
    return {"status": in_status(*LIVE), "cancel": None, **passed("deadline")}


def dispatched() -> Document:
    """Claimable tasks that wait longer than their own time because a message was sent."""
    later = {"$expr": {"$gt": ["$next_dispatch_at", "$not_before"]}}
    return {"status": in_status(*CLAIMABLE), "next_dispatch_at": {"$type": "date"}, **later}


def ended(statuses: Iterable[TaskStatus], kept: timedelta) -> Document:
    """What is over for longer than it is kept, and was told to everybody."""
    return {"status": in_status(*statuses), "publish_at": None, **passed("finished_at", by=kept)}


def unpublished() -> Document:
    return passed("publish_at")


def undriven() -> Document:
    """Live tasks that no sweeper, reaper, relay or sub-task would ever move on."""
    unheard = {"publish_at": None, "$expr": {"$gt": ["$sequence", "$published_sequence"]}}
    return {
        "$or": [
            {"status": in_status(*CLAIMABLE), "next_dispatch_at": None},
            {"status": TaskStatus.RUNNING, "lease.expires_at": None},
            {"status": TaskStatus.WAITING, "subtasks": None},
            {"status": in_status(*LIVE), **unheard},
        ]
    }


def listed(wanted: TaskFilter, cursor: Cursor | None) -> Document:
    """A page of tasks in the order of their creation."""
    filter: Document = {"status": _ANY_STATUS if wanted.status is None else wanted.status, **owned(wanted.owner)}
    if wanted.task_type is not None:
        filter["task_type"] = wanted.task_type
    if wanted.parent_task_id is not None:
        filter["parent.task_id"] = wanted.parent_task_id
    return {**filter, **after(cursor, "created_at")}


def list_index(wanted: TaskFilter) -> str | None:
    """The index that has just the page in its order; None where the server has to weigh which to read through."""
    if wanted.parent_task_id is not None:
        return "list_by_parent_status"
    if wanted.task_type is None:
        return "list_by_status" if wanted.owner is None else "list_by_owner"
    return "list_by_type" if wanted.owner is None and wanted.status is None else None


def dead(owner: str | None, cursor: Cursor | None) -> Document:
    older = after(cursor, "finished_at")
    ended = {"$type": "date", **older.get("finished_at", {})}
    return {"status": in_status(*DEAD), **owned(owner), **older, "finished_at": ended}


def newest_first(field: str) -> dict[str, int]:
    return {field: -1, "_id": -1}


def after(cursor: Cursor | None, field: str) -> Document:
    """The entries of a list that come after the cursor, newest first by `field`."""
    if cursor is None:
        return {}
    older = [{field: {"$lt": cursor.at}}, {"_id": {"$lt": cursor.id}}]
    return {field: {"$lte": cursor.at}, "$or": older}
