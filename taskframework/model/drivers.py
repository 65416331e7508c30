"""The drivers: which field of a task makes some process continue the task, and when.

Each driver is defined once, here, as data. The due queries of both stores, the columns of SQLite, the indexes of
MongoDB, the count of undriven tasks and `doctor` derive from it; `docs/adding/driver.md` says how to add a driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, cached_property
from operator import attrgetter

from taskframework.model.status import CLAIMABLE, LIVE, TaskStatus
from taskframework.model.task import Task

_ANY_STATUS = frozenset(TaskStatus)


@dataclass(frozen=True)
class Driver:
    """A field with a time. After that time, a repair finds the task by this field."""

    #: Its name in messages.
    name: str
    #: The field of a task that holds the time; a dot leads into a record inside the task.
    field: str
    #: Its index in MongoDB.
    index: str
    #: The statuses in which the time counts.
    statuses: frozenset[TaskStatus]
    #: The statuses in which a task without this time is undriven: no process would ever continue it.
    needed_in: frozenset[TaskStatus]
    #: Two fields with numbers: in `needed_in` the time is needed only while the first number is lower. None: always.
    needed_while_below: tuple[str, str] | None = None
    #: A field that must be null: while it has a value, the time does not count. None: no such field.
    unless: str | None = None
    #: A field with another time that must have passed as well. None: no such field.
    also_passed: str | None = None
    #: Whether every task has this time at some moment. SQLite writes the column of any other driver only for tasks that
    #: have its time.
    is_usual: bool = False

    @cached_property
    def covers_every_status(self) -> bool:
        """Whether the time counts in every status."""
        return self.statuses == _ANY_STATUS

    @cached_property
    def is_always_needed(self) -> bool:
        """Whether no task in `statuses` may be without this time."""
        return self.needed_in == self.statuses and self.needed_while_below is None

    def time_of(self, task: Task) -> datetime | None:
        """When this driver is due for a task; None if it does not drive the task."""
        time = self._time_in(task)  # the first check, because most tasks have no time for most drivers
        if time is None or task.status not in self.statuses or (self.unless and getattr(task, self.unless) is not None):
            return None
        return time

    def is_due(self, task: Task, now: datetime, grace: timedelta = timedelta(0)) -> bool:
        """Return whether the time passed more than `grace` ago, and the second time (`also_passed`), if any, passed."""
        due = self.time_of(task)
        also_passed = self.also_passed is None or getattr(task, self.also_passed) <= now
        return due is not None and due <= now - grace and also_passed

    def is_missing(self, task: Task) -> bool:
        """Return whether the task needs this time and does not have it."""
        if task.status not in self.needed_in or self._time_in(task) is not None:
            return False
        if self.needed_while_below is None:
            return True
        number, goal = self.needed_while_below
        return bool(getattr(task, number) < getattr(task, goal))

    # Made once for each driver, because SQLite needs every time with each write.
    @cached_property
    def _time_in(self) -> Callable[[Task], datetime | None]:
        record, _, field = self.field.rpartition(".")
        return (lambda task: getattr(getattr(task, record), field, None)) if record else attrgetter(field)


#: The sweeper sends a message for the task.
DISPATCH = Driver(
    name="dispatch",
    field="next_dispatch_at",
    index="due",
    statuses=CLAIMABLE,
    needed_in=CLAIMABLE,
    also_passed="not_before",
    is_usual=True,
)
#: The reaper takes the task from a worker that stopped renewing its lease.
LEASE = Driver(
    name="lease",
    field="lease.expires_at",
    index="lease",
    statuses=frozenset({TaskStatus.RUNNING}),
    needed_in=frozenset({TaskStatus.RUNNING}),
    is_usual=True,
)
#: A task past its deadline is ended, or asked to stop.
DEADLINE = Driver(
    name="deadline", field="deadline", index="deadline", statuses=LIVE, needed_in=frozenset(), unless="cancel"
)
#: The relay publishes the events that are not known to be published.
OUTBOX = Driver(
    name="outbox",
    field="publish_at",
    index="publish",
    statuses=_ANY_STATUS,
    needed_in=LIVE,
    needed_while_below=("published_sequence", "sequence"),
    is_usual=True,
)

#: A task that no worker began in time is ended.
START = Driver(
    name="start",
    field="start_by",
    index="start",
    statuses=frozenset({TaskStatus.QUEUED}),
    needed_in=frozenset(),
    unless="started_at",
)
#: The sub-tasks that a task planned have yet to be stored.
SPAWN = Driver(
    name="spawn",
    field="spawn_at",
    index="spawn",
    statuses=frozenset({TaskStatus.WAITING}),
    needed_in=frozenset(),
)
#: A repair looks at a waiting task: its signal may be there or late, or its sub-tasks may have to be counted.
CHECK = Driver(
    name="check",
    field="check_at",
    index="check",
    statuses=frozenset({TaskStatus.WAITING}),
    needed_in=frozenset({TaskStatus.WAITING}),
)
#: Sub-tasks that no parent waits for any more are cancelled.
CASCADE = Driver(name="cascade", field="cascade_at", index="cascade", statuses=_ANY_STATUS, needed_in=frozenset())
#: The upload of a batch should have been finished by now: the batch is cancelled.
SEAL = Driver(
    name="seal", field="seal_by", index="seal", statuses=frozenset({TaskStatus.WAITING}), needed_in=frozenset()
)
#: The sub-tasks of a batch that did not succeed have yet to be replayed.
RETRY = Driver(
    name="retry", field="retry_at", index="retry", statuses=frozenset({TaskStatus.WAITING}), needed_in=frozenset()
)

#: A repair looks whether the turn of a blocked task has come.
UNBLOCK = Driver(
    name="unblock",
    field="unblock_at",
    index="unblock",
    statuses=frozenset({TaskStatus.BLOCKED}),
    needed_in=frozenset({TaskStatus.BLOCKED}),
)

DRIVERS: tuple[Driver, ...] = (DISPATCH, LEASE, DEADLINE, START, OUTBOX, SPAWN, CHECK, CASCADE, SEAL, RETRY, UNBLOCK)


def missing_drivers(task: Task) -> list[Driver]:
    """The drivers that this task needs and does not have. If there is one, the task is undriven."""
    return [driver for driver in _needed_in(task.status) if driver.is_missing(task)]


@cache
def _needed_in(status: TaskStatus) -> tuple[Driver, ...]:
    return tuple(driver for driver in DRIVERS if status in driver.needed_in)
