"""The installation at one moment: how many tasks there are, and which problems need a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from taskframework.model.counts import TaskCounts
from taskframework.model.limits import ReachedLimit, reached_limits_text
from taskframework.model.message import rfc3339
from taskframework.model.pauses import Pause
from taskframework.model.schedules import Schedule
from taskframework.model.status import DEAD, TaskStatus
from taskframework.model.traffic import RATE_WINDOW, LaneTraffic, Traffic
from taskframework.model.workers import Presence, missing_workers, start_hint

ProblemCode = Literal[
    "broker_away",
    "limiter_away",
    "undriven",
    "no_worker",
    "worker_lost",
    "failing",
    "retrying",
    "behind",
    "halted",
    "schedule",
    "paused",
]
#: A type is failing if at least this share of its tasks that ended in the last minute failed.
_FAILING_SHARE = 0.5
#: How many tasks of a type that wait for another attempt are a problem; fewer are usual.
_MIN_RETRYING = 10
#: A type is behind if its first task has waited longer than the first time, and the number of waiting tasks does not
#: fall, or falls so slowly that it would take longer than the second time to reach zero.
_BEHIND_AFTER, _MAX_CATCH_UP_TIME = timedelta(minutes=5), timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person should look at."""

    code: ProblemCode
    #: What is wrong and what to do, in one or two sentences.
    text: str
    #: The task type with the problem; None: the problem does not belong to a single type.
    task_type: str | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """An installation at one moment."""

    traffic: Traffic
    #: None: not counted yet, because the store is away.
    counts: TaskCounts | None
    task_types: tuple[str, ...]
    pauses: Mapping[str, Pause]
    workers: tuple[Presence, ...]
    #: None: the process that asks has no broker.
    is_broker_connected: bool | None
    schedules: tuple[Schedule, ...] = ()
    #: Whether that process is connected, but the broker takes no messages because of an alarm.
    is_broker_blocked: bool = False
    #: Whether the server that counts rate limits does not answer, so that tasks with one wait for it.
    is_limiter_away: bool = False
    #: Whether one process executes all tasks, so that no second worker can be started.
    is_embedded: bool = False
    #: The limits that let no more tasks of a type begin, for types that are behind.
    reached_limits: Mapping[str, Sequence[ReachedLimit]] = field(default_factory=dict)

    @property
    def at(self) -> datetime:
        return self.traffic.at

    @property
    def live_workers(self) -> tuple[Presence, ...]:
        return tuple([it for it in self.workers if not it.is_lost(self.at)])

    @property
    def worker_count(self) -> int:
        return len(self.live_workers)

    @property
    def by_status(self) -> Mapping[str, int]:
        """All tasks by the last count. Running and retried tasks are counted now, unless they are too many to count."""
        counted = {} if self.counts is None else self.counts.by_status
        if not counted or self.traffic.is_bounded:
            return counted
        now = sum(self.traffic.lanes.values(), LaneTraffic())
        return {**counted, TaskStatus.RUNNING.value: now.running, TaskStatus.RETRYING.value: now.retrying}

    @property
    def counted_at(self) -> datetime | None:
        """When `dead_letters` and the other numbers of `by_status` were counted."""
        return None if self.counts is None else self.counts.counted_at

    @property
    def dead_letters(self) -> int | None:
        """Tasks that failed for good and were not discarded, or all failed tasks if they are very many; None until the
        first count is done.
        """
        if self.counts is None or not self.counts.by_status:
            return None
        if self.counts.dead_letters is not None:
            return self.counts.dead_letters
        return sum(self.counts.by_status.get(status, 0) for status in DEAD)

    def waiting_text(self, task_type: str) -> str:
        """How many tasks of a type wait, in words."""
        seen = self.traffic.of_type(task_type)
        number, more = seen.waiting, " or more" if seen.is_bounded else ""
        one = number == 1 and not more
        return f"1 {task_type} task is waiting" if one else f"{number:,}{more} {task_type} tasks are waiting"

    def has_worker_for(self, task_type: str) -> bool:
        """Return whether a live worker runs a type."""
        return any(task_type in it.task_types for it in self.live_workers)

    def is_behind(self, task_type: str) -> bool:
        """Return whether the tasks of a type wait too long, although workers run it and nobody paused it."""
        if task_type in self.pauses or not self.has_worker_for(task_type):
            return False
        seen = self.traffic.of_type(task_type)
        since = seen.oldest_waiting_at
        return since is not None and self.at - since > _BEHIND_AFTER and _is_slow(seen)

    def problems(self) -> Iterator[Problem]:
        """The problems that need a person, the worst first."""
        if self.is_broker_blocked:
            text = (
                "The broker takes no messages, because of a memory or disk alarm. New tasks are stored, and start when"
            )
            yield Problem("broker_away", f"{text} it is over. To see which alarm: rabbitmqctl status")
        elif self.is_broker_connected is False:
            text = "There is no connection to the broker. New tasks are stored, and start when the broker is back"
            text = f"{text}. To check it: taskframework doctor"
            yield Problem("broker_away", text)
        if self.is_limiter_away:
            text = "Redis, which keeps the rate limits, does not answer or takes no writes"
            consequence = "Tasks with a rate limit wait until it is back"
            yield Problem("limiter_away", f"{text}. {consequence}. To check it: taskframework doctor")
        if self.counts is not None and self.counts.undriven:
            text = f"{_undriven_text(self.counts.undriven)}. See which: taskframework doctor"
            yield Problem("undriven", text)
        types = [(task_type, self.traffic.of_type(task_type)) for task_type in self.task_types]
        for task_type, seen in types:
            if seen.waiting and not self.has_worker_for(task_type):
                text = f"{self.waiting_text(task_type)}, and no running worker handles this type"
                yield Problem("no_worker", f"{text}. {start_hint(is_embedded=self.is_embedded)}", task_type)
        for it in missing_workers(self.workers, self.at):
            lost = f"Worker {it.worker_id} has sent no sign of life since {rfc3339(it.seen_at)}"
            why = "It was killed, is frozen, or cannot reach the store. Others get its tasks when their leases end"
            look = f"Look at process {it.pid} on {it.host}, or start a worker in its place"
            yield Problem("worker_lost", f"{lost}. {why}. {look}: taskframework worker --app MODULE")
        for task_type, seen in types:
            if _is_failing(seen):
                share = seen.failed_per_second / seen.finished_per_second
                text = f"{share:.0%} of the {task_type} tasks that ended in the last minute failed"
                yield Problem("failing", f"{text}. See why: taskframework dlq groups", task_type)
        yield from self._backlog_problems(types)
        if self.counts is not None and self.counts.halted_streams:
            text = f"{_halted_streams_text(self.counts.halted_streams)}. See which: taskframework streams list --halted"
            yield Problem("halted", text)
        if refused := [schedule for schedule in self.schedules if schedule.problem and not schedule.is_paused]:
            yield Problem("schedule", f"{_refused_schedules_text(refused)}. See why: taskframework schedules list")
        for task_type, pause in sorted(self.pauses.items()):
            reason = f" ({pause.reason})" if pause.reason else ""
            paused = f"{pause.by} paused {task_type} at {rfc3339(pause.at)}{reason}"
            yield Problem("paused", f"{paused}; {self.waiting_text(task_type)}.", task_type)

    def _backlog_problems(self, types: Sequence[tuple[str, LaneTraffic]]) -> Iterator[Problem]:
        """Types with many tasks that wait for a retry, and types that are behind."""
        for task_type, seen in types:
            if seen.retrying >= _MIN_RETRYING and seen.retrying > _completed_recently(seen):
                more = " or more" if seen.is_bounded else ""
                what = f"{seen.retrying:,}{more} {task_type} tasks failed and will be retried"
                text = f"{what}. See why: taskframework tasks list --type {task_type} --status retrying"
                retry = f"taskframework tasks retry --where type={task_type} --where status=retrying"
                yield Problem("retrying", f"{text}. To retry them at once, after fixing the cause: {retry}", task_type)
        for task_type, seen in types:
            if self.is_behind(task_type) and seen.oldest_waiting_at is not None:
                come, go = f"{seen.submitted_per_second:.3g}", f"{seen.finished_per_second:.3g}"
                text = f"{self.waiting_text(task_type)}, the oldest since {rfc3339(seen.oldest_waiting_at)}"
                text = f"{text}; they arrive at {come} per second and finish at {go} per second"
                yield Problem("behind", f"{text}. {self._behind_advice(task_type)}", task_type)

    def _behind_advice(self, task_type: str) -> str:
        limits = self.reached_limits.get(task_type)
        if limits:
            text = f"{reached_limits_text(limits)} More workers do not help the tasks that wait for a limit"
            return f"{text}. See the limits: taskframework limits"
        return "Start more workers, or see what one of the tasks is waiting for: taskframework tasks explain ID"


def _is_slow(seen: LaneTraffic) -> bool:
    """Return whether the number of waiting tasks does not fall, or would not reach zero within `_MAX_CATCH_UP_TIME`."""
    gain = seen.finished_per_second - seen.submitted_per_second
    return gain <= 0 or seen.waiting / gain > _MAX_CATCH_UP_TIME.total_seconds()


def _completed_recently(seen: LaneTraffic) -> float:
    """How many tasks completed within the time over which rates are taken."""
    return seen.completed_per_second * RATE_WINDOW.total_seconds()


def _undriven_text(number: int) -> str:
    if number == 1:
        return "1 unfinished task is stuck: nothing will ever continue it"
    return f"{number:,} unfinished tasks are stuck: nothing will ever continue them"


def _halted_streams_text(number: int) -> str:
    if number == 1:
        return "1 stream has halted because one of its tasks failed; the tasks after it are waiting"
    return f"{number:,} streams have halted because a task failed in each; the tasks after it are waiting"


def _refused_schedules_text(schedules: Sequence[Schedule]) -> str:
    first, number = schedules[0], len(schedules)
    if number == 1:
        return f"The last run of schedule {first.name} could not be submitted"
    return f"The last runs of {number:,} schedules could not be submitted, among them {first.name}"


def _is_failing(seen: LaneTraffic) -> bool:
    return seen.failed_per_second > 0 and seen.failed_per_second >= _FAILING_SHARE * seen.finished_per_second
