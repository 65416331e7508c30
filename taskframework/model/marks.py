"""Transitions that only move a driver: when to dispatch again, when to relay again. They are hints and tell nobody."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Protocol

from taskframework.model.status import CLAIMABLE
from taskframework.model.task import Task
from taskframework.model.transitions import Group

MAX_DOUBLINGS = 16


def redispatch_delay(dispatches: int, first: timedelta, longest: timedelta) -> timedelta:
    """How long a published message has before its task is due again: doubling, so that a backlog is never flooded."""
    doublings: int = 2 ** min(dispatches, MAX_DOUBLINGS)
    return min(first * doublings, longest)


class Mark(Protocol):
    """A write that nobody waits to read: it either still applies or is not needed any more."""

    @property
    def task_id(self) -> str: ...

    def apply(self, task: Task, now: datetime) -> Task | None: ...


@dataclass(frozen=True, slots=True)
class MarkDispatched:
    """A message of this epoch is with the broker: the sweeper leaves the task alone for a while."""

    task_id: str
    dispatch_epoch: int
    first: timedelta
    longest: timedelta
    #: When the task was due as the message was sent. If that has changed, somebody knows better: the message was handed
    #: over, or another one was sent. None does not look.
    due: datetime | None = None

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.status not in CLAIMABLE or task.dispatch_epoch != self.dispatch_epoch:
            return None
        if self.due is not None and task.next_dispatch_at != self.due:
            return None
        wait = redispatch_delay(task.dispatches, self.first, self.longest)
        return task.evolve(next_dispatch_at=max(now, task.not_before) + wait, dispatches=task.dispatches + 1)


@dataclass(frozen=True, slots=True)
class ReserveDispatch:
    """The same mark before a publication, on a task that is due: of several sweepers one wins.

    Made without a publication, it leaves the task alone for as long as a message would.
    """

    group: ClassVar[Group] = "single"
    task_id: str
    dispatch_epoch: int
    first: timedelta
    longest: timedelta

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.next_dispatch_at is None or task.next_dispatch_at > now or task.not_before > now:
            return None
        return MarkDispatched(self.task_id, self.dispatch_epoch, self.first, self.longest).apply(task, now)

    def dispatched_at(self, next_dispatch_at: datetime, dispatches: int) -> datetime:
        """When a task with this due time and so many dispatches was marked last."""
        return next_dispatch_at - redispatch_delay(dispatches - 1, self.first, self.longest)

    def won(self, task: Task) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class MakeDue:
    """A message of this epoch is gone and nobody claimed: the sweeper sends another one, after `delay` at most."""

    task_id: str
    dispatch_epoch: int
    delay: timedelta = timedelta(0)

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.status not in CLAIMABLE or task.dispatch_epoch != self.dispatch_epoch:
            return None
        due = now + self.delay
        return task.evolve(next_dispatch_at=min(due, task.next_dispatch_at or due), dispatches=0)


@dataclass(frozen=True, slots=True)
class MarkPublished:
    """Every event up to `sequence` is confirmed by the events exchange. Marks only grow."""

    task_id: str
    sequence: int

    def apply(self, task: Task, now: datetime) -> Task | None:
        if self.sequence <= task.published_sequence:
            return None
        return task.evolve(
            published_sequence=min(self.sequence, task.sequence),
            publish_at=None if self.sequence >= task.sequence else task.publish_at,
        )


@dataclass(frozen=True, slots=True)
class PostponeRelay:
    """A relay is about to publish this task's events: the others leave it alone until `publish_at` again."""

    task_id: str
    delay: timedelta

    def apply(self, task: Task, now: datetime) -> Task | None:
        return None if task.publish_at is None else task.evolve(publish_at=now + self.delay)
