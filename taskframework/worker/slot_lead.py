"""How long before the time of its permit a delivery takes a slot again.

A permit of a rate limit may be used only for a moment after its time. If all slots of the worker are taken, getting one
takes longer than that, and the permit would be lost each time. The waits of both checks of rate limits are here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from taskframework.clock import Clock
from taskframework.worker.admission import Candidate

T = TypeVar("T")

#: A lead is twice the time that getting a slot took, because the next time may be longer; after that it shrinks to this
#: share with each slot, unless getting one still takes long.
_MARGIN, _SHRINK = 2.0, 0.9
#: Seconds of a lead below which there is none: a slot was free.
_SHORTEST_SECONDS = 0.05
#: Seconds after which the answer of a bucket is no longer quick: no database or Redis needs so long that answers.
_QUICK_SECONDS = 0.1


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


async def with_slot_at_first(candidate: Candidate, awaited: Awaitable[T]) -> T | None:
    """Wait for what is usually there at once, and keep the slot for that; without the slot if it takes longer, as while
    Redis is away. None as from `Candidate.without_slot`.
    """
    work = asyncio.ensure_future(awaited)
    try:
        await asyncio.wait([work], timeout=_QUICK_SECONDS)
    except asyncio.CancelledError:
        work.cancel()
        raise
    return work.result() if work.done() else await candidate.without_slot(work)


async def sleep_until(clock: Clock, time: float) -> bool:
    """Sleep until a time of the monotonic clock; return True, unlike a wait that was given up."""
    await clock.sleep(max(0.0, time - clock.monotonic()))
    return True
