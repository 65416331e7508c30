"""What the calls of a store return besides tasks and records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from taskframework.model.status import Priority, TaskStatus
from taskframework.model.task import Task


@dataclass(frozen=True, slots=True)
class Inserted:
    """The result of an insert: the task that is stored now, and whether this call stored it."""

    task: Task
    is_new: bool


@dataclass(frozen=True, slots=True)
class DueTask:
    """A task that is due by a driver: only the fields that repairs need, so that a look does not read whole tasks."""

    task_id: str
    task_type: str
    #: The lane of its priority; the message of a retry may take another lane.
    lane: Priority
    status: TaskStatus
    dispatch_epoch: int
    #: How often the task was dispatched in this epoch, or not dispatched because its message seemed to exist. 0: there
    #: is no message.
    dispatches: int
    fencing_token: int
    crashes: int
    not_before: datetime
    #: The time of the driver that found it.
    due: datetime


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The report on a store that `doctor` shows: facts, and problems with their remedies."""

    facts: dict[str, str]
    problems: tuple[str, ...]
