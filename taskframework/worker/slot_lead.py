"""How long before the time of its permit a delivery takes a slot again.

A permit of a rate limit may be used only for a moment after its time. If all slots of the worker are taken, getting one
takes longer than that, and the permit would be lost each time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from taskframework.clock import Clock

T = TypeVar("T")

#: A lead is twice the time that getting a slot took, because the next time may be longer; after that it shrinks to this
#: share with each slot, unless getting one still takes long.
_MARGIN, _SHRINK = 2.0, 0.9
#: Seconds of a lead below which there is none: a slot was free.
_SHORTEST_SECONDS = 0.05


class SlotLead:
    """Learns how long getting a slot takes in this worker."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def note(self, waited: float) -> None:
        """Note that getting a slot took so many seconds."""
        seconds = max(_MARGIN * waited, _SHRINK * self._seconds)
        self._seconds = seconds if seconds >= _SHORTEST_SECONDS else 0.0

    def seconds_before(self, lateness: float) -> float:
        """Return how many seconds before its time a permit that may be so late needs a slot."""
        return max(0.0, self._seconds - lateness)


async def with_time(clock: Clock, wait: Callable[[], Awaitable[T]]) -> tuple[T, float]:
    """Wait for a value; return it with the time at which it came, because a wait for a slot follows."""
    return await wait(), clock.monotonic()


async def sleep_until(clock: Clock, time: float) -> bool:
    """Sleep until a time of the monotonic clock; return True, unlike a wait that was given up."""
    await clock.sleep(max(0.0, time - clock.monotonic()))
    return True
