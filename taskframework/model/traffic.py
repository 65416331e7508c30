"""How much waits, runs, comes and goes, by task type and lane.

Counted over some tasks at the most, the oldest that wait or the newest that came, so that a look costs the same however
many there are. What was not looked at is not guessed: a count that stopped there says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from taskframework.model.status import CLAIMABLE, DEAD, FINAL, Priority, TaskStatus

#: The time over which a rate is taken.
RATE_OVER = timedelta(minutes=1)


class Crowd(Enum):
    """Which tasks are counted: their statuses, and by which time one after the other."""

    WAITING = (CLAIMABLE, "created_at")
    RUNNING = (frozenset({TaskStatus.RUNNING}), "created_at")
    SUBMITTED = (frozenset(TaskStatus), "created_at")
    DONE = (FINAL - DEAD, "finished_at")
    DEAD = (DEAD, "finished_at")

    def __init__(self, statuses: frozenset[TaskStatus], time: str) -> None:
        self.statuses = statuses
        self.time = time

    @property
    def is_newest_first(self) -> bool:
        """Whether the newest are counted, and not those that have been there for longest."""
        return self not in (Crowd.WAITING, Crowd.RUNNING)


@dataclass(frozen=True, slots=True)
class Counted:
    """Tasks of one type and lane."""

    task_type: str
    lane: Priority
    count: int
    #: How many of them could be claimed before the time that was asked for.
    due: int
    #: The earliest time of them by which they were counted.
    first_at: datetime
    #: Since when the first of them can be claimed.
    claimable_since: datetime


@dataclass(frozen=True, slots=True)
class Tally:
    """What a look has counted."""

    counted: tuple[Counted, ...] = ()
    #: Whether there may be more than were looked at.
    is_bounded: bool = False

    def due(self, task_type: str, lane: Priority) -> int:
        """How many of one type and lane could be claimed before the time that was asked for."""
        return sum(it.due for it in self.counted if (it.task_type, it.lane) == (task_type, lane))

    def rates(self, now: datetime) -> dict[tuple[str, Priority], float]:
        """How many a second there were of each type and lane, in the last minute or the part of it that was counted."""
        window = RATE_OVER
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
    #: Since when the one could begin that waits for longest.
    oldest_waiting_at: datetime | None = None
    running: int = 0
    submitted_per_second: float = 0.0
    #: However they ended, cancelled and failed ones among them.
    finished_per_second: float = 0.0
    failed_per_second: float = 0.0

    def __add__(self, other: LaneTraffic) -> LaneTraffic:
        times = [time for time in (self.oldest_waiting_at, other.oldest_waiting_at) if time is not None]
        return LaneTraffic(
            self.waiting + other.waiting,
            min(times, default=None),
            self.running + other.running,
            self.submitted_per_second + other.submitted_per_second,
            self.finished_per_second + other.finished_per_second,
            self.failed_per_second + other.failed_per_second,
        )


@dataclass(frozen=True, slots=True)
class Traffic:
    """All of it at one moment."""

    at: datetime
    lanes: Mapping[tuple[str, Priority], LaneTraffic]
    #: Whether more may wait, or run, than were counted.
    is_bounded: bool

    def of_type(self, task_type: str) -> LaneTraffic:
        """The lanes of a type together."""
        own = (lane for (name, _), lane in self.lanes.items() if name == task_type)
        return sum(own, LaneTraffic())

    def of_lane(self, task_type: str, lane: Priority) -> LaneTraffic:
        return self.lanes.get((task_type, lane), LaneTraffic())

    @property
    def task_types(self) -> frozenset[str]:
        """Those of which something was seen."""
        return frozenset(task_type for task_type, _ in self.lanes)


def traffic(tallies: Mapping[Crowd, Tally], now: datetime) -> Traffic:
    """What tallies of all crowds say together, each made at `now`."""
    lanes: dict[tuple[str, Priority], LaneTraffic] = defaultdict(LaneTraffic)
    for it in tallies[Crowd.WAITING].counted:
        if it.due:
            lanes[it.task_type, it.lane] += LaneTraffic(waiting=it.due, oldest_waiting_at=it.claimable_since)
    for it in tallies[Crowd.RUNNING].counted:
        lanes[it.task_type, it.lane] += LaneTraffic(running=it.count)
    for place, rate in tallies[Crowd.SUBMITTED].rates(now).items():
        lanes[place] += LaneTraffic(submitted_per_second=rate)
    for place, rate in tallies[Crowd.DONE].rates(now).items():
        lanes[place] += LaneTraffic(finished_per_second=rate)
    for place, rate in tallies[Crowd.DEAD].rates(now).items():
        lanes[place] += LaneTraffic(finished_per_second=rate, failed_per_second=rate)
    return Traffic(now, dict(lanes), any(tallies[crowd].is_bounded for crowd in (Crowd.WAITING, Crowd.RUNNING)))
