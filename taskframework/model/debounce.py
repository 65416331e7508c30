"""Submissions of one key that share a task: debounced ones its newest parameters, throttled ones the first of a period.

The record of a debounced key names the task of its present window. It is written before that task is stored, as that of
an idempotency key is, so whoever finds it without its task stores the task under the same id. From then on each
submission replaces the parameters of the task by one guarded write, which a claim excludes: what a submission gave is
what the task runs with, or something newer. `tests/models/debounce.pml` is this protocol.

A throttled key needs no record: the id of its task says which period it is of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar
from uuid import NAMESPACE_OID, uuid5

from taskframework.model.idempotency import GRACE
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
        kept: how long the record is kept after the time at which the task can begin, at the least.
    """
    content = Window(task.task_id, task.created_at)
    return WINDOWS.with_id(window_id(task, key), there, content, expires_at=task.not_before + kept + GRACE)


def may_be_stored_late(window: Window, now: datetime) -> bool:
    """Whether the task of a window that is not there has yet to be stored; later it is one that was deleted."""
    return now - window.opened_at < GRACE


def throttled_id(user_id: str, task_type: str, key: str, every: timedelta, now: datetime) -> str:
    """The id of the one task of this key and the present period. Periods count from 1970 on, not from the first one."""
    period = int(now.timestamp() * 1000) // (every // timedelta(milliseconds=1))
    return str(uuid5(NAMESPACE_OID, f"{_THROTTLED.id_of(user_id, task_type, key)}/{every}/{period}"))


@dataclass(frozen=True, slots=True)
class ReplaceParameters(Alone):
    """A debounced task that nobody has begun gets newer parameters, and waits for longer, up to its `max_wait`."""

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
            start_by = None if task.start_limit is None else due + task.start_limit.time
            replaced = claimable_at(replaced, TaskStatus.QUEUED, due).evolve(start_by=start_by)
        return with_event(replaced, "replaced", now)
