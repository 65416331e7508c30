"""Options of task types and submissions, in the form in which a task carries them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal


@dataclass(frozen=True, slots=True)
class StartLimit:
    """How long the task may wait for a worker, in each generation, from the time at which it can be claimed."""

    milliseconds: int
    #: Whether time counts in which a limit or a pause holds the task back; if not, the time begins again afterwards.
    counts_limits: bool = False

    @property
    def time(self) -> timedelta:
        return timedelta(milliseconds=self.milliseconds)


def start_by(limit: StartLimit | None, claimable_from: datetime) -> datetime | None:
    """The latest start of the first attempt of a task that can be claimed from a time on; None: there is no limit."""
    return None if limit is None else claimable_from + limit.time


@dataclass(frozen=True, slots=True)
class KeptFor:
    """How many milliseconds the task stays in the store after its end; None: the settings decide."""

    finished: int | None = None
    #: The time for a task that ended FAILED or DEAD_LETTER.
    failed: int | None = None


@dataclass(frozen=True, slots=True)
class Unique:
    """Which version of a key the task is."""

    key: str
    version: int
    #: How often this version was submitted again because its task had failed or was deleted.
    run: int = 0
    #: Whether an older version that runs is asked to stop.
    stops_older: bool = False


@dataclass(frozen=True, slots=True)
class Debounce:
    """Until the task begins, later submissions of its key replace its parameters. Times in milliseconds."""

    key: str
    wait_ms: int
    #: The longest total wait, from the first submission on.
    longest_ms: int

    @property
    def wait(self) -> timedelta:
        return timedelta(milliseconds=self.wait_ms)

    @property
    def longest(self) -> timedelta:
        return timedelta(milliseconds=self.longest_ms)


#: How the tasks of a stream belong together: one after the other, or at once with results in order.
StreamMode = Literal["serial", "ordered_results"]


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Where the task is in an ordered stream of its user."""

    key: str
    mode: StreamMode
    #: Given when the task is stored; the first is 0.
    position: int = -1
    #: Whether the stream stops if the task fails while it has the turn.
    halts: bool = False
    #: Whether the task had no result in time, so that the stream continued without it.
    is_skipped: bool = False
