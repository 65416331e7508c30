"""Rules that only move a driver: when to dispatch again, when to relay again, until when a lease is valid.

They make no event and no new revision.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar, Protocol

from taskframework.model.drivers import DISPATCH, START, Driver
from taskframework.model.status import CLAIMABLE, FINAL, TaskStatus
from taskframework.model.subtasks import Counts
from taskframework.model.task import Task
from taskframework.model.task_fields import LimitWait
from taskframework.model.transitions import Fence, Group, UngroupedWrite

#: The delay between two messages doubles at most this often, so that the number stays small enough to compute with.
MAX_DOUBLINGS = 16


def redispatch_delay(dispatches: int, first: timedelta, longest: timedelta) -> timedelta:
    """How long after a message its task is due again. The time doubles, so that a backlog does not flood the broker."""
    doublings: int = 2 ** min(dispatches, MAX_DOUBLINGS)
    return min(first * doublings, longest)


class Mark(Protocol):
    """A write whose result nobody reads: it either still applies or is not needed any more."""

    #: As in `Transition`.
    reply_failpoint: ClassVar[str]

    @property
    def task_id(self) -> str: ...

    def apply(self, task: Task, now: datetime) -> Task | None: ...


@dataclass(frozen=True, slots=True)
class MarkDispatched:
    """A message of this epoch is with the broker: the sweeper leaves the task alone for a while."""

    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    dispatch_epoch: int
    first: timedelta
    longest: timedelta
    #: The due time of the task when the message was sent. If the task has another due time now, the mark is void:
    #: the message was handed back, or another message was sent. None: the due time is not checked.
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
    """A sweeper is about to publish a message for a task that is due: of several sweepers one wins.

    It changes the same fields as `MarkDispatched`, but is a transition, because the winner needs to read the task.
    """

    group: ClassVar[Group] = "reserve"
    reply_failpoint: ClassVar[str] = "reserve.reply"
    task_id: str
    dispatch_epoch: int
    first: timedelta
    longest: timedelta

    def apply(self, task: Task, now: datetime) -> Task | None:
        if not DISPATCH.is_due(task, now):
            return None
        return MarkDispatched(self.task_id, self.dispatch_epoch, self.first, self.longest).apply(task, now)

    def dispatched_at(self, next_dispatch_at: datetime, dispatches: int) -> datetime:
        """When the last mark was made that left a task with this due time and this number of dispatches."""
        return next_dispatch_at - redispatch_delay(dispatches - 1, self.first, self.longest)

    def was_applied(self, task: Task) -> bool:
        """Return whether some sweeper has won. If it was another sweeper, a second message is sent, and dropped."""
        return task.status in CLAIMABLE and task.dispatch_epoch == self.dispatch_epoch and task.dispatches > 0


@dataclass(frozen=True, slots=True)
class MakeDue:
    """The message of this epoch is used up and nobody claimed the task: the sweeper sends a new message after `delay`.

    With a delay the task is put off: until then it does not wait for a worker, and its queue timeout does not run. Only
    if the broker refused its message, the task does wait for a worker.
    """

    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    dispatch_epoch: int
    delay: timedelta = timedelta(0)
    #: The id of the limit, if a limit is the reason. The turn of the task comes when the task is due.
    limit: str | None = None
    #: The due time that was read. If the task has another due time now, a message was sent, and the mark is void.
    due: datetime | None = None
    was_refused: bool = False

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.status not in CLAIMABLE or task.dispatch_epoch != self.dispatch_epoch:
            return None
        if self.due is not None and task.next_dispatch_at != self.due:
            return None
        due = now + self.delay
        turn = task.waits_for_limit if self.limit is None else LimitWait(self.limit, self.dispatch_epoch, due)
        start_by = _start_by_after(due, task) if self.delay and not self.was_refused else task.start_by
        return task.evolve(next_dispatch_at=due, dispatches=0, waits_for_limit=turn, start_by=start_by)


def _start_by_after(time: datetime, task: Task) -> datetime | None:
    """The latest start of a task that a limit holds back until a time. The task waits for a worker only after that."""
    if task.start_by is None or task.start_limit is None or task.start_limit.counts_limits:
        return task.start_by
    return max(task.start_by, time + task.start_limit.time)


@dataclass(frozen=True, slots=True)
class RestartQueueTimeout:
    """A limit, or a pause of its type, held the task back until now: its queue timeout begins again."""

    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str

    def apply(self, task: Task, now: datetime) -> Task | None:
        if START.time_of(task) is None:
            return None
        return task.evolve(start_by=_start_by_after(now, task))


@dataclass(frozen=True, slots=True)
class ForgetDispatch:
    """The message that was sent is known to be lost: the task is due at its `not_before` again."""

    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str

    def apply(self, task: Task, now: datetime) -> Task | None:
        due = DISPATCH.time_of(task)
        if due is None or due <= task.not_before:
            return None
        return task.evolve(next_dispatch_at=task.not_before, dispatches=0)


@dataclass(frozen=True, slots=True)
class EndPutOff:
    """What a task was put off for is over. A task with a message is left alone: it would get a second one."""

    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    #: When the task is due, which may be before its `not_before`: sweepers send the tasks in the order of these times.
    due: datetime

    def apply(self, task: Task, now: datetime) -> Task | None:
        present = DISPATCH.time_of(task)
        due = self.due if task.not_before <= now else task.not_before
        if present is None or task.dispatches or present <= due:
            return None
        return task.evolve(next_dispatch_at=due)


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Renew a held lease. Even a late renewal is safe as long as no process has reaped the task."""

    reply_failpoint: ClassVar[str] = "renew.reply"
    fence: Fence
    lease: timedelta

    @property
    def task_id(self) -> str:
        return self.fence.task_id

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.lease is None or not self.fence.holds(task):
            return None
        return task.evolve(lease=replace(task.lease, expires_at=now + self.lease))


@dataclass(frozen=True, slots=True)
class MarkPublished:
    """The broker has confirmed every event up to `sequence`; if one of them ended a sub-task, the parent counted it.
    `published_sequence` only grows.
    """

    reply_failpoint: ClassVar[str] = "mark.reply"
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
    """A relay is about to publish this task's events: other relays leave the task alone for `delay`.

    This is a transition, because the relay publishes the events of the task that the write returns.
    """

    group: ClassVar[Group] = "reserve"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    delay: timedelta

    def apply(self, task: Task, now: datetime) -> Task | None:
        return None if task.publish_at is None else task.evolve(publish_at=now + self.delay)

    def was_applied(self, task: Task) -> bool:
        """Return whether events are left to publish. Another relay may publish them too; readers drop duplicates."""
        return task.publish_at is not None


@dataclass(frozen=True, slots=True)
class MoveDriver(UngroupedWrite):
    """Move the time of a driver if it is still the time that was read: of several processes one does the work.

    This is a transition, because the winner needs to read the task. After a lost reply, the task is due again later.
    """

    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    driver: Driver
    #: The time that was read.
    due: datetime
    #: How long other processes leave the task alone; None: the work is done, and nothing is due any more.
    delay: timedelta | None

    def apply(self, task: Task, now: datetime) -> Task | None:
        if getattr(task, self.driver.field) != self.due:
            return None
        return task.evolve(**{self.driver.field: None if self.delay is None else now + self.delay})


@dataclass(frozen=True, slots=True)
class MarkSpawned:
    """Every sub-task of a round is stored. If the parent no longer waits for them, they are to be cancelled: it may
    have begun another round while the process that stored them was suspended.
    """

    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    generation: int
    round: int

    def apply(self, task: Task, now: datetime) -> Task | None:
        subtasks = task.subtasks
        if subtasks is None:
            return None
        if (task.generation, subtasks.round) != (self.generation, self.round):
            return task.evolve(cascade_at=now)
        is_left = subtasks.is_open and not _is_waiting(task)
        return task.evolve(
            spawn_at=None,
            subtasks=replace(subtasks, plan=None, plan_records=0),
            cascade_at=now if is_left else task.cascade_at,
        )


@dataclass(frozen=True, slots=True)
class CascadeAgain:
    """Cancel sub-tasks that may have been stored or replayed after their parent stopped waiting for them.

    The process that stored or replayed them makes this mark if it notices this too late. The cascade looks for such
    sub-tasks by itself too, but only for a minute, and a process may be suspended for longer than a minute.
    """

    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    #: The round to which these sub-tasks belong.
    generation: int
    round: int

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.subtasks is None:
            return None
        is_newest = (task.generation, task.subtasks.round) == (self.generation, self.round)
        return None if is_newest and _is_waiting(task) else task.evolve(cascade_at=now)


@dataclass(frozen=True, slots=True)
class CountAgain:
    """A sub-task is live again: a count that began earlier does not include it, and must not end the parent."""

    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.subtasks is None or not _is_waiting(task):
            return None
        anew = replace(task.subtasks, report_serial=task.subtasks.report_serial + 1)
        return task.evolve(subtasks=anew, check_at=now)


@dataclass(frozen=True, slots=True)
class CountAfterEnd:
    """Sub-tasks that a parent left behind when it ended are over now: lists show its counts as they are in the end."""

    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    generation: int
    round: int
    counts: Counts

    def apply(self, task: Task, now: datetime) -> Task | None:
        subtasks = task.subtasks
        if subtasks is None or task.status not in FINAL:
            return None
        if (task.generation, subtasks.round) != (self.generation, self.round):
            return None
        if subtasks.done >= self.counts.done:
            return None  # another process has counted later
        return task.evolve(subtasks=replace(subtasks, done=self.counts.done, **asdict(self.counts)))


def _is_waiting(parent: Task) -> bool:
    """Return whether the parent waits for its newest round of sub-tasks."""
    return parent.status is TaskStatus.WAITING and parent.subtasks is not None and parent.subtasks.is_awaited
