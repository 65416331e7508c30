"""The clock, a port so that tests can move the time."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol, SupportsFloat

#: The moment from which timestamps count.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Seconds between the tries of something that is too early by the store's clock. A process only estimates that clock,
#: and the estimate is wrong by up to half a round trip, which is long only on a very busy machine.
EARLY_RETRY_PAUSES_SECONDS = (0.01, 0.05, 0.25)
_SECOND, _MILLISECOND = timedelta(seconds=1), timedelta(milliseconds=1)


class Clock(Protocol):
    """The clock of a process. Leases and due times use the store's clock, never this clock."""

    def now(self) -> datetime:
        """Return the time in UTC, in whole milliseconds (the precision of MongoDB)."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back. They also count while the machine is suspended: leases end meanwhile."""
        ...

    async def sleep(self, seconds: float) -> None: ...


#: On Linux the usual monotonic clock stops while the machine is suspended; on other systems it continues.
_MONOTONIC_CLOCK = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return whole_milliseconds(datetime.now(UTC))

    def monotonic(self) -> float:
        return time.clock_gettime(_MONOTONIC_CLOCK)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def whole_milliseconds(moment: datetime) -> datetime:
    """Cut a time to the precision that every store keeps, so that a time that is read equals the time written."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def to_milliseconds(moment: datetime) -> int:
    """A time as whole milliseconds since 1970."""
    return (moment - EPOCH) // _MILLISECOND


def from_milliseconds(milliseconds: int) -> datetime:
    """Milliseconds since 1970 as a time.

    Raises:
        OverflowError: if there is no such year.
    """
    return EPOCH + timedelta(milliseconds=milliseconds)


def to_timestamp(moment: datetime) -> float:
    """A time as seconds since 1970."""
    return (moment - EPOCH) / _SECOND


def from_timestamp(seconds: float) -> datetime:
    """Seconds since 1970 as a time, in whole milliseconds."""
    return from_milliseconds(round(seconds * 1000))


async def happens_within(event: asyncio.Event, seconds: float | None, clock: Clock) -> None:
    """Wait for an event, at most this many seconds of the clock; None waits for ever."""
    waits: list[asyncio.Task[object]] = [asyncio.create_task(event.wait())]
    if seconds is not None:
        waits.append(asyncio.create_task(clock.sleep(seconds)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def in_seconds(length: timedelta | float) -> float:
    """Return a length of time in seconds, given as a timedelta or in seconds.

    Raises:
        TypeError: if it is neither; `"5s"` is for settings and commands, where no timedelta can be written.
    """
    if isinstance(length, timedelta):
        return length.total_seconds()
    given: object = length
    seconds = float(given) if isinstance(given, SupportsFloat) else math.nan
    if math.isnan(seconds):  # no time is later than NaN: a wait would never end
        raise TypeError(f"{length!r:.50} is no length of time: use a timedelta or a number of seconds, such as 5")
    return seconds
