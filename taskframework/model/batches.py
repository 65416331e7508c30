"""Batches: the moves and marks of a parent without code, from its open upload to the replay of its failed sub-tasks.

A batch is WAITING from its insert on. While it is open, each part of the upload is announced in the batch before the
part is stored. The seal says how many items the batch has, and is refused if more items were announced. Both are
guarded writes on one document, so no item is ever stored after the seal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from taskframework.model.drivers import RETRY, SEAL
from taskframework.model.scope import Scope
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import ALLOW_FAILURES
from taskframework.model.task import Task, record_to_document
from taskframework.model.task_fields import Batch, CancelRequest, Subtasks
from taskframework.model.transitions import UngroupedWrite, framework_error, with_error, with_event, with_final_status

#: `cancel.by` of a batch whose upload was not finished.
BY_UPLOAD = "upload"
UPLOAD_ABANDONED = "The upload was not finished in time."
#: How long the process that was asked to replay failed sub-tasks has to begin, before another process does so.
RETRY_AFTER = timedelta(seconds=5)


def parts_of(batch: Task) -> tuple[Batch, Subtasks]:
    """The two records that every batch has: the record of the batch, and the record of its sub-tasks."""
    assert batch.batch is not None, "this is called only for a batch"
    assert batch.subtasks is not None, "a batch has sub-tasks from its insert on"
    return batch.batch, batch.subtasks


def not_before_of(batch: Task) -> datetime:
    """The earliest start of the sub-tasks. `not_before` of the batch moves with each attempt of `on_batch_finished`."""
    own = parts_of(batch)[0]
    if own.not_before is None:  # the batch was stored by an older release
        return batch.not_before if batch.stage == "execute" else batch.created_at
    return own.not_before


def subtasks_for(items: int, chunk_size: int) -> int:
    """How many sub-tasks this number of items needs."""
    return -(-items // chunk_size)


def subtask_group(batch: Task) -> dict[str, Any]:
    """The options of all sub-tasks of a batch, in the form of a group of a plan."""
    own = {"start_limit": batch.start_limit, "retention": batch.retention}
    return {
        "task_type": batch.task_type,
        "priority": str(batch.priority),
        "max_attempts": batch.max_attempts,
        "not_before": batch.not_before.isoformat(),
        **{name: record_to_document(value) for name, value in own.items() if value is not None},
    }


def is_open(task: Task) -> bool:
    """Return whether a task is a batch that still accepts items."""
    return task.batch is not None and task.status is TaskStatus.WAITING and not is_sealed(task)


def is_sealed(batch: Task) -> bool:
    """Return whether the upload was completed, so that the number of items is known."""
    return batch.subtasks is not None and batch.subtasks.planned is not None


@dataclass(frozen=True, slots=True)
class Announce(UngroupedWrite):
    """Record in an open batch how many items are stored or about to be stored. The time limit of the upload restarts.

    This is a transition, because the uploader must know whether it may still continue.
    """

    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    items: int
    #: The longest time until the next announcement.
    timeout: timedelta

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.batch is None or not is_open(task):
            return None
        items = max(task.batch.items, self.items)
        return task.evolve(batch=replace(task.batch, items=items), seal_by=now + self.timeout)


@dataclass(frozen=True, slots=True)
class Seal(UngroupedWrite):
    """The upload is complete: the batch has this many items, and no more were announced.

    A count that began before the seal is refused (`report_serial`): it does not know the total, so it could not end the
    batch and would only delay the next check.
    """

    failpoint: ClassVar[str] = "seal.after_write"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    items: int

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.batch is None or task.subtasks is None or not is_open(task) or task.batch.items != self.items:
            return None
        planned, serial = subtasks_for(self.items, task.batch.chunk_size), task.subtasks.report_serial + 1
        sealed = task.evolve(
            subtasks=replace(task.subtasks, planned=planned, report_serial=serial),
            seal_by=None,
            check_at=now,  # all sub-tasks may have ended already
        )
        return with_event(sealed, "sealed", now, data={"items": self.items})


@dataclass(frozen=True, slots=True)
class AbandonUpload(UngroupedWrite):
    """An open batch whose upload did not continue in time → CANCELLED."""

    failpoint: ClassVar[str] = "abandon.after_write"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str

    def apply(self, task: Task, now: datetime) -> Task | None:
        if not SEAL.is_due(task, now) or not is_open(task):
            return None
        cancelled = task.evolve(cancel=CancelRequest(BY_UPLOAD, now, UPLOAD_ABANDONED))
        error = framework_error("upload_abandoned", UPLOAD_ABANDONED, retryable=False, attempt=task.attempts, at=now)
        ended = with_error(with_final_status(cancelled, TaskStatus.CANCELLED, now), error)
        return with_event(ended, "cancelled", now, data={"by": BY_UPLOAD, "reason": UPLOAD_ABANDONED})


@dataclass(frozen=True, slots=True)
class ReopenBatch(UngroupedWrite):
    """Let a sealed batch wait again, because its sub-tasks without success are to be replayed.

    A batch that is COMPLETED has nothing to replay, unless its policy allowed failures and its type gave it a result
    in spite of them. These sub-tasks count as live from now on, and counts that began before are refused.
    """

    failpoint: ClassVar[str] = "reopen_batch.after_write"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    scope: Scope
    by: str

    def apply(self, task: Task, now: datetime) -> Task | None:
        subtasks = task.subtasks
        if task.batch is None or subtasks is None or not is_sealed(task) or not self.scope.covers(task.user_id):
            return None
        if not task.status.is_final and task.status is not TaskStatus.WAITING:
            return None
        if task.status is TaskStatus.COMPLETED and not allowed_failures(subtasks):
            return None
        if task.cascade_at is not None:  # no process would replay the sub-tasks that the cascade still cancels
            return None
        waiting = task.evolve(
            status=TaskStatus.WAITING,
            subtasks=subtasks.reopened(),
            batch=replace(task.batch, retry_until=now),
            retry_at=now + RETRY_AFTER,
            # A cancel may have come before all sub-tasks of the plan were stored.
            spawn_at=now if subtasks.is_being_stored else None,
            check_at=now + RETRY_AFTER,
            finished_at=None,
            purge_at=None,
            cancel=None,
            deadline=None if task.status.is_final else task.deadline,
            error=None,
            result=None,
        )
        return with_event(waiting, "reopened", now, data={"by": self.by})


def purpose_of_retry(batch: Task) -> str:
    """What the retry of a batch is for: it has a failed task, or only its own method did not succeed."""
    subtasks = parts_of(batch)[1]
    has_all = subtasks.succeeded == subtasks.planned
    if has_all and subtasks.resumes and batch.status is not TaskStatus.COMPLETED:
        return "call on_batch_finished again"
    return "retry its failed tasks"


def allowed_failures(subtasks: Subtasks) -> bool:
    """Return whether the policy was met although some sub-tasks ended without success."""
    return subtasks.policy == ALLOW_FAILURES and subtasks.failed + subtasks.cancelled > 0


@dataclass(frozen=True, slots=True)
class EndRetry(UngroupedWrite):
    """All failed sub-tasks of a batch are replayed. Refused if an operator has requested another retry since then.

    The sub-tasks are counted again at once, and counts that began before are refused.
    """

    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    retry_at: datetime

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.batch is None or task.subtasks is None or RETRY.time_of(task) != self.retry_at:
            return None
        return task.evolve(
            batch=replace(task.batch, retry_until=None),
            subtasks=replace(task.subtasks, report_serial=task.subtasks.report_serial + 1),
            retry_at=None,
            check_at=now,
        )
