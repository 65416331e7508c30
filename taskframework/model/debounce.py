"""Submissions of one key that share a task. Debounced: it runs with the newest parameters. Throttled: one for each
period, the first.

The record of a debounced key names the task of the present window. Like that of an idempotency key it is written before
the task is stored, so whoever finds the record without its task stores the task under the same id. After that, each
submission replaces the parameters of the task by one guarded write, which is refused once the task was claimed. So the
task runs with the parameters of each accepted submission, or with newer ones. `tests/models/debounce.pml` is this
protocol.

A throttled key needs no record: the id of a task is made of the key and the period.
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
from taskframework.model.transitions import Alone, claimable_at, with_event
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


def window_of(task: Task, key: str, there: Record | None, kept: timedelta) -> Record:
    """The record that names this task, which is about to be stored.

    Args:
        task: the first one of its window.
        key: of the submission.
        there: the record that was read; None if there was none.
        kept: how long the record is kept at least, from the time on at which the task can begin.
    """
    content = Window(task.task_id, task.created_at)
    return WINDOWS.with_id(window_id(task, key), there, content, expires_at=task.not_before + kept + GRACE)


def may_be_stored_late(window: Window, now: datetime) -> bool:
    """Whether a task of a window that is missing may still be about to be stored; later it must have been deleted."""
    return now - window.opened_at < GRACE


def throttled_id(user_id: str, task_type: str, key: str, every: timedelta, now: datetime) -> str:
    """The id of the one task of this key and the present period. Periods count from 1970 on, not from the first one."""
    period = int(now.timestamp() * 1000) // (every // timedelta(milliseconds=1))
    return str(uuid5(NAMESPACE_OID, f"{_THROTTLED.id_of(user_id, task_type, key)}/{every}/{period}"))


@dataclass(frozen=True, slots=True)
class ReplaceParameters(Alone):
    """A debounced task that has not begun gets newer parameters and waits anew, in all no longer than `max_wait`."""

    failpoint: ClassVar[str] = "debounce.after_replace"
    task_id: str
    parameters: Json = field(repr=False)
    parameters_hash: str
    wait: timedelta

    def apply(self, task: Task, now: datetime) -> Task | None:
        if (
            task.debounce is None
            or task.status is not TaskStatus.QUEUED
            or task.started_at is not None
            or task.generation > 0  # what an operator replays is what there was
        ):
            return None
        replaced = task.evolve(parameters=self.parameters, parameters_hash=self.parameters_hash)
        due = min(now + self.wait, task.created_at + task.debounce.longest)
        if due > task.not_before:
            replaced = claimable_at(replaced, TaskStatus.QUEUED, due).evolve(start_by=start_by(task.start_limit, due))
        return with_event(replaced, "replaced", now)
