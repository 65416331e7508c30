"""Schedules: a record for each, and the pure rules of what is to be done when its time has come.

A process that sees a schedule due submits a task with an idempotency key that names the schedule and the time, and then
moves the schedule on by compare and set. So only one of several processes moves it, and after a crash between the two
the same submission is made again, which finds its task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice

from taskframework.clock import whole_milliseconds
from taskframework.model.message import rfc3339
from taskframework.model.records import RecordKind
from taskframework.model.recurrence import Cron, Interval, Recurrence, latest
from taskframework.model.values import Json, fingerprint

#: How many schedules an installation may have: each look reads them all.
MAX_SCHEDULES = 1_000
#: Whose tasks are submitted where a schedule does not say.
DEFAULT_USER = "scheduler"
#: How late a run may be without counting as missed, for example because of a restart or a busy store.
ON_TIME = timedelta(minutes=1)
_ZERO = timedelta(0)


class Missed(StrEnum):
    """What is done about the times that passed while nothing ran."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Overlap(StrEnum):
    """What is done when the task of the last run is not over."""

    ALLOW = "allow"
    SKIP = "skip"
    CANCEL_PREVIOUS = "cancel_previous"


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest run: the time it was for, and its task."""

    at: datetime
    task_id: str


@dataclass(frozen=True, slots=True)
class RunProblem:
    """Why the newest run could not be submitted."""

    at: datetime
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What is submitted when. Times are in UTC, in whole milliseconds."""

    name: str
    task_type: str
    parameters: Json = None
    user_id: str = DEFAULT_USER
    #: One of the two is given.
    cron: str | None = None
    every: timedelta | None = None
    #: Of the cron expression.
    timezone: str = "UTC"
    missed: Missed = Missed.ONCE
    overlap: Overlap = Overlap.ALLOW
    #: The longest time by which a run is put off, so that many schedules for one time do not run at the same moment.
    jitter: timedelta = _ZERO
    is_paused: bool = False
    #: Made from the settings, and changed and deleted there alone.
    is_from_settings: bool = False
    #: Since when it has its present rule; intervals are counted from here.
    since: datetime
    #: The time of the next run by the rule, and that time with its jitter.
    next_at: datetime
    due_at: datetime
    last_run: LastRun | None = None
    problem: RunProblem | None = None

    @property
    def recurrence(self) -> Recurrence:
        """Its rule."""
        if self.every is not None:
            return Interval(self.every, self.since)
        return Cron(self.cron or "", self.timezone)

    def is_due(self, now: datetime) -> bool:
        """Whether there is something to be done."""
        return not self.is_paused and self.due_at <= now


SCHEDULE = RecordKind("schedule", Schedule)


@dataclass(frozen=True, slots=True)
class DueRuns:
    """The times to submit a run for, and the time up to which the schedule is then done; some up to `last` may be left
    out.
    """

    times: tuple[datetime, ...]
    last: datetime


def run_key(name: str, at: datetime) -> str:
    """The idempotency key of the run of a schedule for a time."""
    return f"schedule/{name}/{rfc3339(at)}"


def planned(schedule: Schedule, after: datetime) -> Schedule:
    """A schedule whose next run is the first one after a time."""
    next_at = schedule.recurrence.next_after(after)
    return replace(schedule, next_at=next_at, due_at=with_jitter(schedule, next_at))


def begun(schedule: Schedule, now: datetime) -> Schedule:
    """A schedule that begins now: times before now are not caught up with."""
    return planned(replace(schedule, since=now), now)


def changed(present: Schedule, wanted: Schedule) -> Schedule:
    """A schedule after somebody has defined it anew.

    Args:
        present: as it is.
        wanted: as it is to be, begun now. If the rule is the same and was not paused, its next run stays as it is.
    """
    wanted = replace(wanted, last_run=present.last_run, problem=present.problem)
    if _rule_of(present) != _rule_of(wanted) or (present.is_paused and not wanted.is_paused):
        return wanted
    kept = replace(wanted, since=present.since, next_at=present.next_at)
    return replace(kept, due_at=with_jitter(kept, kept.next_at))


def runs_due(schedule: Schedule, now: datetime, most: int) -> DueRuns:
    """What is to be done for a schedule that is due.

    Args:
        schedule: one that is due.
        now: the store's time.
        most: most runs at once; what is left over is due right after them.
    """
    if schedule.missed is Missed.ALL:
        times = tuple(islice(_times_due(schedule, now), most))
        return DueRuns(times, times[-1])
    newest = _newest_due(schedule, now)
    is_missed = now - with_jitter(schedule, newest) > ON_TIME
    return DueRuns(() if is_missed and schedule.missed is Missed.SKIP else (newest,), newest)


def next_runs(schedule: Schedule, number: int) -> list[datetime]:
    """When the next runs are due; none while it is paused."""
    if schedule.is_paused:
        return []
    times = [schedule.next_at]
    while len(times) < number:
        times.append(schedule.recurrence.next_after(times[-1]))
    return [with_jitter(schedule, time) for time in times]


def with_jitter(schedule: Schedule, at: datetime) -> datetime:
    """When a run for this time is due: the same in every process, and not later than the time of the next run."""
    if not schedule.jitter:
        return at
    longest = min(schedule.jitter, schedule.recurrence.next_after(at) - at)
    share = int(fingerprint(schedule.name, rfc3339(at)), 16) / 16**16
    return whole_milliseconds(at + longest * share)


def _rule_of(schedule: Schedule) -> tuple[object, ...]:
    """What its next runs depend on. The user is part of it: keys belong to a user, so under another one a run that was
    submitted before would be submitted again.
    """
    return schedule.cron, schedule.every, schedule.timezone, schedule.user_id


def _times_due(schedule: Schedule, now: datetime) -> Iterator[datetime]:
    at = schedule.next_at
    while with_jitter(schedule, at) <= now:
        yield at
        at = schedule.recurrence.next_after(at)


def _newest_due(schedule: Schedule, now: datetime) -> datetime:
    newest = latest(schedule.recurrence, schedule.next_at, now)
    if newest is not None and with_jitter(schedule, newest) > now:
        newest = latest(schedule.recurrence, schedule.next_at, newest - timedelta(milliseconds=1))
    return schedule.next_at if newest is None else newest
