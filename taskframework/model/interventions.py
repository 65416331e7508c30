"""The transitions that the worker of a task does not make: reap, cancel, expire, postpone, replay, discard."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from taskframework.model import drivers
from taskframework.model.options import start_by
from taskframework.model.scope import Scope
from taskframework.model.status import CLAIMABLE, DEAD, LIVE, REPLAYABLE, TaskStatus
from taskframework.model.stream_moves import blocked_if_serial, skipped_in_stream
from taskframework.model.task import Task
from taskframework.model.task_fields import CancelRequest, Discarded, TaskError
from taskframework.model.transitions import (
    BY_DEADLINE,
    DEADLINE_PASSED,
    DEADLINE_REASON,
    UngroupedWrite,
    after_failure,
    claimable_at,
    deadline_error,
    framework_error,
    status_after,
    with_error,
    with_event,
    with_final_status,
)
from taskframework.model.values import Json
from taskframework.model.wording import pluralize


@dataclass(frozen=True, slots=True)
class Reap(UngroupedWrite):
    """RUNNING with an expired lease → RETRYING, DEAD_LETTER, CANCELLED or FAILED, without the code of the task.

    The lease must have ended longer than `grace` ago. `grace` None: the lease need not have ended, because the worker
    is known to be dead. The task waits for `delay`; with `max_crashes` crashes it is a dead letter.
    """

    failpoint: ClassVar[str] = "reap.after_write"
    reply_failpoint: ClassVar[str] = "reap.reply"
    task_id: str
    fencing_token: int
    grace: timedelta | None
    max_crashes: int
    delay: timedelta

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.fencing_token != self.fencing_token or task.lease is None or drivers.LEASE.time_of(task) is None:
            return None
        if self.grace is not None and not drivers.LEASE.is_due(task, now, self.grace):
            return None
        reaped = task.evolve(crashes=task.crashes + 1)
        error = replace(self._error(reaped), attempt=task.attempts, at=now)
        return after_failure(reaped, self._status(reaped), error, self.delay, now, task.lease.worker_id)

    def _error(self, task: Task) -> TaskError:
        if task.cancel is not None and task.cancel.by == BY_DEADLINE:
            return LOST_AFTER_DEADLINE
        message = self.limit_message if task.crashes >= self.max_crashes else LEASE_EXPIRED
        return framework_error("lease_expired", message, retryable=True)

    @property
    def limit_message(self) -> str:
        """The message of the error with which the task becomes a dead letter although it has attempts left."""
        times = pluralize(self.max_crashes, "time")
        return f"{LEASE_EXPIRED} This has happened {times}, which is the limit (worker.max_crashes)."

    def _status(self, task: Task) -> TaskStatus:
        if task.cancel is not None:
            return status_after(task.cancel)
        if task.attempts >= task.max_attempts or task.crashes >= self.max_crashes:
            return TaskStatus.DEAD_LETTER
        return TaskStatus.RETRYING


def is_suspect(task: Task, max_crashes: int) -> bool:
    """Return whether a task becomes a dead letter if its present or next attempt crashes. A task that never crashed is
    not suspected.
    """
    attempt = task.attempts if task.status is TaskStatus.RUNNING else task.attempts + 1
    return task.crashes > 0 and (task.crashes + 1 >= max_crashes or attempt >= task.max_attempts)


LEASE_EXPIRED = "The worker stopped renewing its lease: it died, hung or lost the store."
#: The error of a task that its deadline ends, because its worker did not: the deadline forbids another attempt.
LOST_AFTER_DEADLINE = replace(deadline_error(), message=f"{DEADLINE_PASSED} {LEASE_EXPIRED}")


#: The value of `cancel.by` when the cancel comes from the parent.
BY_PARENT = "parent"


@dataclass(frozen=True, slots=True)
class Cancel(UngroupedWrite):
    """A live task that does not run → CANCELLED; a running task is asked to stop."""

    failpoint: ClassVar[str] = "cancel.after_write"
    reply_failpoint: ClassVar[str] = "cancel.reply"
    task_id: str
    scope: Scope
    by: str
    reason: str | None
    #: The only generation that is cancelled; None: any. A cascade must not cancel a replay that came meanwhile.
    generation: int | None = None

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.status not in LIVE or task.cancel is not None or not self.scope.covers(task.user_id):
            return None
        if self.generation not in (None, task.generation):
            return None
        return _with_cancel_request(task, now, self.by, self.reason)


def _with_cancel_request(task: Task, now: datetime, by: str, reason: str | None) -> Task:
    cancelling = task.evolve(cancel=CancelRequest(by, now, reason))
    data = {"by": by, "reason": reason}
    if task.status is TaskStatus.RUNNING:
        return with_event(cancelling, "cancel_requested", now, data=data)
    return with_event(with_final_status(cancelling, TaskStatus.CANCELLED, now), "cancelled", now, data=data)


@dataclass(frozen=True, slots=True)
class Supersede(UngroupedWrite):
    """A newer version of the task exists. A task that has not begun → CANCELLED. A task that runs, or waits for
    sub-tasks or a signal, continues, or is asked to stop if the newer version says so.
    """

    failpoint: ClassVar[str] = "supersede.after_write"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    #: The newer version.
    version: int
    stops_running: bool = False

    @property
    def statuses(self) -> frozenset[TaskStatus]:
        """The statuses in which this move ends the task, or asks it to end."""
        return LIVE if self.stops_running else _UNBEGUN_STATUSES

    @property
    def reason(self) -> str:
        return f"version {self.version} of it was submitted"

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.status not in self.statuses or task.cancel is not None:
            return None
        return _with_cancel_request(task, now, BY_NEWER_VERSION, self.reason)


#: The statuses of a task that waits for a worker, or in a serial stream for its turn.
_UNBEGUN_STATUSES = CLAIMABLE | {TaskStatus.BLOCKED}
#: `cancel.by` of a task that a newer version has superseded.
BY_NEWER_VERSION = "superseded"


@dataclass(frozen=True, slots=True)
class Expire(UngroupedWrite):
    """A live task past its deadline → FAILED; a running task is asked to stop.

    If the task is in a stream, its history first says that the stream continues without it. Readers of ordered results
    do not wait for it, even while it still runs; in a serial stream a running task keeps its turn until it has ended.
    """

    failpoint: ClassVar[str] = "expire.after_write"
    reply_failpoint: ClassVar[str] = "expire.reply"
    task_id: str

    def apply(self, task: Task, now: datetime) -> Task | None:
        if not drivers.DEADLINE.is_due(task, now):
            return None
        cancelling = skipped_in_stream(task, now).evolve(cancel=CancelRequest(BY_DEADLINE, now, DEADLINE_REASON))
        if task.status is TaskStatus.RUNNING:
            return with_event(cancelling, "cancel_requested", now, data={"by": BY_DEADLINE, "reason": DEADLINE_REASON})
        error = deadline_error(task.attempts, now)
        return with_event(with_final_status(with_error(cancelling, error), TaskStatus.FAILED, now), "failed", now)


@dataclass(frozen=True, slots=True)
class EndUnstarted(UngroupedWrite):
    """A task that no worker started in time → DEAD_LETTER. Nothing is wrong with the task itself."""

    failpoint: ClassVar[str] = "queue_timeout.after_write"
    reply_failpoint: ClassVar[str] = "expire.reply"
    task_id: str

    def apply(self, task: Task, now: datetime) -> Task | None:
        if not drivers.START.is_due(task, now):
            return None
        error = framework_error("queue_timeout", NOT_STARTED, retryable=False, attempt=task.attempts, at=now)
        return with_event(with_final_status(with_error(task, error), TaskStatus.DEAD_LETTER, now), "dead_letter", now)


NOT_STARTED = "No worker started it within its queue_timeout. Start more workers or allow more time, then replay it."


@dataclass(frozen=True, slots=True)
class Postpone(UngroupedWrite):
    """Put a task off that this worker cannot run (unknown type, newer version); after `limit` times → DEAD_LETTER."""

    failpoint: ClassVar[str] = "claim.postponed"
    reply_failpoint: ClassVar[str] = "postpone.reply"
    task_id: str
    dispatch_epoch: int
    delay: timedelta
    limit: int

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.status not in CLAIMABLE or task.dispatch_epoch != self.dispatch_epoch or task.cancel is not None:
            return None
        postponed = task.evolve(no_handler=task.no_handler + 1)
        if postponed.no_handler <= self.limit:
            return postponed.evolve(next_dispatch_at=now + self.delay, revision=task.revision + 1, updated_at=now)
        error = framework_error("no_handler", NO_HANDLER, retryable=False, attempt=task.attempts, at=now)
        dead = with_final_status(with_error(postponed, error), TaskStatus.DEAD_LETTER, now)
        return with_event(dead, "dead_letter", now)


NO_HANDLER = "No worker that received it could run this type and version."


@dataclass(frozen=True, slots=True)
class NewParameters:
    """Other parameters that a task gets when it is replayed.

    The task keeps the hash of the submitted parameters: by it, a repeated submission or upload finds the task.
    """

    parameters: Json = field(repr=False)


@dataclass(frozen=True, slots=True)
class Replay(UngroupedWrite):
    """FAILED, DEAD_LETTER or CANCELLED → QUEUED as a new generation; the fencing token is not reset.

    In a serial stream the task becomes BLOCKED, at its old position, until its turn comes. Recorded steps stay, so
    that only the other steps are done; signals that were not used stay too. A batch has no code to run again, so its
    sub-tasks are replayed instead.
    """

    failpoint: ClassVar[str] = "replay.after_write"
    reply_failpoint: ClassVar[str] = "replay.reply"
    task_id: str
    scope: Scope
    by: str
    dispatch_after: timedelta
    revision: int | None = None
    #: None: the task keeps its parameters.
    edited: NewParameters | None = None
    reason: str | None = None
    #: The action on many tasks that this replay belongs to.
    replay_id: str | None = None

    @property
    def event_data(self) -> dict[str, Any]:
        """The data of the event in the history."""
        is_edited = self.edited is not None or None
        return _event_data(self.by, reason=self.reason, replay_id=self.replay_id, is_edited=is_edited)

    def apply(self, task: Task, now: datetime) -> Task | None:
        if (
            task.status not in REPLAYABLE
            or task.batch is not None
            or task.cascade_at is not None  # its sub-tasks would continue, and no task would wait for them
            or not self.scope.covers(task.user_id)
            or self.revision not in (None, task.revision)
        ):
            return None
        queued = claimable_at(task, TaskStatus.QUEUED, now, self.dispatch_after).evolve(
            generation=task.generation + 1,
            attempts=0,
            crashes=0,
            releases=0,
            no_handler=0,
            cancel=None,
            discarded=None,
            deadline=None,
            start_by=start_by(task.start_limit, now),
            error=None,
            progress=None,
            started_at=None,
            purge_at=None,
            subtasks=None,
            stage="execute",
            signals=tuple(signal for signal in task.signals if not signal.is_heard),
            woken_by=None,
        )
        if self.edited is not None:
            queued = queued.evolve(parameters=self.edited.parameters)
        return with_event(blocked_if_serial(queued, now), "replayed", now, data=self.event_data)


@dataclass(frozen=True, slots=True)
class RetryNow(UngroupedWrite):
    """Make the next attempt of a task that failed due now. The attempts that the task had still count."""

    failpoint: ClassVar[str] = "retry_now.after_write"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    scope: Scope
    by: str
    dispatch_after: timedelta
    #: The epoch that was read. If two operators ask at the same time, only one request changes the task: the clock of
    #: the other may be behind, so that `not_before` alone would not refuse the second request.
    dispatch_epoch: int
    reason: str | None = None
    #: The action on many tasks that this request belongs to.
    replay_id: str | None = None

    @property
    def event_data(self) -> dict[str, Any]:
        """The data of the event in the history."""
        return _event_data(self.by, reason=self.reason, replay_id=self.replay_id)

    def apply(self, task: Task, now: datetime) -> Task | None:
        if (
            task.status is not TaskStatus.RETRYING
            or task.dispatch_epoch != self.dispatch_epoch
            or task.not_before <= now  # the message is already on its way, and a second message would not help
            or not self.scope.covers(task.user_id)
        ):
            return None
        due = claimable_at(task, TaskStatus.RETRYING, now, self.dispatch_after)
        return with_event(due, "retry_requested", now, data=self.event_data)


@dataclass(frozen=True, slots=True)
class Discard(UngroupedWrite):
    """Give a dead letter up: lists leave it out. Its status stays, and an operator can still replay it by its id."""

    failpoint: ClassVar[str] = "discard.after_write"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    scope: Scope
    by: str
    reason: str | None

    def apply(self, task: Task, now: datetime) -> Task | None:
        if (
            task.status not in DEAD
            or task.batch is not None
            or task.discarded is not None
            or not self.scope.covers(task.user_id)
        ):
            return None
        discarded = task.evolve(discarded=Discarded(self.by, now, self.reason))
        return with_event(discarded, "discarded", now, data={"by": self.by, "reason": self.reason})


def _event_data(by: str, **optional: Any) -> dict[str, Any]:
    """The data of an event: the caller who requested the move, and the optional values that are not None."""
    return {"by": by} | {name: value for name, value in optional.items() if value is not None}
