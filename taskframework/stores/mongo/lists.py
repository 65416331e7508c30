"""The queries of lists, as data: filters, and where a page begins."""

from __future__ import annotations

from datetime import datetime

from taskframework.model.letters import TREND_HOURS
from taskframework.model.limits import limit_ids
from taskframework.model.query import Cursor, SlotCursor, TaskFilter
from taskframework.model.scope import Scope
from taskframework.model.status import CLAIMABLE, DEAD, TaskStatus
from taskframework.stores.mongo.documents import Document, with_utc
from taskframework.stores.mongo.expressions import NOW, Expression, in_scope, in_status, literal
from taskframework.stores.mongo.indexes import (
    ENDED,
    LIST_BATCHES,
    LIST_BY_OWNER,
    LIST_BY_STATUS,
    LIST_BY_STREAM,
    LIST_BY_TYPE,
    SUBTASKS,
)
from taskframework.stores.mongo.joint import combine_filters
from taskframework.stores.mongo.queries import ANY_STATUS


def listed(scope: Scope, wanted: TaskFilter, cursor: str | None) -> Document:
    """The tasks of a list from the cursor on."""
    if wanted.is_in_slot_order:
        return _list_in_slot_order(scope, wanted, cursor)
    older = after(cursor, wanted.order)
    filter: Document = {"status": ANY_STATUS if wanted.status is None else wanted.status, **in_scope(scope), **older}
    if wanted.dead:
        statuses = DEAD if wanted.status is None else DEAD & {wanted.status}
        filter |= {"status": in_status(*statuses), wanted.order: {"$type": "date", **older.get(wanted.order, {})}}
    filter["batch"] = {"$type": "object"} if wanted.batches else None
    if wanted.task_type is not None:
        filter["task_type"] = wanted.task_type
    if wanted.parent_task_id is not None:
        filter["parent.task_id"] = wanted.parent_task_id
    if wanted.stream is not None:
        filter["stream.key"] = wanted.stream
    if created := _created_bounds(wanted):
        filter["created_at"] = {**older.get("created_at", {}), **created}
    return combine_filters(filter, unindexed_conditions(wanted))


def _created_bounds(wanted: TaskFilter) -> Document:
    """Conditions for the time of the submission."""
    bounds = {"$gte": wanted.created_after, "$lt": wanted.created_before}
    return {operator: time for operator, time in bounds.items() if time is not None}


def unindexed_conditions(wanted: TaskFilter) -> Document:
    """The conditions without an index, and the conditions on the end of a task."""
    filter: Document = {"discarded": None} if wanted.dead else {}
    if wanted.has_unindexed_condition:
        filter["$expr"] = matches_unindexed_conditions(wanted)
    if wanted.dead and (ended := _finished_bounds(wanted)):
        filter["$and"] = [{"finished_at": ended}]  # in addition to the place in the list
    return filter


def _finished_bounds(wanted: TaskFilter) -> Document:
    """Conditions for the time of the end."""
    bounds = {"$lte": wanted.ended_by, "$gte": wanted.finished_after, "$lt": wanted.finished_before}
    return {operator: time for operator, time in bounds.items() if time is not None}


def counted_dead(scope: Scope, wanted: TaskFilter, most: int) -> list[Document]:
    """`TaskReads.count_dead`."""
    ended = {"status": in_status(*DEAD), "finished_at": {"$type": "date"}}
    type_of = {} if wanted.task_type is None else {"task_type": wanted.task_type}
    hours: Document = {"$dateDiff": {"startDate": "$finished_at", "endDate": NOW, "unit": "millisecond"}}
    hours = {"$floor": {"$divide": [{"$max": [hours, 0]}, 3_600_000]}}
    cause = {"fingerprint": "$error.fingerprint", "task_type": "$task_type", "hours": {"$min": [hours, TREND_HOURS]}}
    return [
        {"$match": ended},
        {"$sort": newest_first("finished_at")},
        {"$limit": most},
        {"$match": {"batch": None, **type_of, **in_scope(scope), **unindexed_conditions(wanted)}},
        {
            "$group": {
                "_id": cause,
                "count": {"$sum": 1},
                "first_at": {"$min": "$finished_at"},
                "last_at": {"$max": "$finished_at"},
                "error_type": {"$first": "$error.type"},
                "error_message": {"$first": "$error.message"},
            }
        },
    ]


def matches_unindexed_conditions(wanted: TaskFilter) -> Expression:
    """The expression that says whether a task meets all conditions without an index."""
    equal = {
        "$correlation_id": wanted.correlation_id,
        "$idempotency_key": wanted.idempotency_key,
        "$error.fingerprint": wanted.fingerprint,
    }
    conditions: list[Expression] = [
        {"$eq": [path, literal(value)]} for path, value in equal.items() if value is not None
    ]
    if wanted.error is not None:
        place = {"$indexOfBytes": [{"$toLower": "$error.message"}, {"$toLower": literal(wanted.error)}]}
        conditions.append({"$gte": [place, 0]})
    if wanted.waits_for_limit is not None:  # `model.limits.waiting_limit`
        conditions.append({"$in": ["$waits_for_limit.limit", literal(list(limit_ids(wanted.waits_for_limit)))]})
        conditions.append({"$eq": ["$waits_for_limit.dispatch_epoch", "$dispatch_epoch"]})
        conditions.append({"$in": ["$status", sorted(CLAIMABLE)]})
    if not wanted.dead and (ended := _finished_bounds(wanted)):
        # Expressions order a missing time, which is null, before every other time.
        conditions.append({"$ne": ["$finished_at", None]})
        conditions += [{than: ["$finished_at", time]} for than, time in ended.items()]
    return {"$and": conditions}


def _list_in_slot_order(scope: Scope, wanted: TaskFilter, cursor: str | None) -> Document:
    those = {"parent.task_id": wanted.parent_task_id, **in_scope(scope), **unindexed_conditions(wanted)}
    if created := _created_bounds(wanted):
        those["created_at"] = created
    if wanted.stream is not None:
        those["stream.key"] = wanted.stream
    if wanted.task_type is not None:
        those["task_type"] = wanted.task_type
    statuses = sorted(TaskStatus) if wanted.status is None else [wanted.status]
    if cursor is None:
        return {**those, "status": in_status(*statuses)}
    # One branch for each status and part, so that the server merges scans that begin at the place, and sorts nothing.
    place = SlotCursor.decode(cursor)
    before: list[Document] = [
        {
            "parent.generation": place.generation,
            "parent.round": place.round,
            "parent.slot": {"$lt": place.slot},
        },
        {"parent.generation": place.generation, "parent.round": {"$lt": place.round}},
        {"parent.generation": {"$lt": place.generation}},
    ]
    return {"$or": [{**those, "status": status, **part} for status in statuses for part in before]}


def list_index(scope: Scope, wanted: TaskFilter) -> str | None:
    """The index that has the list in its order; None if the server has to choose an index and read through it."""
    if wanted.dead:
        return ENDED
    if wanted.batches:
        return LIST_BATCHES
    if wanted.is_in_slot_order:
        return SUBTASKS
    if wanted.stream is not None:
        return LIST_BY_STREAM
    if wanted.task_type is None:
        return LIST_BY_STATUS if scope.owner is None else LIST_BY_OWNER
    return LIST_BY_TYPE if scope.owner is None and wanted.status is None else None


def list_order(wanted: TaskFilter) -> dict[str, int]:
    """The order of a list."""
    return dict(LAST_PLANNED_FIRST) if wanted.is_in_slot_order else newest_first(wanted.order)


LAST_PLANNED_FIRST = {"parent.generation": -1, "parent.round": -1, "parent.slot": -1}


def newest_first(field: str) -> dict[str, int]:
    return {field: -1, "_id": -1}


def after(cursor: str | None, field: str) -> Document:
    """The entries of a list that come after the cursor, newest first by `field`."""
    if cursor is None:
        return {}
    place = Cursor.decode(cursor)
    older = [{field: {"$lt": place.at}}, {"_id": {"$lt": place.id}}]
    return {field: {"$lte": place.at}, "$or": older}


def cursor_after(document: Document, wanted: TaskFilter) -> str | None:
    """The cursor of a list after this task; None if no other one can follow."""
    if wanted.is_in_slot_order:
        parent = document["parent"]
        return SlotCursor(parent["generation"], parent["round"], parent["slot"]).encode()
    return cursor_by_time(document, wanted.order)


def cursor_by_time(document: Document, field: str) -> str | None:
    """The cursor after this entry, in a list that is ordered by a time.

    Entries whose time somebody spoiled come last, so only entries that cannot be read follow them.
    """
    at = document.get(field)
    return Cursor(with_utc(at), document["_id"]).encode() if isinstance(at, datetime) else None
