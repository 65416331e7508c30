"""The parts of pipeline updates: the helpers of `taskframework.model.transitions` as MongoDB expressions.

In a stage, every expression sees the document before this stage. A text that begins with `$` is a field path, and an
object with a `$` name is an operator; so every value that may come from a user must go through `literal`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from taskframework.model.scope import Scope
from taskframework.model.status import DEAD, TaskStatus
from taskframework.model.task import ERRORS_KEPT, HISTORY_LENGTH, SHAPE, record_to_document
from taskframework.model.task_fields import TaskError
from taskframework.model.transitions import BY_DEADLINE, RELAY_AFTER, deadline_error
from taskframework.model.values import Json

#: An aggregation expression: a constant, a "$path", or an operator object.
Expression = Any
#: New values of some fields of the task, by field name.
Changes = dict[str, Expression]
Stage = dict[str, Expression]

#: The server's clock; it stands still within one command.
NOW = "$$NOW"
IS_RUNNING: Expression = {"$eq": ["$status", TaskStatus.RUNNING.value]}
LOWER_STATUS: Expression = {"$toLower": "$status"}


def is_set(path: str) -> Expression:
    """The expression that says whether a field exists and is not null. Earlier releases lack newer fields."""
    return {"$gt": [path, None]}


#: `Subtasks.is_open`.
_HAS_OPEN_SUBTASKS: Expression = {
    "$and": [
        is_set("$subtasks"),
        {"$or": [{"$not": [is_set("$subtasks.planned")]}, {"$lt": ["$subtasks.done", "$subtasks.planned"]}]},
    ]
}
#: `Subtasks.reopened`.
REOPENED: dict[str, Any] = {
    "subtasks.is_awaited": True,
    "subtasks.done": "$subtasks.succeeded",
    "subtasks.failed": 0,
    "subtasks.cancelled": 0,
    "subtasks.report_serial": {"$add": ["$subtasks.report_serial", 1]},
}
#: When the sub-tasks of a task that ends or continues are cancelled: now, if some of them may be live.
CASCADE_IF_OPEN: Expression = {"$cond": [_HAS_OPEN_SUBTASKS, NOW, "$cascade_at"]}


def literal(value: Json) -> Expression:
    """The value itself, also if it looks like a path or an operator."""
    return {"$literal": value}


def plus(operand: Expression, number: Expression) -> Expression:
    return {"$add": [operand, number]}


def later(delay: timedelta, than: Expression = NOW) -> Expression:
    return plus(than, milliseconds(delay))


def milliseconds(delay: timedelta) -> int:
    return delay // timedelta(milliseconds=1)


def has_passed(*fields: str, by: timedelta = timedelta(0)) -> dict[str, Any]:
    """Filter: the times in these fields passed at least `by` ago, on the server's clock.

    The check of the type excludes null, which MongoDB sorts before every time.
    """
    reached = [{"$lte": [f"${field}", later(-by)]} for field in fields]
    return {field: {"$type": "date"} for field in fields} | {"$expr": {"$and": reached}}


def is_ahead(field: str) -> dict[str, Any]:
    """Filter: the time in this field is ahead, on the server's clock, or there is none: null is before every time."""
    return {"$expr": {"$or": [{"$lte": [f"${field}", None]}, {"$gt": [f"${field}", NOW]}]}}


def in_status(*statuses: TaskStatus) -> dict[str, Any]:
    """Filter for the status."""
    return {"$in": sorted(statuses)}


def in_scope(scope: Scope) -> dict[str, Any]:
    """Filter: the task is within the scope."""
    return {} if scope.owner is None else {"user_id": scope.owner}


def set_fields(changes: Changes) -> Stage:
    """A stage that replaces these fields; an object is replaced as a whole."""
    return {"$set": {name: _stored_form(name, value) for name, value in changes.items()}}


def _stored_form(name: str, value: Expression) -> Expression:
    if value is None and name in SHAPE.rare:
        return "$$REMOVE"
    # `$set` would merge an object into the stored object; `$mergeObjects` makes it a value.
    is_object = isinstance(value, dict) and not any(name.startswith("$") for name in value)
    return {"$mergeObjects": [value]} if is_object else value


def choose_change(condition: Expression, then: Changes, otherwise: Expression) -> Stage:
    """A stage that makes one change or the other; `otherwise` may be a choice itself."""
    return {"$replaceWith": {"$mergeObjects": ["$$ROOT", {"$cond": [condition, then, otherwise]}]}}


def first_status_of(*cases: tuple[Expression, TaskStatus], otherwise: TaskStatus) -> Expression:
    """The status of the first case that holds."""
    branches = [{"case": case, "then": status.value} for case, status in cases]
    return {"$switch": {"branches": branches, "default": otherwise.value}}


#: `model.transitions.status_after`, as the first cases of `first_status_of`.
WHEN_CANCELLED: tuple[tuple[Expression, TaskStatus], ...] = (
    ({"$eq": ["$cancel.by", BY_DEADLINE]}, TaskStatus.FAILED),
    ({"$ne": ["$cancel", None]}, TaskStatus.CANCELLED),
)


def with_event(
    event: Expression, *, worker_id: Expression = None, data: Expression = None, attempt: Expression = "$attempts"
) -> Changes:
    """`model.transitions.with_event`."""
    sequence = plus("$sequence", 1)
    entry = {"sequence": sequence, "type": event, "at": NOW, "attempt": attempt, "worker_id": worker_id}
    keep_above = {"$min": [plus("$sequence", 1 - HISTORY_LENGTH), "$published_sequence"]}
    kept = {"$filter": {"input": "$history", "as": "old", "cond": {"$gt": ["$$old.sequence", keep_above]}}}
    return {
        "sequence": sequence,
        "revision": plus("$revision", 1),
        "history": {"$concatArrays": [kept, [{**entry, "data": data}]]},
        "publish_at": later(RELAY_AFTER),
        "updated_at": NOW,
    }


def with_final_status(status: Expression) -> Changes:
    """`model.transitions.with_final_status`."""
    return {
        "status": status,
        "lease": None,
        "next_dispatch_at": None,
        "spawn_at": None,
        "check_at": None,
        "unblock_at": None,
        "waits_for": None,
        "result": None,
        "cascade_at": CASCADE_IF_OPEN,
        "finished_at": NOW,
        "purge_at": plus(NOW, _retention_of(status)),  # null if the settings decide
    }


def _retention_of(status: Expression) -> Expression:
    if isinstance(status, TaskStatus):
        return "$retention.failed" if status in DEAD else "$retention.finished"
    return {"$cond": [{"$in": [status, sorted(DEAD)]}, "$retention.failed", "$retention.finished"]}


def ended_by_cancel(worker_id: Expression) -> Expression:
    """`model.attempts.ended_by_cancel`, for the status that the previous stage has set."""
    ended = {**with_final_status("$status"), **with_event(LOWER_STATUS, worker_id=worker_id)}
    late = with_error(error_of(deadline_error()))
    return {"$cond": [{"$eq": ["$status", TaskStatus.FAILED]}, {**ended, **late}, ended]}


def claimable_at(status: Expression, due: Expression, dispatch_after: timedelta = timedelta(0)) -> Changes:
    """`model.transitions.claimable_at`."""
    return {
        "status": status,
        "lease": None,
        "dispatch_epoch": plus("$dispatch_epoch", 1),
        "dispatches": 0,
        "not_before": due,
        "next_dispatch_at": later(dispatch_after, due),
        "finished_at": None,
    }


def with_error(error: Expression) -> Changes:
    """`model.transitions.with_error`, for an error of the current attempt, now."""
    record = {"$mergeObjects": [error, {"attempt": "$attempts", "at": NOW}]}
    return {"error": record, "errors": {"$slice": [{"$concatArrays": ["$errors", [record]]}, -ERRORS_KEPT]}}


def start_by(claimable_from: Expression) -> Expression:
    """`model.options.start_by`; without a limit the field stays as it is."""
    return {"$cond": [is_set("$start_limit"), plus(claimable_from, "$start_limit.milliseconds"), "$start_by"]}


def start_by_after(time: Expression) -> Expression:
    """`start_by` of a task that a limit holds back until a time; the rule is `model.marks._start_by_after`."""
    is_moved = {"$and": [is_set("$start_by"), {"$eq": ["$start_limit.counts_limits", False]}]}
    moved = {"$max": ["$start_by", plus(time, "$start_limit.milliseconds")]}
    return {"$cond": [is_moved, moved, "$start_by"]}


def error_of(error: TaskError) -> Expression:
    """An error in its stored form."""
    return literal(record_to_document(error))
