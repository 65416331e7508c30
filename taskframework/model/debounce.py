"""Submissions of one key that share a task. With debounce, the task runs with the newest parameters. With throttle, the
first submission of each period makes the task.

The record of a debounced key names the task of the current window. Like the record of an idempotency key, it is written
before the task is stored, so a process that finds the record without its task stores the task under the same id. After
that, each submission replaces the parameters of the task by one guarded write, which is refused after the first claim.
So the task runs with the parameters of each accepted submission, or with newer parameters. `tests/models/debounce.pml`
is a model of this protocol.

A throttled key needs no record: the id of its task is derived from the key and the period.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar
from uuid import NAMESPACE_OID, uuid5

from taskframework.model.idempotency import GRACE
from taskframework.model.options import start_by
from taskframework.model.records import Record, RecordKind
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import UngroupedWrite, claimable_at, with_event
from taskframework.model.values import Json

_THROTTLED = RecordKind("throttle", str)


@dataclass(frozen=True, slots=True)
class Window:
    """The task whose parameters the submissions of a key replace."""

    task_id: str
    opened_at: datetime


WINDOWS = RecordKind("debounce", Window)


def window_id(task: Task, key: str) -> str:
    """The id of the record of a key; it belongs to a user and a task type."""
    return WINDOWS.id_of(task.user_id, task.task_type, key)


def window_of(task: Task, key: str, existing: Record | None, kept: timedelta) -> Record:
    """The record that names this task, which is about to be stored.

    Args:
        task: the first task of its window.
        key: the key of the submission.
        existing: the record that was read; None if there was no record.
        kept: the shortest time for which the record is kept, counted from the time at which the task can begin.
    """
    content = Window(task.task_id, task.created_at)
    return WINDOWS.with_id(window_id(task, key), existing, content, expires_at=task.not_before + kept + GRACE)


def may_be_stored_late(window: Window, now: datetime) -> bool:
    """Return whether some process may still store the missing task of this window. If not, the task was deleted."""
    return now - window.opened_at < GRACE


def throttled_id(user_id: str, task_type: str, key: str, every: timedelta, now: datetime) -> str:
    """The id of the one task of this key in the current period. Periods count from 1970, not from the first task."""
    period = int(now.timestamp() * 1000) // (every // timedelta(milliseconds=1))
    return str(uuid5(NAMESPACE_OID, f"{_THROTTLED.id_of(user_id, task_type, key)}/{every}/{period}"))


@dataclass(frozen=True, slots=True)
class ReplaceParameters(UngroupedWrite):
    """Give a debounced task that has not begun newer parameters. It waits again, but in total at most `longest`."""

    failpoint: ClassVar[str] = "debounce.after_replace"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    parameters: Json = field(repr=False)
    parameters_hash: str
    wait: timedelta

    def apply(self, task: Task, now: datetime) -> Task | None:
        if (
            task.debounce is None
            or task.status is not TaskStatus.QUEUED
            or task.started_at is not None
            or task.generation > 0  # an operator replays a task with the parameters that it had
        ):
            return None
        replaced = task.evolve(parameters=self.parameters, parameters_hash=self.parameters_hash)
        due = min(now + self.wait, task.created_at + task.debounce.longest)
        if due > task.not_before:
            replaced = claimable_at(replaced, TaskStatus.QUEUED, due).evolve(start_by=start_by(task.start_limit, due))
        return with_event(replaced, "replaced", now)
