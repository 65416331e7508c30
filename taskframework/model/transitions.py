"""What a transition is, and what the rules of several transitions share.

Each transition is data and a pure rule `apply(task, now)`, which gives the task after the transition, or None if the
guard refuses. This rule defines the transition. SQLite runs the rule inside a write transaction; MongoDB runs the same
guard and update as one pipeline write. The conformance suite checks that both give the same documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Literal, Protocol

from taskframework.model.options import KeptFor
from taskframework.model.status import DEAD, TaskStatus
from taskframework.model.task import ERRORS_KEPT, HISTORY_LENGTH, Task
from taskframework.model.task_fields import CancelRequest, HistoryEntry, TaskError
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
