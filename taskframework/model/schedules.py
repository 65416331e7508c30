"""Schedules: a record for each schedule, and the pure rules of what to do when it is due.

A process that sees that a schedule is due submits a task with an idempotency key that names the schedule and the time,
and then moves the schedule to its next time by compare and set. So only one of several processes moves it. After a
crash between the two steps, the same submission is made again and finds its task.
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
from taskframework.model.recurrence import Cron, Interval, Recurrence, latest_time
from taskframework.model.values import MAX_NAME_LENGTH, Json, fingerprint, is_name

#: How many schedules an installation may have: each look reads them all.
MAX_SCHEDULES = 1_000
#: The owner of the tasks of a schedule that names no user.
DEFAULT_USER = "scheduler"
#: How late a run may be without counting as missed, for example because of a restart or a busy store.
MISSED_AFTER = timedelta(minutes=1)
_ZERO = timedelta(0)


class Missed(StrEnum):
    """What to do about times that passed while no process ran."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Overlap(StrEnum):
    """What to do when the task of the last run has not ended."""

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
    """A task type with parameters, and the times at which it is submitted. Times are in UTC, in whole milliseconds."""

    name: str
    task_type: str
    parameters: Json = None
    user_id: str = DEFAULT_USER
    #: One of `cron` and `every` is given.
    cron: str | None = None
    every: timedelta | None = None
    #: The time zone of the cron expression.
    timezone: str = "UTC"
    missed: Missed = Missed.ONCE
    overlap: Overlap = Overlap.ALLOW
    #: The longest time by which a run is put off, so that many schedules for one time do not run at the same moment.
    jitter: timedelta = _ZERO
    is_paused: bool = False
    #: Whether it comes from the settings, and can be changed and deleted only there.
    is_from_settings: bool = False
    #: Since when it has its current rule; intervals are counted from this time.
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
        """Return whether a run is due."""
        return not self.is_paused and self.due_at <= now


SCHEDULE = RecordKind("schedule", Schedule)


@dataclass(frozen=True, slots=True)
class DueRuns:
    """The times for which to submit a run, and the time up to which the schedule is then done. Times up to `last` that
    are not in `times` are left out.
    """

    times: tuple[datetime, ...]
    last: datetime


def run_key(name: str, at: datetime) -> str:
    """The idempotency key of the run of a schedule for a time."""
    return f"schedule/{name}/{rfc3339(at)}"


def key_of_run_now(name: str, key: str) -> str:
    """The idempotency key of a run that was asked for with a key; a hash takes the place of a key that is too long."""
    whole = f"schedule/{name}/run/{key}"
    is_too_long = len(whole) > MAX_NAME_LENGTH and is_name(key)  # a wrong key stays, so that it is refused
    return f"schedule/{name}/run/{fingerprint(key)}" if is_too_long else whole


def with_last_run(schedule: Schedule, run: LastRun) -> Schedule:
    """A schedule after a run was submitted, perhaps by another process; unchanged if its last run is newer."""
    is_newer = schedule.last_run is None or schedule.last_run.at <= run.at
    return replace(schedule, last_run=run, problem=None) if is_newer else schedule


def with_next_run(schedule: Schedule, after: datetime) -> Schedule:
    """A schedule whose next run is the first run after a time."""
    next_at = schedule.recurrence.next_after(after)
    return replace(schedule, next_at=next_at, due_at=with_jitter(schedule, next_at))


def start_schedule(schedule: Schedule, now: datetime) -> Schedule:
    """A schedule that begins now: runs for times before now are not made up for."""
    return with_next_run(replace(schedule, since=now), now)


def redefine_schedule(present: Schedule, wanted: Schedule) -> Schedule:
    """A schedule after it was defined again.

    Args:
        present: the schedule as it is.
        wanted: the new schedule, begun now. If the rule is the same and was not paused, the next run stays the same.
    """
    wanted = replace(wanted, last_run=present.last_run, problem=present.problem)
    if _rule_of(present) != _rule_of(wanted) or (present.is_paused and not wanted.is_paused):
        return wanted
    kept = replace(wanted, since=present.since, next_at=present.next_at)
    return replace(kept, due_at=with_jitter(kept, kept.next_at))


def runs_due(schedule: Schedule, now: datetime, most: int) -> DueRuns:
    """The runs to submit for a schedule that is due.

    Args:
        schedule: a schedule that is due.
        now: the store's time.
        most: most runs at once; the remaining runs are due right after them.
    """
    if schedule.missed is Missed.ALL:
        times = tuple(islice(_times_due(schedule, now), most))
        return DueRuns(times, times[-1])
    newest = _newest_due(schedule, now)
    is_missed = now - _due_time(schedule, newest) > MISSED_AFTER
    return DueRuns(() if is_missed and schedule.missed is Missed.SKIP else (newest,), newest)


def next_runs(schedule: Schedule, number: int) -> list[datetime]:
    """When the next runs are due; no times while the schedule is paused."""
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
    """The fields on which the next runs depend. The user is one of them: an idempotency key belongs to a user, so for
    another user a run that was submitted before would be submitted again.
    """
    return schedule.cron, schedule.every, schedule.timezone, schedule.user_id


def _due_time(schedule: Schedule, at: datetime) -> datetime:
    """When a run is due. For the next run it is the stored time: a new release of the time zones may compute another
    one, before which the schedule would be due without a run.
    """
    return schedule.due_at if at == schedule.next_at else with_jitter(schedule, at)


def _times_due(schedule: Schedule, now: datetime) -> Iterator[datetime]:
    at = schedule.next_at
    while _due_time(schedule, at) <= now:
        yield at
        at = schedule.recurrence.next_after(at)


def _newest_due(schedule: Schedule, now: datetime) -> datetime:
    newest = latest_time(schedule.recurrence, schedule.next_at, now)
    if newest is not None and with_jitter(schedule, newest) > now:
        newest = latest_time(schedule.recurrence, schedule.next_at, newest - timedelta(milliseconds=1))
    return schedule.next_at if newest is None else newest
