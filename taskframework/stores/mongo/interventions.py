"""What others do to a task, `taskframework.model.interventions`, as guarded MongoDB writes."""

from __future__ import annotations

from dataclasses import replace

from taskframework.model.debounce import ReplaceParameters
from taskframework.model.drivers import START
from taskframework.model.interventions import (
    BY_NEWER_VERSION,
    LEASE_EXPIRED,
    LOST_AFTER_DEADLINE,
    NO_HANDLER,
    NOT_STARTED,
    Cancel,
    Discard,
    EndUnstarted,
    Expire,
    Postpone,
    Reap,
    Replay,
    RetryNow,
    Supersede,
)
from taskframework.model.status import DEAD, LIVE, REPLAYABLE, TaskStatus
from taskframework.model.transitions import BY_DEADLINE, DEADLINE_REASON, deadline_error, failure_data, framework_error
from taskframework.stores.mongo import batches, marks, waiting  # noqa: F401 - importing `batches` registers its writes
from taskframework.stores.mongo.attempts import after_failure
from taskframework.stores.mongo.documents import Document, encode_value
from taskframework.stores.mongo.expressions import (
    IS_RUNNING,
    LOWER_STATUS,
    NOW,
    WHEN_CANCELLED,
    Changes,
    choose_change,
    claimable_at,
    error_of,
    first_status_of,
    has_passed,
    in_scope,
    in_status,
    later,
    literal,
    plus,
    set_fields,
    start_by,
    with_error,
    with_event,
    with_final_status,
)
from taskframework.stores.mongo.joint import JointRequests
from taskframework.stores.mongo.queries import driven
from taskframework.stores.mongo.streams import blocked_if_serial, skipped_in_stream
from taskframework.stores.mongo.writes import Write, build_single_write, claimable


@build_single_write.register
def _reap(reap: Reap) -> Write:
    guard: Document = {"_id": reap.task_id, "status": TaskStatus.RUNNING, "fencing_token": reap.fencing_token}
    guard |= {"lease": {"$ne": None}} if reap.grace is None else has_passed("lease.expires_at", by=reap.grace)
    crashes = plus("$crashes", 1)
    has_lost_most = {"$gte": [crashes, reap.max_crashes]}
    is_poison = {"$or": [{"$gte": ["$attempts", "$max_attempts"]}, has_lost_most]}
    status = first_status_of(*WHEN_CANCELLED, (is_poison, TaskStatus.DEAD_LETTER), otherwise=TaskStatus.RETRYING)
    error = framework_error("lease_expired", LEASE_EXPIRED, retryable=True)
    last = replace(error, message=reap.limit_message)
    is_late = {"$eq": ["$cancel.by", BY_DEADLINE]}
    crashed = {"$cond": [has_lost_most, error_of(last), error_of(error)]}
    reaped = {
        "status": status,
        "crashes": crashes,
        **with_error({"$cond": [is_late, error_of(LOST_AFTER_DEADLINE), crashed]}),
    }
    data = {name: f"$error.{name}" for name in failure_data(error)}
    event = with_event(LOWER_STATUS, worker_id="$lease.worker_id", data=data)
    return Write(guard, [set_fields(reaped), after_failure(later(reap.delay), event)])


@build_single_write.register
def _cancel(cancel: Cancel) -> Write:
    guard = {"_id": cancel.task_id, "status": in_status(*LIVE), "cancel": None, **in_scope(cancel.scope)}
    if cancel.generation is not None:
        guard["generation"] = cancel.generation
    return Write(guard, [_with_cancel_request(cancel.by, cancel.reason)])


@build_single_write.register
def _supersede(newer: Supersede) -> Write:
    guard = {"_id": newer.task_id, "status": in_status(*newer.statuses), "cancel": None}
    return Write(guard, [_with_cancel_request(BY_NEWER_VERSION, newer.reason)])


def _with_cancel_request(by: str, reason: str | None, ended: Changes | None = None) -> Document:
    """The stage that asks a running task to stop, and ends any other: cancelled, or with the changes in `ended`."""
    data = literal({"by": by, "reason": reason})
    asked = {"cancel": {"by": literal(by), "at": NOW, "reason": literal(reason)}}
    requested = {**asked, **with_event("cancel_requested", data=data)}
    cancelled = {**with_final_status(TaskStatus.CANCELLED), **with_event("cancelled", data=data)}
    return choose_change(IS_RUNNING, requested, {**asked, **(cancelled if ended is None else ended)})


@build_single_write.register
def _expire(expire: Expire) -> Write:
    guard = {"_id": expire.task_id, "status": in_status(*LIVE), "cancel": None, **has_passed("deadline")}
    error = with_error(error_of(deadline_error()))
    failed = {**error, **with_final_status(TaskStatus.FAILED), **with_event("failed")}
    return Write(guard, [skipped_in_stream(), _with_cancel_request(BY_DEADLINE, DEADLINE_REASON, failed)])


@build_single_write.register
def _end_unstarted(end: EndUnstarted) -> Write:
    guard = {"_id": end.task_id, **driven(START), **has_passed("start_by")}
    return Write(guard, [set_fields(_dead_letter("queue_timeout", NOT_STARTED))])


def _dead_letter(code: str, message: str) -> Changes:
    """The changes of a task that the framework gives up before an attempt."""
    error = framework_error(code, message, retryable=False)
    return {**with_error(error_of(error)), **with_final_status(TaskStatus.DEAD_LETTER), **with_event("dead_letter")}


@build_single_write.register
def _postpone(postpone: Postpone) -> Write:
    guard = {**claimable(JointRequests([postpone])), "cancel": None}
    counted = {"no_handler": plus("$no_handler", 1)}
    again = {"next_dispatch_at": later(postpone.delay), "revision": plus("$revision", 1), "updated_at": NOW}
    dead = _dead_letter("no_handler", NO_HANDLER)
    return Write(guard, [set_fields(counted), choose_change({"$lte": ["$no_handler", postpone.limit]}, again, dead)])


#: Fields that belong to one generation and are emptied for the next.
_NONE_AFTER_REPLAY = (
    "cancel",
    "deadline",
    "discarded",
    "error",
    "progress",
    "purge_at",
    "started_at",
    "subtasks",
    "woken_by",
)


@build_single_write.register
def _replay(replay: Replay) -> Write:
    guard: Document = {"_id": replay.task_id, "status": in_status(*REPLAYABLE), "batch": None, "cascade_at": None}
    guard |= in_scope(replay.scope)
    if replay.revision is not None:
        guard["revision"] = replay.revision
    afresh = dict.fromkeys(_NONE_AFTER_REPLAY)
    zeroed = dict.fromkeys(("attempts", "crashes", "releases", "no_handler"), 0)
    queued = {
        **claimable_at(TaskStatus.QUEUED, NOW, replay.dispatch_after),
        "generation": plus("$generation", 1),
        **afresh,
        **zeroed,
        "start_by": start_by(NOW),
        "stage": "execute",
        "signals": waiting.unused_signals(),
    }
    if (edited := replay.edited) is not None:
        queued["parameters"] = literal(encode_value(edited.parameters))
    replayed = {**queued, **with_event("replayed", data=literal(replay.event_data), attempt=0)}
    return Write(guard, [set_fields(replayed), blocked_if_serial()])


@build_single_write.register
def _retry_now(retry: RetryNow) -> Write:
    guard: Document = {"_id": retry.task_id, "status": in_status(TaskStatus.RETRYING)} | in_scope(retry.scope)
    guard |= {"dispatch_epoch": retry.dispatch_epoch, "$expr": {"$gt": ["$not_before", NOW]}}
    due = claimable_at(TaskStatus.RETRYING, NOW, retry.dispatch_after)
    return Write(guard, [set_fields({**due, **with_event("retry_requested", data=literal(retry.event_data))})])


@build_single_write.register
def _discard(discard: Discard) -> Write:
    guard = {"_id": discard.task_id, "status": in_status(*DEAD), "batch": None, "discarded": None}
    discarded = {"by": literal(discard.by), "at": NOW, "reason": literal(discard.reason)}
    told = with_event("discarded", data=literal({"by": discard.by, "reason": discard.reason}))
    return Write({**guard, **in_scope(discard.scope)}, [set_fields({"discarded": discarded, **told})])


@build_single_write.register
def _replace_parameters(replace: ReplaceParameters) -> Write:
    guard: Document = {"_id": replace.task_id, "status": in_status(TaskStatus.QUEUED), "started_at": None}
    guard |= {"debounce": {"$type": "object"}, "generation": 0}
    replaced = {
        "parameters": literal(encode_value(replace.parameters)),
        "parameters_hash": literal(replace.parameters_hash),
    }
    due = {"$min": [later(replace.wait), plus("$created_at", "$debounce.longest_ms")]}
    put_off = {**claimable_at(TaskStatus.QUEUED, due), "start_by": start_by(due)}
    is_later = choose_change({"$gt": [due, "$not_before"]}, put_off, {})
    return Write(guard, [is_later, set_fields({**replaced, **with_event("replaced")})])
