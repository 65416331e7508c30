"""The statuses of a task and the moves between them."""

from __future__ import annotations

from enum import StrEnum


class TaskStatus(StrEnum):
    """Where a task is in its life."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    RETRYING = "RETRYING"
    WAITING = "WAITING"  # for its sub-tasks or a signal
    BLOCKED = "BLOCKED"  # an earlier task of its ordered stream is not finished
    COMPLETED = "COMPLETED"
    COMPLETED_WITH_ERRORS = "COMPLETED_WITH_ERRORS"  # some sub-tasks failed, which its policy allows
    FAILED = "FAILED"  # not retryable
    DEAD_LETTER = "DEAD_LETTER"  # no attempts left, too many crashes, not started in time, or no worker can run it
    CANCELLED = "CANCELLED"

    @classmethod
    def _missing_(cls, value: object) -> TaskStatus | None:
        """Take a name in lower case, too, as the command line does."""
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None

    @property
    def is_final(self) -> bool:
        """Whether the task has ended, so that only an operator moves it out of this status."""
        return self in FINAL


class Priority(StrEnum):
    """The lane a task travels in."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


#: From the most to the least urgent.
LANES: tuple[Priority, ...] = (Priority.HIGH, Priority.NORMAL, Priority.LOW)

FINAL = frozenset(
    {
        TaskStatus.COMPLETED,
        TaskStatus.COMPLETED_WITH_ERRORS,
        TaskStatus.FAILED,
        TaskStatus.DEAD_LETTER,
        TaskStatus.CANCELLED,
    }
)
LIVE = frozenset(TaskStatus) - FINAL
CLAIMABLE = frozenset({TaskStatus.QUEUED, TaskStatus.RETRYING})
SUCCEEDED = frozenset({TaskStatus.COMPLETED, TaskStatus.COMPLETED_WITH_ERRORS})
DEAD = frozenset({TaskStatus.FAILED, TaskStatus.DEAD_LETTER})
#: The statuses of a task that an operator may replay.
REPLAYABLE = DEAD | {TaskStatus.CANCELLED}
#: The statuses of a live task that no worker runs: a cancel or a deadline ends it at once.
AT_REST = LIVE - {TaskStatus.RUNNING}

#: The allowed moves between statuses. Every transition is tested against this table.
MOVES: dict[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.QUEUED: frozenset({TaskStatus.RUNNING, TaskStatus.CANCELLED, TaskStatus.FAILED, TaskStatus.DEAD_LETTER}),
    TaskStatus.RETRYING: frozenset(
        {TaskStatus.RUNNING, TaskStatus.CANCELLED, TaskStatus.FAILED, TaskStatus.DEAD_LETTER}
    ),
    TaskStatus.RUNNING: frozenset(TaskStatus) - {TaskStatus.RUNNING, TaskStatus.BLOCKED},
    TaskStatus.WAITING: FINAL | {TaskStatus.QUEUED},
    TaskStatus.BLOCKED: frozenset({TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.CANCELLED, TaskStatus.FAILED}),
    TaskStatus.COMPLETED: frozenset({TaskStatus.WAITING}),
    TaskStatus.COMPLETED_WITH_ERRORS: frozenset({TaskStatus.WAITING}),
    TaskStatus.FAILED: frozenset({TaskStatus.QUEUED, TaskStatus.WAITING, TaskStatus.BLOCKED}),
    TaskStatus.DEAD_LETTER: frozenset({TaskStatus.QUEUED, TaskStatus.WAITING, TaskStatus.BLOCKED}),
    TaskStatus.CANCELLED: frozenset({TaskStatus.QUEUED, TaskStatus.WAITING, TaskStatus.BLOCKED}),
}


def lane_below(lane: Priority) -> Priority:
    """The next less urgent lane; for the low lane, the low lane itself."""
    return LANES[min(LANES.index(lane) + 1, len(LANES) - 1)]


#: The lanes by their stored names. To make a member of the enum from its value takes five times as long.
_LANE_BY_NAME: dict[str, Priority] = {lane.value: lane for lane in Priority}


def lane_of(priority: str) -> Priority:
    """The lane of a stored priority; normal for an unknown priority, which a newer release wrote."""
    return _LANE_BY_NAME.get(priority, Priority.NORMAL)
