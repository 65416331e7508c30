"""How many tasks wait, run, come and end, by task type and lane.

A count looks at a limited number of tasks: those that have waited longest, or those that came or ended last. So its
cost does not grow with the number of tasks. It does not guess the rest: a count that reached the limit says so. If that
happens to waiting tasks, each lane is counted by itself, so that a full lane does not hide the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from taskframework.model.status import CLAIMABLE, DEAD, FINAL, Priority, TaskStatus

#: The time over which a rate is taken.
RATE_WINDOW = timedelta(minutes=1)


class CountedTasks(Enum):
    """Which tasks are counted: their statuses, and the time by which they are ordered."""

    WAITING = (CLAIMABLE, "created_at")
    RUNNING = (frozenset({TaskStatus.RUNNING}), "created_at")
    RETRYING = (frozenset({TaskStatus.RETRYING}), "created_at")
    SUBMITTED = (frozenset(TaskStatus), "created_at")
    DONE = (FINAL - DEAD, "finished_at")
    DEAD = (DEAD, "finished_at")

    def __init__(self, statuses: frozenset[TaskStatus], time: str) -> None:
        self.statuses = statuses
        self.time = time

    @property
    def is_newest_first(self) -> bool:
        """Whether the newest tasks are counted first; if not, the oldest are."""
        return self not in _LIVE_TASKS


_LIVE_TASKS = (CountedTasks.WAITING, CountedTasks.RUNNING, CountedTasks.RETRYING)


@dataclass(frozen=True, slots=True)
class LaneCount:
    """Tasks of one type and lane."""

    task_type: str
    lane: Priority
    count: int
    #: How many of them could be claimed before the time that the count was given (`due_before`).
    due: int
    #: The earliest of the times by which the selection is ordered.
    first_at: datetime
    #: Since when the task that has waited longest can be claimed.
    claimable_since: datetime


@dataclass(frozen=True, slots=True)
class LaneCounts:
    """The result of a count."""

    counted: tuple[LaneCount, ...] = ()
    #: Whether there may be more tasks than the count looked at.
    is_bounded: bool = False

    @property
    def due(self) -> int:
        """How many of the tasks could be claimed before the time that the count was given."""
        return sum(it.due for it in self.counted)

    @property
    def is_due_bounded(self) -> bool:
        """Whether there may be more due tasks than these, in a count of one lane: the tasks that are due come first."""
        return self.is_bounded and all(it.due == it.count for it in self.counted)

    def rates(self, now: datetime) -> dict[tuple[str, Priority], float]:
        """Tasks a second by type and lane, over the last minute or the part of it that was counted."""
        window = RATE_WINDOW
        if self.is_bounded:
            window = min(window, now - min(it.first_at for it in self.counted))
        seconds = max(window.total_seconds(), 0.001)
        rates: dict[tuple[str, Priority], float] = defaultdict(float)
        for it in self.counted:
            rates[it.task_type, it.lane] += it.count / seconds
        return rates


@dataclass(frozen=True, slots=True)
class LaneTraffic:
    """One lane of a task type. Rates are in tasks a second."""

    waiting: int = 0
    #: Since when the task that has waited longest could have begun.
    oldest_waiting_at: datetime | None = None
    running: int = 0
    submitted_per_second: float = 0.0
    #: All tasks that ended, including cancelled and failed tasks.
    finished_per_second: float = 0.0
    failed_per_second: float = 0.0
    #: Tasks that failed and will be tried again, whether the next attempt is due or not.
    retrying: int = 0
    #: Whether more tasks may wait or be retried than were counted.
    is_bounded: bool = False

    @property
    def completed_per_second(self) -> float:
        """Tasks that ended without a failure."""
        return self.finished_per_second - self.failed_per_second

    def __add__(self, other: LaneTraffic) -> LaneTraffic:
        times = [time for time in (self.oldest_waiting_at, other.oldest_waiting_at) if time is not None]
        return LaneTraffic(
            self.waiting + other.waiting,
            min(times, default=None),
            self.running + other.running,
            self.submitted_per_second + other.submitted_per_second,
            self.finished_per_second + other.finished_per_second,
            self.failed_per_second + other.failed_per_second,
            self.retrying + other.retrying,
            self.is_bounded or other.is_bounded,
        )


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of all task types at one moment."""

    at: datetime
    lanes: Mapping[tuple[str, Priority], LaneTraffic]
    #: Whether more tasks, of any type, may run than were counted.
    is_running_bounded: bool = False

    @property
    def is_bounded(self) -> bool:
        """Whether more tasks of some type may wait, run or be retried than were counted."""
        return self.is_running_bounded or any(lane.is_bounded for lane in self.lanes.values())

    def of_type(self, task_type: str) -> LaneTraffic:
        """The sum of the lanes of a type."""
        own = (lane for (name, _), lane in self.lanes.items() if name == task_type)
        return sum(own, LaneTraffic())

    def of_lane(self, task_type: str, lane: Priority) -> LaneTraffic:
        return self.lanes.get((task_type, lane), LaneTraffic())

    @property
    def task_types(self) -> frozenset[str]:
        """The task types that have counted tasks."""
        return frozenset(task_type for task_type, _ in self.lanes)


def combine_counts(counts: Mapping[CountedTasks, Sequence[LaneCounts]], now: datetime) -> Traffic:
    """The traffic, from one count of all lanes for each selection, or one for each lane; all made at `now`."""
    lanes: dict[tuple[str, Priority], LaneTraffic] = defaultdict(LaneTraffic)
    for part, it in _each(counts[CountedTasks.WAITING]):
        if it.due:
            seen = LaneTraffic(it.due, it.claimable_since, is_bounded=part.is_due_bounded)
            lanes[it.task_type, it.lane] += seen
    for _, it in _each(counts[CountedTasks.RUNNING]):
        lanes[it.task_type, it.lane] += LaneTraffic(running=it.count)
    for part, it in _each(counts[CountedTasks.RETRYING]):
        lanes[it.task_type, it.lane] += LaneTraffic(retrying=it.count, is_bounded=part.is_bounded)
    for selection, traffic_of in _RATES.items():
        for part in counts[selection]:
            for place, rate in part.rates(now).items():
                lanes[place] += traffic_of(rate)
    return Traffic(now, dict(lanes), any(part.is_bounded for part in counts[CountedTasks.RUNNING]))


_RATES: Mapping[CountedTasks, Callable[[float], LaneTraffic]] = {
    CountedTasks.SUBMITTED: lambda rate: LaneTraffic(submitted_per_second=rate),
    CountedTasks.DONE: lambda rate: LaneTraffic(finished_per_second=rate),
    CountedTasks.DEAD: lambda rate: LaneTraffic(finished_per_second=rate, failed_per_second=rate),
}


def _each(parts: Sequence[LaneCounts]) -> Iterator[tuple[LaneCounts, LaneCount]]:
    for part in parts:
        for it in part.counted:
            yield part, it
