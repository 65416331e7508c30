"""The moves of an attempt: its claim, its progress and steps, and its end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import ClassVar

from taskframework.model.drivers import DEADLINE
from taskframework.model.status import CLAIMABLE, TaskStatus
from taskframework.model.task import SCHEMA_VERSION, Task
from taskframework.model.task_fields import HeldSlot, Lease, StepOutcome, TaskError
from taskframework.model.transitions import (
    Fence,
    Group,
    after_failure,
    claimable_at,
    deadline_error,
    status_after,
    with_error,
    with_event,
    with_final_status,
)
from taskframework.model.values import Json


@dataclass(frozen=True, slots=True)
class TakenSlot:
    """A slot of a concurrency limit that was taken for a claim."""

    #: The id of the limit's record.
    limit: str
    #: The claim is refused after this time, because then another claim may hold the slot.
    until: datetime


@dataclass(frozen=True, slots=True)
class Claim:
    """QUEUED or RETRYING → RUNNING, under a lease, for the message of the current dispatch epoch.

    Past its deadline a task is not claimed, however late the reaper is that ends it.
    """

    group: ClassVar[Group] = "claim"
    failpoint: ClassVar[str] = "claim.after_write"
    reply_failpoint: ClassVar[str] = "claim.reply"
    task_id: str
    dispatch_epoch: int
    claim_id: str
    worker_id: str
    lease: timedelta
    #: The task type that the message names; a task of another type is not claimed. None: the type is not checked.
    task_type: str | None = None
    #: The slot that the attempt has, if its type has a concurrency limit.
    slot: TakenSlot | None = None
    #: The hash of the parameters by whose key a limit let a debounced task through. A submission may replace them
    #: before the claim, and the new ones may belong to another key. None: it is not checked.
    parameters_hash: str | None = None

    def apply(self, task: Task, now: datetime) -> Task | None:
        if (
            task.status not in CLAIMABLE
            or self.task_type not in (None, task.task_type)
            or task.dispatch_epoch != self.dispatch_epoch
            or task.cancel is not None
            or task.not_before > now
            or DEADLINE.is_due(task, now)
            or task.schema_version > SCHEMA_VERSION
            or (self.slot is not None and self.slot.until <= now)
            or self.parameters_hash not in (None, task.parameters_hash)
        ):
            return None
        claimed = task.evolve(
            status=TaskStatus.RUNNING,
            fencing_token=task.fencing_token + 1,
            attempts=task.attempts + 1,
            lease=Lease(self.worker_id, self.claim_id, now + self.lease),
            next_dispatch_at=None,
            no_handler=0,
            started_at=now,
        )
        if self.slot is not None:
            claimed = claimed.evolve(slot=HeldSlot(self.slot.limit, self.claim_id))
        return with_event(claimed, "started", now, worker_id=self.worker_id)

    def was_applied(self, task: Task) -> bool:
        return task.lease is not None and task.lease.claim_id == self.claim_id


@dataclass(frozen=True, slots=True)
class _AttemptWrite:
    """A write of the worker that runs the task: refused if the task does not run under the claim of the fence."""

    group: ClassVar[Group] = "settle"
    fence: Fence

    @property
    def task_id(self) -> str:
        return self.fence.task_id


@dataclass(frozen=True, slots=True)
class AttemptEnd(_AttemptWrite):
    """The end of an attempt. It leaves its claim id in the task, so that a repeated request is recognised."""

    worker_id: str

    def was_applied(self, task: Task) -> bool:
        return task.last_claim_id == self.fence.claim_id


@dataclass(frozen=True, slots=True)
class ReportProgress(_AttemptWrite):
    """The running task reports its progress. The write makes no event in the history, so it has no sequence."""

    failpoint: ClassVar[str] = "execute.middle"
    reply_failpoint: ClassVar[str] = "progress.reply"
    progress: Json = field(repr=False)

    def apply(self, task: Task, now: datetime) -> Task | None:
        if not self.fence.holds(task):
            return None
        return task.evolve(
            progress=self.progress,
            progress_revision=task.progress_revision + 1,
            revision=task.revision + 1,
            updated_at=now,
        )

    def was_applied(self, task: Task) -> bool:
        return self.fence.holds(task)


@dataclass(frozen=True, slots=True)
class RecordStep(_AttemptWrite):
    """The running task has done a step. The write makes no event in the history; the first outcome of a step stays."""

    failpoint: ClassVar[str] = "step.after_write"
    reply_failpoint: ClassVar[str] = "step.reply"
    step: str
    outcome: Json = field(repr=False)

    def apply(self, task: Task, now: datetime) -> Task | None:
        if not self.fence.holds(task):
            return None
        if task.outcome_of(self.step) is not None:
            return task
        steps = (*task.steps, StepOutcome(self.step, self.outcome))
        return task.evolve(steps=steps, revision=task.revision + 1)

    def was_applied(self, task: Task) -> bool:
        return self.fence.holds(task) and task.outcome_of(self.step) is not None


@dataclass(frozen=True, slots=True)
class Complete(AttemptEnd):
    """RUNNING → COMPLETED. A pending cancel request does not prevent this, because the work is done."""

    failpoint: ClassVar[str] = "settle.after_write"
    reply_failpoint: ClassVar[str] = "settle.reply"
    result: Json = field(repr=False)

    def apply(self, task: Task, now: datetime) -> Task | None:
        if not self.fence.holds(task):
            return None
        done = with_final_status(task, TaskStatus.COMPLETED, now).evolve(
            result=self.result, error=None, last_claim_id=self.fence.claim_id
        )
        return with_event(done, "completed", now, worker_id=self.worker_id)


@dataclass(frozen=True, slots=True)
class Fail(AttemptEnd):
    """RUNNING → RETRYING, FAILED, DEAD_LETTER or CANCELLED. The write itself decides, so that no cancel is missed."""

    failpoint: ClassVar[str] = "settle.after_write"
    reply_failpoint: ClassVar[str] = "settle.reply"
    error: TaskError
    retryable: bool
    delay: timedelta

    def apply(self, task: Task, now: datetime) -> Task | None:
        if not self.fence.holds(task):
            return None
        error = replace(self.error, attempt=task.attempts, at=now)
        failed = task.evolve(last_claim_id=self.fence.claim_id)
        return after_failure(failed, self._status(task), error, self.delay, now, self.worker_id)

    def _status(self, task: Task) -> TaskStatus:
        if task.cancel is not None:
            return status_after(task.cancel)
        if not self.retryable:
            return TaskStatus.FAILED
        return TaskStatus.DEAD_LETTER if task.attempts >= task.max_attempts else TaskStatus.RETRYING


@dataclass(frozen=True, slots=True)
class Release(AttemptEnd):
    """RUNNING → QUEUED: the worker hands an unfinished attempt back. The attempt is not counted."""

    failpoint: ClassVar[str] = "release.after_write"
    reply_failpoint: ClassVar[str] = "settle.reply"

    def apply(self, task: Task, now: datetime) -> Task | None:
        if not self.fence.holds(task):
            return None
        released = task.evolve(last_claim_id=self.fence.claim_id, releases=task.releases + 1)
        if task.cancel is not None:
            return ended_by_cancel(released, now, self.worker_id)
        queued = with_event(claimable_at(released, TaskStatus.QUEUED, now), "released", now, worker_id=self.worker_id)
        return queued.evolve(attempts=task.attempts - 1)  # last, because the event has to name this attempt


def ended_by_cancel(task: Task, now: datetime, worker_id: str) -> Task:
    """The end of a task that has a cancel request and has not finished its work.

    It must not be queued again: no claim takes a task that has a cancel request, and no second request would end it.
    """
    assert task.cancel is not None, "this is called only for a task with a cancel request"
    status = status_after(task.cancel)
    if status is TaskStatus.FAILED:
        task = with_error(task, deadline_error(task.attempts, now))
    return with_event(with_final_status(task, status, now), status.lower(), now, worker_id=worker_id)
