"""The transitions and marks of the model as guarded MongoDB writes, one function for each class.

To be read next to `taskframework.model`: the guard is the check of the pure rule `apply`, and the stages are its
changes. The conformance suite checks that both give the same documents. The writes of marks, waiting, batches and
streams are in files of these names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from taskframework.model.debounce import ReplaceParameters
from taskframework.model.drivers import DEADLINE, START
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
from taskframework.model.marks import (
    EndPutOff,
    ForgetDispatch,
    MakeDue,
    MarkDispatched,
    MarkPublished,
    PostponeRelay,
    RenewLease,
    ReserveDispatch,
    RestartQueueTimeout,
)
from taskframework.model.status import DEAD, LIVE, REPLAYABLE, TaskStatus
from taskframework.model.stream_moves import ClaimTurn, Unblock
from taskframework.model.task import SCHEMA_VERSION, record_to_document
from taskframework.model.transitions import (
    BY_DEADLINE,
    DEADLINE_REASON,
    Claim,
    Complete,
    Fail,
    RecordStep,
    Release,
    ReportProgress,
    deadline_error,
    failure_data,
    framework_error,
)
from taskframework.model.waiting import Wait
from taskframework.stores.mongo import batches, marks, waiting  # noqa: F401 - importing `batches` registers its writes
from taskframework.stores.mongo.documents import Document, encode_value
from taskframework.stores.mongo.expressions import (
    IS_RUNNING,
    LOWER_STATUS,
    NOW,
    WHEN_CANCELLED,
    Changes,
    Expression,
    choose_change,
    claimable_at,
    ended_by_cancel,
    error_of,
    first_status_of,
    has_passed,
    in_scope,
    in_status,
    is_ahead,
    later,
    literal,
    milliseconds,
    plus,
    set_fields,
    start_by,
    with_error,
    with_event,
    with_final_status,
)
from taskframework.stores.mongo.joint import JointRequests, combine_filters
from taskframework.stores.mongo.queries import driven
from taskframework.stores.mongo.streams import (
    blocked_if_serial,
    blocked_in_generation,
    skipped_in_stream,
    unblocked,
    unblocks,
)
from taskframework.stores.mongo.writes import Write, build_single_write, claimable, under_claim


def build_write(requests: Sequence[Any]) -> Write:
    """The write for one transition or mark, or for several of one class in `JOINT`, each about another task.

    Raises:
        TypeError: for a class that has no rule here.
    """
    joint = _JOINT.get(type(requests[0]))
    if joint is not None:
        return joint(JointRequests(requests))
    [request] = requests
    return build_single_write(request)


def _claims(claims: JointRequests[Claim]) -> Write:
    asked_type = {"$ifNull": [claims.each(lambda claim: claim.task_type), "$task_type"]}
    is_asked = {"$expr": {"$eq": ["$task_type", asked_type]}}
    guard = combine_filters(claimable(claims), has_passed("not_before"), is_ahead(DEADLINE.field), is_asked)
    guard |= {"cancel": None, "schema_version": {"$lte": SCHEMA_VERSION}}
    claimed = _claimed(claims)
    if any(claim.slot for claim in claims):
        limit, until = claims.each(lambda claim: claim.slot and claim.slot.limit), claims.each(_until)
        guard = combine_filters(guard, {"$expr": {"$or": [{"$eq": [until, None]}, {"$gt": [until, NOW]}]}})
        held = {"limit": limit, "claim_id": claims.each(lambda claim: claim.claim_id)}
        claimed["slot"] = {"$cond": [{"$eq": [limit, None]}, "$slot", held]}
    if any(claim.parameters_hash for claim in claims):
        read = {"$ifNull": [claims.each(lambda claim: claim.parameters_hash), "$parameters_hash"]}
        guard = combine_filters(guard, {"$expr": {"$eq": ["$parameters_hash", read]}})
    return Write(guard, [set_fields(claimed)])


def _claimed(claims: JointRequests[Claim] | JointRequests[ClaimTurn]) -> Changes:
    worker_id = claims.each(lambda claim: claim.worker_id)
    lease = {
        "worker_id": worker_id,
        "claim_id": claims.each(lambda claim: claim.claim_id),
        "expires_at": plus(NOW, claims.each(lambda claim: milliseconds(claim.lease))),
    }
    return {
        "status": TaskStatus.RUNNING,
        "fencing_token": plus("$fencing_token", 1),
        "attempts": plus("$attempts", 1),
        "lease": lease,
        "next_dispatch_at": None,
        "no_handler": 0,
        "started_at": NOW,
        **with_event("started", worker_id=worker_id, attempt=plus("$attempts", 1)),
    }


def _turn_claims(claims: JointRequests[ClaimTurn]) -> Write:
    expected = claims.where(task_type=lambda claim: claim.task_type, priority=lambda claim: claim.priority)
    guard = combine_filters(blocked_in_generation(claims), expected, has_passed("not_before"), is_ahead(DEADLINE.field))
    guard |= {"unique": None, "crashes": 0, "cancel": None, "schema_version": {"$lte": SCHEMA_VERSION}}
    began = unblocked(NOW)
    del began["revision"]  # the claim raises it
    return Write(guard, [set_fields(began), set_fields(_claimed(claims))])


def _until(claim: Claim) -> datetime | None:
    return None if claim.slot is None else claim.slot.until


@build_single_write.register
def _report_progress(report: ReportProgress) -> Write:
    progress = {
        "progress": literal(encode_value(report.progress)),
        "progress_revision": plus("$progress_revision", 1),
        "revision": plus("$revision", 1),
        "updated_at": NOW,
    }
    return Write(under_claim(JointRequests([report])), [set_fields(progress)])


@build_single_write.register
def _record_step(record: RecordStep) -> Write:
    steps = {"$ifNull": ["$steps", []]}
    entry = {"step": literal(record.step), "outcome": literal(encode_value(record.outcome))}
    is_there = {"$in": [literal(record.step), {"$ifNull": ["$steps.step", []]}]}
    recorded = {"steps": {"$concatArrays": [steps, [entry]]}, "revision": plus("$revision", 1)}
    return Write(under_claim(JointRequests([record])), [choose_change(is_there, {}, recorded)])


def _completions(completions: JointRequests[Complete]) -> Write:
    outcome = {
        "result": completions.each(lambda complete: encode_value(complete.result)),
        "error": None,
        "last_claim_id": "$lease.claim_id",
    }
    event = with_event("completed", worker_id=completions.each(lambda complete: complete.worker_id))
    guard = under_claim(completions)
    return Write(guard, [set_fields({**with_final_status(TaskStatus.COMPLETED), **outcome, **event})])


def _failures(failures: JointRequests[Fail]) -> Write:
    status = first_status_of(
        *WHEN_CANCELLED,
        (failures.each(lambda fail: not fail.retryable), TaskStatus.FAILED),
        ({"$gte": ["$attempts", "$max_attempts"]}, TaskStatus.DEAD_LETTER),
        otherwise=TaskStatus.RETRYING,
    )
    error = failures.each(lambda fail: record_to_document(fail.error))
    failed = {"status": status, "last_claim_id": "$lease.claim_id", **with_error(error)}
    worker_id = failures.each(lambda fail: fail.worker_id)
    event = with_event(LOWER_STATUS, worker_id=worker_id, data=failures.each(lambda fail: failure_data(fail.error)))
    due = plus(NOW, failures.each(lambda fail: milliseconds(fail.delay)))
    return Write(under_claim(failures), [set_fields(failed), _after_failure(due, event)])


def _after_failure(due: Expression, event: Changes) -> Document:
    """A task whose attempt failed, in the status that the previous stage has set: RETRYING at `due`, or ended."""
    is_retried = {"$eq": ["$status", TaskStatus.RETRYING]}
    return choose_change(
        is_retried, {**claimable_at("$status", due), **event}, {**with_final_status("$status"), **event}
    )


@build_single_write.register
def _release(release: Release) -> Write:
    status = first_status_of(*WHEN_CANCELLED, otherwise=TaskStatus.QUEUED)
    released = {"status": status, "last_claim_id": literal(release.fence.claim_id), "releases": plus("$releases", 1)}
    worker_id = literal(release.worker_id)
    queued = {
        **claimable_at("$status", NOW),
        "attempts": plus("$attempts", -1),
        **with_event("released", worker_id=worker_id),
    }
    is_queued = {"$eq": ["$status", TaskStatus.QUEUED]}
    ending = ended_by_cancel(worker_id)
    return Write(
        under_claim(JointRequests([release])), [set_fields(released), choose_change(is_queued, queued, ending)]
    )


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
    return Write(guard, [set_fields(reaped), _after_failure(later(reap.delay), event)])


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


_JOINT: dict[type[Any], Callable[[JointRequests[Any]], Write]] = {
    Claim: _claims,
    ClaimTurn: _turn_claims,
    Complete: _completions,
    Fail: _failures,
    EndPutOff: marks.ended_put_offs,
    ForgetDispatch: marks.forgotten_dispatches,
    MakeDue: marks.due_marks,
    MarkDispatched: marks.dispatch_marks,
    ReserveDispatch: marks.reservations,
    RenewLease: marks.renewals,
    MarkPublished: marks.published_marks,
    PostponeRelay: marks.relay_delays,
    Unblock: unblocks,
    Wait: waiting.waits,
    RestartQueueTimeout: marks.restarted_queue_timeouts,
}
#: The classes of which many requests can be one write: these requests are frequent.
JOINT = frozenset(_JOINT)
