"""The moves of an attempt, `taskframework.model.attempts`, as guarded MongoDB writes."""

from __future__ import annotations

from datetime import datetime

from taskframework.model.attempts import Claim, Complete, Fail, RecordStep, Release, ReportProgress
from taskframework.model.drivers import DEADLINE
from taskframework.model.status import TaskStatus
from taskframework.model.stream_moves import ClaimTurn
from taskframework.model.task import SCHEMA_VERSION, record_to_document
from taskframework.model.transitions import failure_data
from taskframework.stores.mongo import batches, marks, waiting  # noqa: F401 - importing `batches` registers its writes
from taskframework.stores.mongo.documents import Document, encode_value
from taskframework.stores.mongo.expressions import (
    LOWER_STATUS,
    NOW,
    WHEN_CANCELLED,
    Changes,
    Expression,
    choose_change,
    claimable_at,
    ended_by_cancel,
    first_status_of,
    has_passed,
    is_ahead,
    literal,
    milliseconds,
    plus,
    set_fields,
    with_error,
    with_event,
    with_final_status,
)
from taskframework.stores.mongo.joint import JointRequests, combine_filters
from taskframework.stores.mongo.streams import blocked_in_generation, unblocked
from taskframework.stores.mongo.writes import Write, build_single_write, claimable, under_claim


def claims(claims: JointRequests[Claim]) -> Write:
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


def turn_claims(claims: JointRequests[ClaimTurn]) -> Write:
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


def completions(completions: JointRequests[Complete]) -> Write:
    outcome = {
        "result": completions.each(lambda complete: encode_value(complete.result)),
        "error": None,
        "last_claim_id": "$lease.claim_id",
    }
    event = with_event("completed", worker_id=completions.each(lambda complete: complete.worker_id))
    guard = under_claim(completions)
    return Write(guard, [set_fields({**with_final_status(TaskStatus.COMPLETED), **outcome, **event})])


def failures(failures: JointRequests[Fail]) -> Write:
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
    return Write(under_claim(failures), [set_fields(failed), after_failure(due, event)])


def after_failure(due: Expression, event: Changes) -> Document:
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
