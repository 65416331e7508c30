"""The permits of one bucket in one process: taken together for all that wait here, given out one by one at their time.

So a bucket costs each process only a few requests a second, however many permits it gives. A permit is taken only when
somebody waits for it: one that was kept for later would be one too many in some window of time.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from taskframework import failpoint
from taskframework.background import end
from taskframework.clock import Clock
from taskframework.limits.buckets import Buckets
from taskframework.model.rate_limits import Bucket, BucketLimit, TakePermits

#: How many seconds before their time permits are taken. A process that is killed loses the permits it has in hand:
#: those of a quarter of a second at most.
AHEAD = 0.25
#: For at least how many seconds after its time, or after it came here, a permit may still be used. Strictly, a bucket
#: that holds one permit allows no lateness at all, but no process is always quicker than this.
_LATENESS = 0.1


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to begin one attempt, between two times of this process's own clock."""

    not_before: float
    until: float

    def is_late(self, now: float) -> bool:
        """Whether it must not be used any more: so late it would be one too many."""
        return now > self.until


def permits_of(bucket: Bucket, limit: BucketLimit, received_at: float) -> list[Permit]:
    """The permits that a request got, by this process's own clock.

    Args:
        bucket: the answer to the request.
        limit: of the bucket.
        received_at: when the answer came. It is taken for the time of the request at the server, which was a little
            earlier; so permits are used late and never early.
    """
    # The other half of what is held back is for the claim that follows.
    lateness = max(limit.ahead + limit.held_back / 2, _LATENESS)
    times = [received_at + bucket.first_at + at / limit.rate - bucket.asked_at for at in range(bucket.granted)]
    return [Permit(time, max(time + lateness, received_at + _LATENESS)) for time in times]


class Permits:
    """The permits of one bucket, for those in this process that wait for one; first come, first served."""

    def __init__(self, buckets: Buckets, record_id: str, limit: BucketLimit, clock: Clock) -> None:
        """Take nothing yet.

        Args:
            buckets: where the bucket is.
            record_id: which one.
            limit: how much it lets through.
            clock: for the times of the permits.
        """
        self._buckets = buckets
        self._take = partial(TakePermits, record_id, limit, ahead=AHEAD)
        self._limit = limit
        self._clock = clock
        self._waiting: deque[asyncio.Future[Permit]] = deque()
        self._in_hand: deque[Permit] = deque()
        self._ask_again_at = 0.0
        self._pump: asyncio.Task[None] | None = None
        #: Told how many permits were taken.
        self.on_taken: Callable[[int], None] = lambda count: None

    async def next(self) -> Permit:
        """Wait for a permit, until its time has come. If the caller is cancelled meanwhile, the next one gets it.

        Raises:
            StoreUnavailableError: if the bucket could not be asked.
        """
        future: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._pump is None or self._pump.done():
            # In a context of its own: the pump outlives the caller who waited first.
            self._pump = asyncio.create_task(self._run(), context=contextvars.Context())
        return await future

    def give_back(self, permit: Permit) -> None:
        """Give back a permit that was not used; whoever waits gets it at once, for its time has come already."""
        if not permit.is_late(self._clock.monotonic()) and not self._give(permit):
            self._in_hand.appendleft(permit)

    async def close(self) -> None:
        """Take no more; nobody waits any longer."""
        if self._pump is not None:
            await end(self._pump)

    async def _run(self) -> None:
        while self._wanted():
            try:
                await self._take_some()
                await self._give_some()
            except Exception as error:
                self._fail(error)

    def _wanted(self) -> int:
        """How many wait; those who gave up are forgotten."""
        self._waiting = deque(future for future in self._waiting if not future.done())
        return len(self._waiting)

    async def _take_some(self) -> None:
        missing, early = self._wanted() - len(self._in_hand), self._ask_again_at - self._clock.monotonic()
        if missing > 0 and early <= 0:
            bucket = await self._buckets.take(self._take(most=missing))
            await failpoint.reached("limits.after_take")
            self.on_taken(bucket.granted)
            now = self._clock.monotonic()
            self._in_hand.extend(permits_of(bucket, self._limit, now))
            # Late enough that more than one permit is ready, and not in all processes at the same moment.
            wait = bucket.first_at - bucket.asked_at - AHEAD + AHEAD * random.uniform(0.25, 0.5)
            self._ask_again_at = now if bucket.granted else now + max(wait, AHEAD / 8)
        elif not self._in_hand:
            await self._clock.sleep(early)

    async def _give_some(self) -> None:
        """Give out permits in hand when their times come; returns early to take more, so that there is no pause."""
        while self._in_hand:
            permit, now = self._in_hand[0], self._clock.monotonic()
            if permit.not_before <= now:
                self._in_hand.popleft()
                if not permit.is_late(now):
                    self._give(permit)
            elif self._may_take_others(now):
                return
            else:
                await self._clock.sleep(permit.not_before - now)

    def _may_take_others(self, now: float) -> bool:
        is_nearly_out = self._in_hand[-1].not_before - now < AHEAD / 2
        return is_nearly_out and now >= self._ask_again_at and self._wanted() > len(self._in_hand)

    def _give(self, permit: Permit) -> bool:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(permit)
                return True
        return False

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if not future.done():
                future.set_exception(error)
