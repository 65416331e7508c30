"""The moves of tasks in ordered streams: unblocked, skipped, moved to a later position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar

from taskframework.model.attempts import Claim
from taskframework.model.options import StreamPlace, start_by
from taskframework.model.status import LIVE, TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import Group, UngroupedWrite, claimable_at, with_event

#: How long after a check a BLOCKED task is checked again. If a process dies before it passes the turn on, a relay does
#: so within seconds: neither the submission of a task nor the end of the task before it is marked as published until a
#: process has checked which task has the turn. So this check is only for unforeseen cases, and the time is long because
#: a stream may have 100,000 tasks.
UNBLOCK_CHECK_INTERVAL = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Skip(UngroupedWrite):
    """A live task had no result in time: readers of its stream continue without the result. The task continues."""

    failpoint: ClassVar[str] = "skip.after_write"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    #: By when the task must have a result.
    due: datetime

    def apply(self, task: Task, now: datetime) -> Task | None:
        place = task.stream
        if place is None or place.is_skipped or task.status not in LIVE or now < self.due:
            return None
        return skipped(task, place, now)


@dataclass(frozen=True, slots=True)
class Unblock:
    """BLOCKED → QUEUED: the task has the turn of its stream, in this generation. Its queue timeout begins now."""

    group: ClassVar[Group] = "unblock"
    failpoint: ClassVar[str] = "unblock.after_write"
    reply_failpoint: ClassVar[str] = "mark.reply"
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

    def was_applied(self, task: Task) -> bool:
        """Return whether the task is queued. If another process did it, a second message is sent, and dropped.

        A task that was unblocked and cancelled since then counts as refused: it needs no message.
        """
        return task.generation == self.generation and task.status is TaskStatus.QUEUED


@dataclass(frozen=True, slots=True)
class ClaimTurn:
    """BLOCKED → RUNNING: `Unblock` and `Claim` in one write, by a worker with a free slot that passed the turn on.

    The worker has not read the task. So the write is refused if the task is of another type or priority than the one
    before it, or is one that an admission check has to look at; such a task is unblocked and gets a message.
    """

    group: ClassVar[Group] = "claim"
    failpoint: ClassVar[str] = "claim.after_write"
    reply_failpoint: ClassVar[str] = "claim.reply"
    task_id: str
    generation: int
    claim_id: str
    worker_id: str
    lease: timedelta
    task_type: str
    priority: str

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.priority != self.priority or task.unique is not None or task.crashes > 0 or task.not_before > now:
            return None
        queued = Unblock(self.task_id, self.generation, timedelta(0)).apply(task, now)
        if queued is None:
            return None
        claim = Claim(self.task_id, queued.dispatch_epoch, self.claim_id, self.worker_id, self.lease, self.task_type)
        return claim.apply(queued.evolve(revision=task.revision), now)  # the claim raises it

    def was_applied(self, task: Task) -> bool:
        return task.lease is not None and task.lease.claim_id == self.claim_id


@dataclass(frozen=True, slots=True)
class MovePosition(UngroupedWrite):
    """Give a task a later position, because its own position had been given up before it was stored. Makes no event."""

    failpoint: ClassVar[str] = "move_position.after_write"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    before: int
    after: int

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.stream is None or task.stream.position != self.before:
            return None
        return task.evolve(stream=replace(task.stream, position=self.after), revision=task.revision + 1)


def skipped_in_stream(task: Task, now: datetime) -> Task:
    """A task whose deadline is about to end it; its history says that its stream continues without it."""
    place = task.stream
    if place is None or place.is_skipped or (place.mode == "serial" and task.status is TaskStatus.RUNNING):
        return task
    return skipped(task, place, now).evolve(revision=task.revision)  # the event that follows raises it


def skipped(task: Task, place: StreamPlace, now: datetime) -> Task:
    """The task after its stream has continued without it."""
    passed = task.evolve(stream=replace(place, is_skipped=True))
    return with_event(passed, "skipped", now, data={"stream": place.key, "position": place.position})


def blocked_if_serial(queued: Task, now: datetime) -> Task:
    """A task that was just replayed. In a serial stream it is BLOCKED instead of QUEUED, at its old position."""
    place = queued.stream
    if place is None:
        return queued
    queued = queued.evolve(stream=replace(place, is_skipped=False))
    if place.mode != "serial":
        return queued
    return queued.evolve(status=TaskStatus.BLOCKED, next_dispatch_at=None, unblock_at=now + UNBLOCK_CHECK_INTERVAL)
