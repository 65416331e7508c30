"""The moves of tasks in ordered streams: unblocked, skipped, moved to a later position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar

from taskframework.model.options import StreamPlace, start_by
from taskframework.model.status import LIVE, TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import Alone, Group, claimable_at, with_event

#: How long after a look a BLOCKED task is looked at again. What a process that died left undone is found within seconds
#: by a relay: neither the submission of a task nor the end of the one before it is marked as published until somebody
#: has looked whose turn it is. This is for what nobody foresaw, so the time is long: a stream may have 100,000 tasks.
LOOK_AGAIN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Skip(Alone):
    """A live task had no result in time: readers of its stream go on without the result. The task itself goes on."""

    failpoint: ClassVar[str] = "skip.after_write"
    task_id: str
    #: When its time is over.
    due: datetime

    def apply(self, task: Task, now: datetime) -> Task | None:
        place = task.stream
        if place is None or place.is_skipped or task.status not in LIVE or now < self.due:
            return None
        return skipped(task, place, now)


@dataclass(frozen=True, slots=True)
class Unblock:
    """BLOCKED → QUEUED: the task has the turn of its stream, in this generation. Its queue timeout begins now."""

    group: ClassVar[Group] = "claim"
    failpoint: ClassVar[str] = "unblock.after_write"
    task_id: str
    generation: int
    dispatch_after: timedelta

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.status is not TaskStatus.BLOCKED or task.generation != self.generation:
            return None
        due = max(task.not_before, now)
        queued = claimable_at(task, TaskStatus.QUEUED, due, self.dispatch_after)
        began = queued.evolve(unblock_at=None, start_by=start_by(task.start_limit, due))
        return with_event(began, "unblocked", now)

    def won(self, task: Task) -> bool:
        """It may have been another process that passed on the same turn; then a second message is sent, and dropped."""
        return task.generation == self.generation and task.status is TaskStatus.QUEUED


@dataclass(frozen=True, slots=True)
class MovePosition(Alone):
    """Gives a task a later position, because it was stored when its own was given up already. No event tells of it."""

    failpoint: ClassVar[str] = "move_position.after_write"
    task_id: str
    before: int
    after: int

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.stream is None or task.stream.position != self.before:
            return None
        return task.evolve(stream=replace(task.stream, position=self.after), revision=task.revision + 1)


def without_its_stream(task: Task, now: datetime) -> Task:
    """The task that is about to be ended by its deadline; its history says that its stream goes on without it."""
    place = task.stream
    if place is None or place.is_skipped or (place.mode == "serial" and task.status is TaskStatus.RUNNING):
        return task
    return skipped(task, place, now).evolve(revision=task.revision)  # the event that follows raises it


def skipped(task: Task, place: StreamPlace, now: datetime) -> Task:
    """The task after its stream went on without it."""
    passed = task.evolve(stream=replace(place, is_skipped=True))
    return with_event(passed, "skipped", now, data={"stream": place.key, "position": place.position})


def blocked_again(queued: Task, now: datetime) -> Task:
    """A task that was just queued anew; one of a serial stream is BLOCKED instead, at its old position."""
    place = queued.stream
    if place is None:
        return queued
    queued = queued.evolve(stream=replace(place, is_skipped=False))
    if place.mode != "serial":
        return queued
    return queued.evolve(status=TaskStatus.BLOCKED, next_dispatch_at=None, unblock_at=now + LOOK_AGAIN)
