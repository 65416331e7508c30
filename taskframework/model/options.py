"""What a task type or a submission may say of a task, as it carries it from its submission on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


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
