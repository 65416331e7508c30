"""The moves of tasks in ordered streams: let go, skipped, moved to a later position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar

from taskframework.model.options import StreamPlace
from taskframework.model.status import LIVE, TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import Alone, Group, claimable_at, with_event

#: How long a task that waits for its turn is left alone. Its submission, and the end of the task before it, are not
#: marked as published before somebody has looked, so a relay sees within seconds to what a dead process left. This is
#: for what nobody foresaw, and costs a stream of a hundred thousand tasks little.
LOOK_AGAIN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Skip(Alone):
    """A live task had no result in time: those who read the results of its stream go on without it. It runs on."""

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
    """BLOCKED → QUEUED: the task has the turn of its stream, in this generation."""

    group: ClassVar[Group] = "claim"
    failpoint: ClassVar[str] = "unblock.after_write"
    task_id: str
    generation: int
    dispatch_after: timedelta

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.status is not TaskStatus.BLOCKED or task.generation != self.generation:
            return None
        queued = claimable_at(task, TaskStatus.QUEUED, max(task.not_before, now), self.dispatch_after)
        return with_event(queued.evolve(unblock_at=None), "unblocked", now)

    def won(self, task: Task) -> bool:
        """Another process that passed on the same turn may have been the one: that costs a message."""
        return task.generation == self.generation and task.status is TaskStatus.QUEUED


@dataclass(frozen=True, slots=True)
class MovePosition(Alone):
    """A task that came too late for its position, which is given up, has a later one. Nobody is told."""

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
    """A task that was just queued anew, as its stream wants it: BLOCKED at its old position if that is serial."""
    place = queued.stream
    if place is None:
        return queued
    queued = queued.evolve(stream=replace(place, is_skipped=False))
    if place.mode != "serial":
        return queued
    return queued.evolve(status=TaskStatus.BLOCKED, next_dispatch_at=None, unblock_at=now + LOOK_AGAIN)
