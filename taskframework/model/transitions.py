"""Transitions, and those that a worker makes: claim, report progress, record a step, complete, fail, release.

Each transition is data and a pure rule `apply(task, now)`, which gives the task after the transition, or None if the
guard refuses. This rule defines the transition. SQLite runs the rule inside a write transaction; MongoDB runs the same
guard and update as one pipeline write. The conformance suite checks that both give the same documents.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import ClassVar, Literal, Protocol

from taskframework.model.drivers import DEADLINE
from taskframework.model.options import KeptFor
from taskframework.model.status import CLAIMABLE, DEAD, TaskStatus
from taskframework.model.task import (
    ERRORS_KEPT,
    HISTORY_LENGTH,
    SCHEMA_VERSION,
    CancelRequest,
    HeldSlot,
    HistoryEntry,
    Lease,
    StepOutcome,
    Task,
    TaskError,
)
from taskframework.model.values import Json, fingerprint

#: Transitions of one group may be written together; transitions of the group "single" are written separately.
Group = Literal["claim", "unblock", "settle", "reserve", "single"]

#: How long the process that made an event has to publish it. After that the relay does.
RELAY_AFTER = timedelta(seconds=5)

#: `cancel.by` and `cancel.reason` of a cancel that the framework itself requested because the deadline passed.
BY_DEADLINE = "deadline"
DEADLINE_REASON = "the deadline passed"
#: The message of the error of a task that its deadline ended.
DEADLINE_PASSED = "The deadline passed."


class Transition(Protocol):
    """One guarded write on one task.

    It raises the task's `revision` by one, unless it changes nothing or only reserves the task for a repair.
    """

    group: ClassVar[Group]
    #: The failpoint that the code passes when the reply of the store arrives.
    reply_failpoint: ClassVar[str]

    @property
    def task_id(self) -> str: ...

    def apply(self, task: Task, now: datetime) -> Task | None:
        """The task after this transition, or None if the guard refuses."""
        ...

    def was_applied(self, task: Task) -> bool:
        """Return whether a task that was read later shows that this request was applied (its reply may be lost)."""
        ...


class Move(Transition, Protocol):
    """A transition that only `TaskMoves` makes. All other transitions only move a driver, without an event."""

    #: The failpoint that the code passes right after the write.
    failpoint: ClassVar[str]


class UngroupedWrite:
    """A write that belongs to no group. It is not repeated after a lost reply, so `was_applied` is not needed."""

    __slots__ = ()
    group: ClassVar[Group] = "single"

    def was_applied(self, task: Task) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Fence:
    """Proof of a claim. Every write of a worker contains it; a write whose fence no longer matches is refused."""

    task_id: str
    fencing_token: int
    claim_id: str

    def holds(self, task: Task) -> bool:
        """Return whether the task still runs under this claim."""
        return (
            task.status is TaskStatus.RUNNING
            and task.fencing_token == self.fencing_token
            and task.lease is not None
            and task.lease.claim_id == self.claim_id
        )


def with_event(task: Task, event: str, now: datetime, *, worker_id: str | None = None, data: Json = None) -> Task:
    """The task with one more event at the end of its history, to be published.

    The history is cut to its length, but an event that may be unpublished is never removed.
    """
    sequence = task.sequence + 1
    entry = HistoryEntry(sequence, event, now, task.attempts, worker_id, data)
    keep_above = min(sequence - HISTORY_LENGTH, task.published_sequence)
    return task.evolve(
        sequence=sequence,
        revision=task.revision + 1,
        history=(*(old for old in task.history if old.sequence > keep_above), entry),
        publish_at=now + RELAY_AFTER,
        updated_at=now,
    )


def with_final_status(task: Task, status: TaskStatus, now: datetime) -> Task:
    """The task in a final status. The only driver left is `cascade_at`, by which its open sub-tasks are cancelled.

    The result is removed, because a waiting task may keep a result for later; a move that gives a result sets it
    afterwards.
    """
    return task.evolve(
        status=status,
        lease=None,
        next_dispatch_at=None,
        spawn_at=None,
        check_at=None,
        unblock_at=None,
        waits_for=None,
        result=None,
        cascade_at=now if task.subtasks is not None and task.subtasks.is_open else task.cascade_at,
        finished_at=now,
        purge_at=None if task.retention is None else _purge_time(task.retention, status, now),
    )


def _purge_time(kept: KeptFor, status: TaskStatus, now: datetime) -> datetime | None:
    """When a task that ends now may be deleted; None: the settings decide."""
    milliseconds = kept.failed if status in DEAD else kept.finished
    return None if milliseconds is None else now + timedelta(milliseconds=milliseconds)


def claimable_at(task: Task, status: TaskStatus, due: datetime, dispatch_after: timedelta = timedelta(0)) -> Task:
    """The task as claimable from `due` on; every older message about the task is now out of date."""
    return task.evolve(
        status=status,
        lease=None,
        dispatch_epoch=task.dispatch_epoch + 1,
        dispatches=0,
        not_before=due,
        next_dispatch_at=due + dispatch_after,
        finished_at=None,
    )


def with_error(task: Task, error: TaskError) -> Task:
    return task.evolve(error=error, errors=(*task.errors, error)[-ERRORS_KEPT:])


def after_failure(
    task: Task, status: TaskStatus, error: TaskError, delay: timedelta, now: datetime, worker_id: str
) -> Task:
    """A task whose attempt failed with this error: RETRYING after `delay`, or ended with this final status."""
    failed = with_error(task, error)
    is_retried = status is TaskStatus.RETRYING
    moved = claimable_at(failed, status, now + delay) if is_retried else with_final_status(failed, status, now)
    return with_event(moved, status.lower(), now, worker_id=worker_id, data=failure_data(error))


def failure_data(error: TaskError) -> Json:
    """The data of a failure's event in the history; the whole error, with its traceback, is in `errors`."""
    return {"code": error.code, "type": error.type, "message": error.message}


def framework_error(
    code: str, message: str, *, retryable: bool, attempt: int = 0, at: datetime | None = None
) -> TaskError:
    """An error that does not come from task code."""
    return TaskError(code, "taskframework", message, retryable, fingerprint(code), None, attempt, at)


def deadline_error(attempt: int = 0, at: datetime | None = None) -> TaskError:
    """The error of a task that its deadline ended."""
    return framework_error("deadline", DEADLINE_PASSED, retryable=False, attempt=attempt, at=at)


def status_after(cancel: CancelRequest) -> TaskStatus:
    """The final status of a task that was asked to end and has not finished its work."""
    return TaskStatus.FAILED if cancel.by == BY_DEADLINE else TaskStatus.CANCELLED


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
