"""Which tasks and messages an action on many includes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from taskframework.model.letters import LetterFilter
from taskframework.model.message import rfc3339
from taskframework.model.query import TaskFilter
from taskframework.model.status import DEAD, LIVE, REPLAYABLE, TaskStatus
from taskframework.model.task import Task


class Action(StrEnum):
    """What is done with each task or message."""

    REPLAY = "replay"
    DISCARD = "discard"
    RETRY = "retry"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFilter:
    """Which tasks and messages are chosen; None means any. `text` is a part of the message of the error, or of the
    reason why a message was kept.
    """

    task_type: str | None = None
    user_id: str | None = None
    fingerprint: str | None = None
    text: str | None = None
    #: A task that ended, or a message that came, at the first time or later, and before the second time.
    finished_after: datetime | None = None
    finished_before: datetime | None = None
    #: Only for actions on dead letters.
    kind: str | None = None
    #: Only for actions on tasks.
    status: TaskStatus | None = None
    parent_task_id: str | None = None
    stream: str | None = None
    waits_for_limit: str | None = None
    #: A task that was submitted at the first time or later, and before the second time.
    created_after: datetime | None = None
    created_before: datetime | None = None

    @property
    def conditions(self) -> dict[str, str]:
        """The given conditions, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _condition_text(value) for name, value in values.items() if value is not None}

    @property
    def letter_filter(self) -> LetterFilter:
        """The filter for dead letters with these conditions."""
        kind: Any = self.kind
        return LetterFilter(
            kind=kind,
            task_type=self.task_type,
            fingerprint=self.fingerprint,
            text=self.text,
            finished_after=self.finished_after,
            finished_before=self.finished_before,
        )


def _condition_text(value: str | datetime) -> str:
    return str(value) if isinstance(value, str) else rfc3339(value)


#: The statuses in the order in which a cancel goes through them. A task usually moves from one of them to a later one.
#: The second round finds the tasks that moved back in the meantime.
_CANCELLED_IN_ORDER = (
    TaskStatus.BLOCKED,
    TaskStatus.WAITING,
    TaskStatus.QUEUED,
    TaskStatus.RETRYING,
    TaskStatus.RUNNING,
) * 2


def possible_statuses(action: Action) -> tuple[TaskStatus, ...]:
    """The statuses of the tasks with which the action can be done."""
    possible = {Action.CANCEL: LIVE, Action.RETRY: REPLAYABLE | {TaskStatus.RETRYING}}.get(action, DEAD)
    return tuple(status for status in TaskStatus if status in possible)


def lists_of(action: Action, where: ActionFilter, at: datetime) -> tuple[TaskFilter, ...]:
    """The lists of tasks that an action which began at a time goes through, one after the other."""
    if action in (Action.REPLAY, Action.DISCARD):
        return () if where.kind == "message" else (where.letter_filter.task_filter(at),)
    statuses = _CANCELLED_IN_ORDER if action is Action.CANCEL else tuple(sorted(DEAD))
    created_before = where.created_before
    if action is Action.CANCEL:  # tasks that were submitted after it began are left alone
        begun = at + timedelta(milliseconds=1)  # times are whole milliseconds, and the bound itself is not chosen
        created_before = begun if created_before is None else min(created_before, begun)
    return tuple(
        TaskFilter(
            status,
            where.task_type,
            where.parent_task_id,
            where.stream,
            fingerprint=where.fingerprint,
            error=where.text,
            waits_for_limit=where.waits_for_limit,
            created_after=where.created_after,
            created_before=created_before,
            finished_after=where.finished_after,
            finished_before=where.finished_before,
        )
        for status in ([where.status] if where.status is not None else statuses)
    )


def includes_messages(action: Action, where: ActionFilter) -> bool:
    """Return whether kept messages follow after the tasks."""
    return action is Action.DISCARD and where.kind != "task" and where.user_id is None


def is_wanted(action: Action, task: Task) -> bool:
    """Return whether an action on many includes a task of its lists. A discarded task is retried by its id alone."""
    return action is not Action.RETRY or task.discarded is None
