"""What a task type or a submission may say of a task, as it carries it from its submission on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal


@dataclass(frozen=True, slots=True)
class StartLimit:
    """How long the task may wait for a worker in each generation, from the time on at which it could begin."""

    milliseconds: int
    #: Whether a limit or a pause that holds it back counts; else the time begins anew after it.
    counts_limits: bool = False

    @property
    def time(self) -> timedelta:
        return timedelta(milliseconds=self.milliseconds)


@dataclass(frozen=True, slots=True)
class KeptFor:
    """How many milliseconds the task stays after its end; None: as the settings say."""

    finished: int | None = None
    #: FAILED or DEAD_LETTER.
    failed: int | None = None


@dataclass(frozen=True, slots=True)
class Unique:
    """Which version of a key the task is."""

    key: str
    version: int
    #: How often the version was queued anew, because its task had failed or was gone.
    run: int = 0
    #: Whether the older version is asked to stop if it is running.
    stops_older: bool = False


@dataclass(frozen=True, slots=True)
class Debounce:
    """Until the task begins, later submissions of its key replace its parameters. Times in milliseconds."""

    key: str
    wait_ms: int
    #: From the first submission on.
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
    #: Its time to give a result was over before it had one: the stream went on without it.
    is_skipped: bool = False
