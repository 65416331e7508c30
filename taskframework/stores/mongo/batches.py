"""`taskframework.model.batches` as guarded MongoDB writes."""

from __future__ import annotations

from taskframework.model.batches import (
    BY_UPLOAD,
    RETRY_AFTER,
    UPLOAD_ABANDONED,
    AbandonUpload,
    Announce,
    EndRetry,
    ReopenBatch,
    Seal,
)
from taskframework.model.status import FINAL, TaskStatus
from taskframework.model.subtasks import ALLOW_FAILURES
from taskframework.model.transitions import framework_error
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.expressions import (
    NOW,
    REOPENED,
    Expression,
    error_of,
    has_passed,
    in_scope,
    in_status,
    is_set,
    later,
    literal,
    plus,
    set_fields,
    with_error,
    with_event,
    with_final_status,
)
from taskframework.stores.mongo.writes import Write, build_single_write

_IS_BATCH: Document = {"batch": {"$type": "object"}}
_IS_OPEN: Document = {**_IS_BATCH, "status": TaskStatus.WAITING, "subtasks.planned": None}
_IS_SEALED: Document = {**_IS_BATCH, "subtasks.planned": {"$type": "number"}}
#: `Subtasks.is_being_stored`.
_IS_BEING_STORED: Expression = {"$or": [is_set("$subtasks.plan"), {"$gt": ["$subtasks.plan_records", 0]}]}


@build_single_write.register
def _announce(announce: Announce) -> Write:
    announced = {
        "batch.items": {"$max": ["$batch.items", announce.items]},
        "seal_by": later(announce.timeout),
    }
    return Write({"_id": announce.task_id, **_IS_OPEN}, [set_fields(announced)])


@build_single_write.register
def _seal(seal: Seal) -> Write:
    chunks = {"$ceil": {"$divide": [seal.items, "$batch.chunk_size"]}}
    sealed = {
        "subtasks.planned": {"$toInt": chunks},
        "subtasks.report_serial": plus("$subtasks.report_serial", 1),
        "seal_by": None,
        "check_at": NOW,
        **with_event("sealed", data=literal({"items": seal.items})),
    }
    return Write({"_id": seal.task_id, **_IS_OPEN, "batch.items": seal.items}, [set_fields(sealed)])


@build_single_write.register
def _abandon_upload(abandon: AbandonUpload) -> Write:
    data = {"by": BY_UPLOAD, "reason": UPLOAD_ABANDONED}
    error = framework_error("upload_abandoned", UPLOAD_ABANDONED, retryable=False)
    cancelled = {
        "cancel": {**data, "at": NOW},
        **with_error(error_of(error)),
        **with_final_status(TaskStatus.CANCELLED),
        **with_event("cancelled", data=literal(data)),
    }
    return Write({"_id": abandon.task_id, **_IS_OPEN, **has_passed("seal_by")}, [set_fields(cancelled)])


#: The fields of the end of a batch, which are removed when the batch is reopened.
_NONE_AFTER_REOPENING = ("finished_at", "purge_at", "cancel", "error", "result")


@build_single_write.register
def _reopen_batch(reopen: ReopenBatch) -> Write:
    may_wait = {"status": in_status(*(FINAL - {TaskStatus.COMPLETED}), TaskStatus.WAITING)}
    is_without_success = [{f"subtasks.{name}": {"$gt": 0}} for name in ("failed", "cancelled")]
    allowed_failures = {"status": TaskStatus.COMPLETED, "subtasks.policy": ALLOW_FAILURES, "$or": is_without_success}
    waiting = {
        "status": TaskStatus.WAITING,
        **REOPENED,
        **dict.fromkeys(_NONE_AFTER_REOPENING),
        "deadline": {"$cond": [{"$eq": ["$status", TaskStatus.WAITING]}, "$deadline", None]},
        "batch.retry_until": NOW,
        "retry_at": later(RETRY_AFTER),
        "spawn_at": {"$cond": [_IS_BEING_STORED, NOW, None]},
        "check_at": later(RETRY_AFTER),
        **with_event("reopened", data=literal({"by": reopen.by})),
    }
    guard = {"_id": reopen.task_id, **_IS_SEALED, "cascade_at": None, **in_scope(reopen.scope)}
    return Write({**guard, "$or": [may_wait, allowed_failures]}, [set_fields(waiting)])


@build_single_write.register
def _end_retry(end: EndRetry) -> Write:
    guard: Document = {"_id": end.task_id, **_IS_BATCH, "subtasks": {"$type": "object"}}
    guard |= {"status": TaskStatus.WAITING, "retry_at": end.retry_at}
    ended = {"batch.retry_until": None, "retry_at": None, "check_at": NOW}
    return Write(guard, [set_fields({**ended, "subtasks.report_serial": plus("$subtasks.report_serial", 1)})])
