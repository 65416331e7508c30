"""Batches: the moves and marks of a parent without code, from its open upload to the replay of what failed.

A batch is WAITING from its insert on. While it is open, each part of the upload is announced in the batch before it is
stored. The seal says how many items there are, and is refused if more were announced. Both are guarded writes on one
document, so no item is ever stored behind the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from taskframework.model.drivers import RETRY, SEAL
from taskframework.model.scope import Scope
from taskframework.model.status import TaskStatus
from taskframework.model.task import Batch, CancelRequest, Subtasks, Task, plain
from taskframework.model.transitions import Alone, Group, at_rest, framework_error, with_error, with_event

#: `cancel.by` of a batch whose upload nobody finished.
BY_UPLOAD = "upload"
UPLOAD_ABANDONED = "The upload was not finished in time."
#: How long the process that was asked to replay what failed has to begin with it, before any other process does.
RETRY_AFTER = timedelta(seconds=5)


def parts_of(batch: Task) -> tuple[Batch, Subtasks]:
    """What every batch has: itself, and its sub-tasks."""
    assert batch.batch is not None, "only a batch is asked for this"
    assert batch.subtasks is not None, "a batch has sub-tasks from its insert on"
    return batch.batch, batch.subtasks


def subtasks_for(items: int, chunk_size: int) -> int:
    """How many sub-tasks a number of items makes."""
    return -(-items // chunk_size)


def subtask_group(batch: Task) -> dict[str, Any]:
    """What a plan says of all sub-tasks of a batch."""
    own = {"start_limit": batch.start_limit, "retention": batch.retention}
    return {
        "task_type": batch.task_type,
        "priority": str(batch.priority),
        "max_attempts": batch.max_attempts,
        "not_before": batch.not_before.isoformat(),
        **{name: plain(value) for name, value in own.items() if value is not None},
    }


def is_open(task: Task) -> bool:
    """Whether it is a batch that still takes items."""
    return task.batch is not None and task.status is TaskStatus.WAITING and not is_sealed(task)


def is_sealed(batch: Task) -> bool:
    """Whether the upload was completed, so that it is known what the batch consists of."""
    return batch.subtasks is not None and batch.subtasks.planned is not None


@dataclass(frozen=True, slots=True)
class Announce:
    """Says in an open batch how many items are stored or about to be stored; the time limit of its upload begins anew.

    A transition, since the uploader must know whether it may still go on.
    """

    group: ClassVar[Group] = "single"
    task_id: str
    items: int
    #: How long the next announcement may take.
    timeout: timedelta

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.batch is None or not is_open(task):
            return None
        items = max(task.batch.items, self.items)
        return task.evolve(batch=replace(task.batch, items=items), seal_by=now + self.timeout)

    def won(self, task: Task) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Seal(Alone):
    """The upload is complete: the batch has this many items, and nobody has announced more.

    A count that was begun before is refused (`report_serial`), since it knows no total: it could not end the batch, and
    would only put off the next look at it.
    """

    failpoint: ClassVar[str] = "seal.after_write"
    task_id: str
    items: int

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.batch is None or task.subtasks is None or not is_open(task) or task.batch.items != self.items:
            return None
        planned, serial = subtasks_for(self.items, task.batch.chunk_size), task.subtasks.report_serial + 1
        sealed = task.evolve(
            subtasks=replace(task.subtasks, planned=planned, report_serial=serial),
            seal_by=None,
            check_at=now,  # all of them may have ended already
        )
        return with_event(sealed, "sealed", now, data={"items": self.items})


@dataclass(frozen=True, slots=True)
class AbandonUpload(Alone):
    """An open batch whose upload did not go on in time → CANCELLED."""

    failpoint: ClassVar[str] = "abandon.after_write"
    task_id: str

    def apply(self, task: Task, now: datetime) -> Task | None:
        if not SEAL.is_due(task, now) or not is_open(task):
            return None
        cancelled = task.evolve(cancel=CancelRequest(BY_UPLOAD, now, UPLOAD_ABANDONED))
        error = framework_error("upload_abandoned", UPLOAD_ABANDONED, retryable=False, attempt=task.attempts, at=now)
        ended = with_error(at_rest(cancelled, TaskStatus.CANCELLED, now), error)
        return with_event(ended, "cancelled", now, data={"by": BY_UPLOAD, "reason": UPLOAD_ABANDONED})


@dataclass(frozen=True, slots=True)
class ReopenBatch(Alone):
    """A sealed batch that has not succeeded waits again, because its sub-tasks without success are to be replayed.

    These count as live from now on, and counts that were begun before are refused.
    """

    failpoint: ClassVar[str] = "reopen_batch.after_write"
    task_id: str
    scope: Scope
    by: str

    def apply(self, task: Task, now: datetime) -> Task | None:
        subtasks = task.subtasks
        if task.batch is None or subtasks is None or not is_sealed(task) or not self.scope.covers(task.user_id):
            return None
        if not task.status.is_final and task.status is not TaskStatus.WAITING:
            return None
        if task.status is TaskStatus.COMPLETED:
            return None
        if task.cascade_at is not None:  # nobody would replay the sub-tasks that the cascade still cancels
            return None
        waiting = task.evolve(
            status=TaskStatus.WAITING,
            subtasks=subtasks.reopened(),
            batch=replace(task.batch, retry_until=now),
            retry_at=now + RETRY_AFTER,
            # A cancel may have come before all of the plan was stored.
            spawn_at=now if subtasks.is_being_stored else None,
            check_at=now + RETRY_AFTER,
            finished_at=None,
            purge_at=None,
            cancel=None,
            deadline=None,
            error=None,
            result=None,
        )
        return with_event(waiting, "reopened", now, data={"by": self.by})


@dataclass(frozen=True, slots=True)
class EndRetry:
    """All that had failed in a batch is replayed. Refused if somebody has asked for another retry since.

    The sub-tasks are counted again at once, and counts that were begun before are refused.
    """

    group: ClassVar[Group] = "single"
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

    def won(self, task: Task) -> bool:
        return False
