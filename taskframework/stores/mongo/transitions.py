"""Every transition and mark of the model as one guarded MongoDB write.

To be read next to `taskframework.model`: the guard is what the pure rule `apply` checks, the stages are what it
changes. The conformance suite holds both to the same documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

from taskframework.model.interventions import LEASE_EXPIRED, NO_HANDLER, Cancel, Expire, Postpone, Reap, Replay
from taskframework.model.marks import (
    MAX_DOUBLINGS,
    MakeDue,
    MarkDispatched,
    MarkPublished,
    PostponeRelay,
    ReserveDispatch,
)
from taskframework.model.status import CLAIMABLE, LIVE, REPLAYABLE, TaskStatus
from taskframework.model.task import SCHEMA_VERSION
from taskframework.model.transitions import (
    DEADLINE,
    DEADLINE_PASSED,
    Claim,
    Complete,
    Fail,
    Fence,
    RecordStep,
    Release,
    ReportProgress,
    framework_error,
    reason_of,
)
from taskframework.stores.mongo.documents import Document, stored
from taskframework.stores.mongo.expressions import (
    IS_RUNNING,
    NOW,
    WHEN_CANCELLED,
    Stage,
    at_rest,
    change,
    choose,
    claimable_at,
    first_of,
    in_status,
    later,
    lit,
    milliseconds,
    owned,
    passed,
    plus,
    with_error,
    with_event,
)

_RETRYING = {"$eq": ["$status", TaskStatus.RETRYING]}
_LOWER_STATUS = {"$toLower": "$status"}


@dataclass(frozen=True, slots=True)
class Write:
    """An update of at most one task: the filter that must match, and the pipeline."""

    guard: Document
    stages: list[Stage]


@singledispatch
def write_of(request: object) -> Write:
    """The write that makes a transition or mark.

    Raises:
        TypeError: for a class that has no rule here.
    """
    raise TypeError(f"{type(request).__name__} has no rule for MongoDB; add it to {__name__}")


def _held(fence: Fence) -> Document:
    return {
        "_id": fence.task_id,
        "status": TaskStatus.RUNNING,
        "fencing_token": fence.fencing_token,
        "lease.claim_id": fence.claim_id,
    }


def _claimable(task_id: str, dispatch_epoch: int) -> Document:
    return {"_id": task_id, "status": in_status(*CLAIMABLE), "dispatch_epoch": dispatch_epoch}


@write_of.register
def _claim(claim: Claim) -> Write:
    guard = {**_claimable(claim.task_id, claim.dispatch_epoch), **passed("not_before")}
    guard |= {"cancel": None, "schema_version": {"$lte": SCHEMA_VERSION}}
    if claim.task_type is not None:
        guard["task_type"] = claim.task_type
    lease = {"worker_id": lit(claim.worker_id), "claim_id": lit(claim.claim_id), "expires_at": later(claim.lease)}
    claimed = {
        "status": TaskStatus.RUNNING,
        "fencing_token": plus("$fencing_token", 1),
        "attempts": plus("$attempts", 1),
        "lease": lease,
        "next_dispatch_at": None,
        "no_handler": 0,
        "started_at": NOW,
    }
    event = with_event("started", worker_id=lit(claim.worker_id), attempt=plus("$attempts", 1))
    return Write(guard, [change({**claimed, **event})])


@write_of.register
def _report_progress(report: ReportProgress) -> Write:
    progress = {
        "progress": lit(stored(report.progress)),
        "progress_revision": plus("$progress_revision", 1),
        "updated_at": NOW,
    }
    return Write(_held(report.fence), [change(progress)])


@write_of.register
def _record_step(record: RecordStep) -> Write:
    steps = {"$ifNull": ["$steps", []]}
    entry = {"step": lit(record.step), "outcome": lit(stored(record.outcome))}
    is_there = {"$in": [lit(record.step), {"$ifNull": ["$steps.step", []]}]}
    return Write(
        _held(record.fence), [change({"steps": {"$cond": [is_there, steps, {"$concatArrays": [steps, [entry]]}]}})]
    )


@write_of.register
def _complete(complete: Complete) -> Write:
    outcome = {"result": lit(stored(complete.result)), "error": None, "last_claim_id": lit(complete.fence.claim_id)}
    event = with_event("completed", worker_id=lit(complete.worker_id))
    return Write(_held(complete.fence), [change({**at_rest(TaskStatus.COMPLETED), **outcome, **event})])


@write_of.register
def _fail(fail: Fail) -> Write:
    status = first_of(
        *WHEN_CANCELLED,
        (not fail.retryable, TaskStatus.FAILED),
        ({"$gte": ["$attempts", "$max_attempts"]}, TaskStatus.DEAD_LETTER),
        otherwise=TaskStatus.RETRYING,
    )
    failed = {"status": status, "last_claim_id": lit(fail.fence.claim_id), **with_error(fail.error)}
    event = with_event(_LOWER_STATUS, worker_id=lit(fail.worker_id), data=reason_of(fail.error))
    retrying = {**claimable_at("$status", later(fail.delay)), **event}
    return Write(_held(fail.fence), [change(failed), choose(_RETRYING, retrying, {**at_rest("$status"), **event})])


@write_of.register
def _release(release: Release) -> Write:
    status = first_of(*WHEN_CANCELLED, otherwise=TaskStatus.QUEUED)
    released = {"status": status, "last_claim_id": lit(release.fence.claim_id), "releases": plus("$releases", 1)}
    worker_id = lit(release.worker_id)
    ended = {**at_rest("$status"), **with_event(_LOWER_STATUS, worker_id=worker_id)}
    queued = {
        **claimable_at("$status", NOW),
        "attempts": plus("$attempts", -1),
        **with_event("released", worker_id=worker_id),
    }
    late = with_error(framework_error("deadline", DEADLINE_PASSED, retryable=False))
    ending = {"$cond": [{"$eq": ["$status", TaskStatus.FAILED]}, {**ended, **late}, ended]}
    is_queued = {"$eq": ["$status", TaskStatus.QUEUED]}
    return Write(_held(release.fence), [change(released), choose(is_queued, queued, ending)])


@write_of.register
def _reap(reap: Reap) -> Write:
    guard = {"_id": reap.task_id, "status": TaskStatus.RUNNING, "fencing_token": reap.fencing_token}
    guard |= passed("lease.expires_at", by=reap.grace)
    crashes = plus("$crashes", 1)
    is_poison = {"$or": [{"$gte": ["$attempts", "$max_attempts"]}, {"$gte": [crashes, reap.max_crashes]}]}
    status = first_of(*WHEN_CANCELLED, (is_poison, TaskStatus.DEAD_LETTER), otherwise=TaskStatus.RETRYING)
    error = framework_error("lease_expired", LEASE_EXPIRED, retryable=True)
    reaped = {"status": status, "crashes": crashes, **with_error(error)}
    event = with_event(_LOWER_STATUS, worker_id="$lease.worker_id", data=reason_of(error))
    due = {"$cond": [{"$gt": ["$crashes", 1]}, later(reap.delay), NOW]}
    retrying = {**claimable_at("$status", due), **event}
    return Write(guard, [change(reaped), choose(_RETRYING, retrying, {**at_rest("$status"), **event})])


@write_of.register
def _cancel(cancel: Cancel) -> Write:
    guard = {"_id": cancel.task_id, "status": in_status(*LIVE), "cancel": None, **owned(cancel.owner)}
    data = {"by": cancel.by, "reason": cancel.reason}
    asked = {"cancel": {"by": lit(cancel.by), "at": NOW, "reason": lit(cancel.reason)}}
    requested = {**asked, **with_event("cancel_requested", data=data)}
    cancelled = {**asked, **at_rest(TaskStatus.CANCELLED), **with_event("cancelled", data=data)}
    return Write(guard, [choose(IS_RUNNING, requested, cancelled)])


@write_of.register
def _expire(expire: Expire) -> Write:
    guard = {"_id": expire.task_id, "status": in_status(*LIVE), "cancel": None, **passed("deadline")}
    data = {"by": DEADLINE, "reason": "the deadline passed"}
    asked = {"cancel": {"by": data["by"], "at": NOW, "reason": data["reason"]}}
    requested = {**asked, **with_event("cancel_requested", data=data)}
    error = framework_error("deadline", DEADLINE_PASSED, retryable=False)
    failed = {**asked, **with_error(error), **at_rest(TaskStatus.FAILED), **with_event("failed")}
    return Write(guard, [choose(IS_RUNNING, requested, failed)])


@write_of.register
def _postpone(postpone: Postpone) -> Write:
    guard = {**_claimable(postpone.task_id, postpone.dispatch_epoch), "cancel": None}
    counted = {"no_handler": plus("$no_handler", 1)}
    again = {"next_dispatch_at": later(postpone.delay), "updated_at": NOW}
    error = framework_error("no_handler", NO_HANDLER, retryable=False)
    dead = {**with_error(error), **at_rest(TaskStatus.DEAD_LETTER), **with_event("dead_letter")}
    return Write(guard, [change(counted), choose({"$lte": ["$no_handler", postpone.limit]}, again, dead)])


@write_of.register
def _replay(replay: Replay) -> Write:
    guard = {"_id": replay.task_id, "status": in_status(*REPLAYABLE), **owned(replay.owner)}
    if replay.revision is not None:
        guard["revision"] = replay.revision
    afresh = dict.fromkeys(("cancel", "deadline", "error", "progress", "started_at", "purge_at"))
    zeroed = dict.fromkeys(("attempts", "crashes", "releases", "no_handler"), 0)
    queued = {
        **claimable_at(TaskStatus.QUEUED, NOW, replay.dispatch_after),
        "generation": plus("$generation", 1),
        **afresh,
        **zeroed,
        "report_to_parent": False,
    }
    return Write(guard, [change({**queued, **with_event("replayed", data={"by": replay.by}, attempt=0)})])


@write_of.register
def _mark_dispatched(mark: MarkDispatched) -> Write:
    doublings = {"$pow": [2, {"$min": ["$dispatches", MAX_DOUBLINGS]}]}
    wait = {"$min": [{"$multiply": [milliseconds(mark.first), doublings]}, milliseconds(mark.longest)]}
    due = {"$add": [{"$max": [NOW, "$not_before"]}, wait]}
    dispatched = {"next_dispatch_at": due, "dispatches": plus("$dispatches", 1)}
    return Write(_claimable(mark.task_id, mark.dispatch_epoch), [change(dispatched)])


@write_of.register
def _reserve_dispatch(reserve: ReserveDispatch) -> Write:
    mark = MarkDispatched(reserve.task_id, reserve.dispatch_epoch, reserve.first, reserve.longest)
    write = _mark_dispatched(mark)
    return Write({**write.guard, **passed("next_dispatch_at", "not_before")}, write.stages)


@write_of.register
def _make_due(mark: MakeDue) -> Write:
    # `$min` passes over null: also a task that nothing drives gets its due time back.
    return Write(
        _claimable(mark.task_id, mark.dispatch_epoch),
        [change({"next_dispatch_at": {"$min": ["$next_dispatch_at", later(mark.delay)]}})],
    )


@write_of.register
def _mark_published(mark: MarkPublished) -> Write:
    guard = {"_id": mark.task_id, "published_sequence": {"$lt": mark.sequence}}
    published = {
        "published_sequence": {"$min": [mark.sequence, "$sequence"]},
        "publish_at": {"$cond": [{"$gte": [mark.sequence, "$sequence"]}, None, "$publish_at"]},
    }
    return Write(guard, [change(published)])


@write_of.register
def _postpone_relay(mark: PostponeRelay) -> Write:
    return Write({"_id": mark.task_id, "publish_at": {"$ne": None}}, [change({"publish_at": later(mark.delay)})])
