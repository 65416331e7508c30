"""What the store asks for, as data: filters, and where a page of a list begins."""

from __future__ import annotations

from datetime import timedelta

from taskframework.model.query import Cursor, TaskFilter
from taskframework.model.status import CLAIMABLE, DEAD, LANES, LIVE, Priority, TaskStatus
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.expressions import in_status, owned, passed

_ANY_STATUS = in_status(*TaskStatus)


def due_for_dispatch() -> Document:
    return {"status": in_status(*CLAIMABLE), **passed("next_dispatch_at", "not_before")}


def waiting_in(task_type: str, lane: Priority) -> Document:
    """Tasks of one queue that a worker could claim now; an unknown priority travels as normal."""
    others = [other.value for other in LANES if other is not Priority.NORMAL]
    priority = {"$nin": others} if lane is Priority.NORMAL else lane.value
    return {
        "status": in_status(*CLAIMABLE),
        "task_type": task_type,
        "priority": priority,
        **passed("not_before"),
    }


def expired_leases(grace: timedelta) -> Document:
    return {"status": TaskStatus.RUNNING, **passed("lease.expires_at", by=grace)}


def past_deadline() -> Document:
    return {"status": in_status(*LIVE), "cancel": None, **passed("deadline")}


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


def dead(owner: str | None, cursor: Cursor | None) -> Document:
    return {"status": in_status(*DEAD), **owned(owner), **after(cursor, "finished_at")}


def newest_first(field: str) -> dict[str, int]:
    return {field: -1, "_id": -1}


def after(cursor: Cursor | None, field: str) -> Document:
    """The entries of a list that come after the cursor, newest first by `field`."""
    if cursor is None:
        return {}
    older = [{field: {"$lt": cursor.at}}, {"_id": {"$lt": cursor.id}}]
    return {field: {"$lte": cursor.at}, "$or": older}
