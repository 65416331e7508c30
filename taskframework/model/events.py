"""The events that the bus of a process carries, named in the past tense.

`AttemptFinished` is an exception: it is a request, which the state aggregator answers with a `Settlement` or `Stale`.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskframework.model.attempts import RecordStep, ReportProgress
from taskframework.model.interventions import Postpone
from taskframework.model.outcome import Outcome
from taskframework.model.signals import Wake
from taskframework.model.status import TaskStatus
from taskframework.model.stream_moves import MovePosition
from taskframework.model.task import Task
from taskframework.model.task_fields import HistoryEntry
from taskframework.model.transitions import Fence, Move
from taskframework.model.waiting import CountSubtasks


@dataclass(frozen=True, slots=True)
class Event:
    """The base class of everything that the bus carries."""


@dataclass(frozen=True, slots=True)
class TaskEvent(Event):
    """A change of a task was stored; `task` is the task right after the change, or later."""

    task: Task


class TaskSubmittedEvent(TaskEvent):
    """Accepted and stored."""


class BatchSubmittedEvent(TaskSubmittedEvent):
    """A batch is accepted and stored; if its items came all at once, they are its plan."""


class TaskReplacedEvent(TaskEvent):
    """A newer submission replaced the parameters of the task, which has not begun."""


class TaskStartedEvent(TaskEvent):
    """Claimed by a worker; the attempt begins."""


class TaskProgressEvent(TaskEvent):
    """The running task reported its progress, or the sub-tasks of a waiting task were counted."""


class TaskRetryingEvent(TaskEvent):
    """The attempt failed; another one is due at `task.not_before`."""


class TaskWaitingEvent(TaskEvent):
    """The task waits for sub-tasks, for a signal, or for whichever comes first."""


class TaskUnblockedEvent(TaskEvent):
    """The task has the turn of its stream: it is queued, or starts at once."""


class TaskSkippedEvent(TaskEvent):
    """The stream of the task continues without its result."""


class TaskResumedEvent(TaskEvent):
    """What the task waited for has come, or did not come in time; the task is queued to continue."""


class TaskSignalledEvent(TaskEvent):
    """A signal came for which the task does not wait yet; the task keeps it."""


class TaskSealedEvent(TaskEvent):
    """The upload of the batch is complete: it is known how many sub-tasks there are."""


class TaskReopenedEvent(TaskEvent):
    """A finished task waits for its sub-tasks again."""


class TaskCompletedEvent(TaskEvent):
    """Finished with a result."""


class TaskFailedEvent(TaskEvent):
    """Finished without a result: FAILED or DEAD_LETTER."""


class TaskCancelledEvent(TaskEvent):
    """Ended as CANCELLED, because a cancel was requested."""


class TaskCancelRequestedEvent(TaskEvent):
    """A running task is asked to stop."""


class TaskReleasedEvent(TaskEvent):
    """A stopping worker handed the unfinished attempt back."""


class TaskReplayedEvent(TaskEvent):
    """An operator queued a finished task again."""


class TaskRetryRequestedEvent(TaskEvent):
    """An operator asked to retry a RETRYING task at once; its next attempt is due now."""


class TaskDiscardedEvent(TaskEvent):
    """An operator discarded a dead letter; the status of the task stays."""


@dataclass(frozen=True, slots=True)
class AttemptFinished(Event):
    """The request to write the outcome of this attempt. `task` is the task right after its claim."""

    task: Task
    fence: Fence
    worker_id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome is stored."""

    #: The status of the task right after the attempt.
    status: TaskStatus


@dataclass(frozen=True, slots=True)
class Stale:
    """The lease was lost before the outcome could be stored; the outcome is discarded."""

    #: The task's token now; None if the task no longer exists, or the store cannot be asked.
    current_token: int | None = None
    #: The worker that runs the task now, if any.
    held_by: str | None = None


#: The event for each entry type of a task's history.
EVENT_BY_ENTRY_TYPE: dict[str, type[TaskEvent]] = {
    "submitted": TaskSubmittedEvent,
    "replaced": TaskReplacedEvent,
    "started": TaskStartedEvent,
    "retrying": TaskRetryingEvent,
    "waiting": TaskWaitingEvent,
    "resumed": TaskResumedEvent,
    "signalled": TaskSignalledEvent,
    "sealed": TaskSealedEvent,
    "reopened": TaskReopenedEvent,
    "completed": TaskCompletedEvent,
    "completed_with_errors": TaskCompletedEvent,
    "failed": TaskFailedEvent,
    "dead_letter": TaskFailedEvent,
    "cancelled": TaskCancelledEvent,
    "cancel_requested": TaskCancelRequestedEvent,
    "released": TaskReleasedEvent,
    "replayed": TaskReplayedEvent,
    "retry_requested": TaskRetryRequestedEvent,
    "discarded": TaskDiscardedEvent,
    "unblocked": TaskUnblockedEvent,
    "skipped": TaskSkippedEvent,
}


#: The entry types that end an attempt. Each move out of RUNNING appends one of them; no other move of a running task
#: does.
ATTEMPT_END_TYPES = frozenset(
    {"retrying", "waiting", "completed", "completed_with_errors", "failed", "dead_letter", "cancelled", "released"}
)
#: The events that end an attempt, and the events after which a task has a final status.
ATTEMPT_END_EVENTS = tuple(dict.fromkeys(EVENT_BY_ENTRY_TYPE[kind] for kind in sorted(ATTEMPT_END_TYPES)))
FINAL_EVENTS = (TaskCompletedEvent, TaskFailedEvent, TaskCancelledEvent)


def newest_event(task: Task) -> TaskEvent:
    """The event for the newest entry of a task's history."""
    return EVENT_BY_ENTRY_TYPE[task.history[-1].type](task)


def event_of_move(move: Move, task: Task) -> TaskEvent | None:
    """The event of a move, given the task right after it; None for a move without an event."""
    match move:
        case ReportProgress():
            return TaskProgressEvent(task)
        case RecordStep() | MovePosition():
            return None
        case CountSubtasks(verdict=None):
            return TaskProgressEvent(task)
        case Postpone() if not task.status.is_final:
            return None
        case Wake() if task.status is TaskStatus.WAITING:
            return None
    return newest_event(task)


def start_of_attempt(task: Task) -> HistoryEntry:
    """The entry of the claim under which a task runs."""
    return next(entry for entry in reversed(task.history) if entry.type == "started")


def end_of_attempt(claimed: Task, later: Task) -> HistoryEntry:
    """The entry that ended the attempt of a claimed task; the task may have moved on since."""
    return next(
        entry for entry in later.history if entry.sequence > claimed.sequence and entry.type in ATTEMPT_END_TYPES
    )
