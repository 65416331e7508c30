"""The permits of one bucket in one process: taken together for all waiting calls, given out one by one at their times.

So a bucket costs each process only a few requests a second, however many permits it gives. A permit is taken only when
a call waits for it: if a permit were kept for later, some window of time would have one permit too many.
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

#: How many seconds before their time permits are taken, besides the lead of a worker whose slots are all taken. A
#: process that is killed loses the permits that it has taken: the permits of a quarter of a second at most.
TAKE_AHEAD_SECONDS = 0.25
#: A permit may be used for at least this many seconds after its time, or after it came here. Strictly, a bucket that
#: holds one permit allows no lateness at all, but no process is always quicker than this.
_MIN_LATENESS_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission to begin one attempt, between two times of this process's own clock."""

    not_before: float
    until: float

    def is_late(self, now: float) -> bool:
        """Return whether the permit is so late that its use would make one attempt too many."""
        return now > self.until


def lateness_of(limit: BucketLimit) -> float:
    """Return how many seconds after its time a permit may be used."""
    # Half of the time that the limit holds back; the other half is for the claim.
    return max(limit.burst_seconds + limit.held_back_seconds / 2, _MIN_LATENESS_SECONDS)


def permits_of(bucket: Bucket, limit: BucketLimit, received_at: float) -> list[Permit]:
    """Return the permits that a request got, with times of this process's own clock.

    Args:
        bucket: the answer to the request.
        limit: the limit of the bucket.
        received_at: when the answer came. This counts as the time of the request at the server, which was a little
            earlier; so permits are used late and never early.
    """
    lateness = lateness_of(limit)
    times = [received_at + bucket.first_at + at / limit.rate - bucket.asked_at for at in range(bucket.granted)]
    return [Permit(time, max(time + lateness, received_at + _MIN_LATENESS_SECONDS)) for time in times]


class Permits:
    """The permits of one bucket for the calls that wait in this process, in the order in which they came."""

    def __init__(self, buckets: Buckets, record_id: str, limit: BucketLimit, clock: Clock) -> None:
        """Take no permits yet.

        Args:
            buckets: where the bucket is.
            record_id: the id of the bucket.
            limit: how much the bucket lets through.
            clock: for the times of the permits.
        """
        self._buckets = buckets
        self._take = partial(TakePermits, record_id, limit)
        self._limit = limit
        self._clock = clock
        self._waiting: deque[asyncio.Future[Permit]] = deque()
        self._taken: deque[Permit] = deque()
        self._ask_again_at = 0.0
        self._pump: asyncio.Task[None] | None = None
        #: How many seconds before their times permits are given out. The callers do not use them before.
        self.lead = 0.0
        #: Called with how many permits were taken.
        self.on_taken: Callable[[int], None] = lambda count: None

    async def next(self) -> Permit:
        """Wait for a permit, until its time has come or comes within `lead`. If the caller is cancelled meanwhile, the
        next caller gets it.

        Raises:
            StoreUnavailableError: if the bucket could not be reached.
        """
        future: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._pump is None or self._pump.done():
            # In a separate context: the pump runs on after the first caller has ended.
            self._pump = asyncio.create_task(self._run(), context=contextvars.Context())
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back(future.result())  # the permit came at the moment of the cancellation
            raise

    def give_back(self, permit: Permit) -> None:
        """Give back a permit that was not used; a waiting caller gets it at once, because its time has come already."""
        if not permit.is_late(self._clock.monotonic()) and not self._give_to_next(permit):
            self._taken.appendleft(permit)

    async def close(self) -> None:
        """Take no more permits; by now no caller waits."""
        if self._pump is not None:
            await end(self._pump)

    async def _run(self) -> None:
        while self._count_waiting():
            try:
                await self._take_missing_permits()
                await self._give_due_permits()
            except Exception as error:
                self._fail_all_waiting(error)

    def _count_waiting(self) -> int:
        """Forget callers that gave up; return how many wait."""
        self._waiting = deque(future for future in self._waiting if not future.done())
        return len(self._waiting)

    async def _take_missing_permits(self) -> None:
        missing = self._count_waiting() - len(self._taken)
        seconds_until_asking = self._ask_again_at - self._clock.monotonic()
        if missing > 0 and seconds_until_asking <= 0:
            ahead = TAKE_AHEAD_SECONDS + self.lead
            bucket = await self._buckets.take(self._take(most=missing, ahead=ahead))
            await failpoint.reached("limits.after_take")
            self.on_taken(bucket.granted)
            now = self._clock.monotonic()
            self._taken.extend(permits_of(bucket, self._limit, now))
            # Ask late enough that several permits are ready, and not in all processes at the same moment.
            wait = bucket.first_at - bucket.asked_at - ahead + TAKE_AHEAD_SECONDS * random.uniform(0.25, 0.5)
            self._ask_again_at = now if bucket.granted else now + max(wait, TAKE_AHEAD_SECONDS / 8)
        elif not self._taken:
            await self._clock.sleep(seconds_until_asking)

    async def _give_due_permits(self) -> None:
        """Give out the taken permits when their times come; return early to take more, so that there is no pause."""
        while self._taken:
            permit, now = self._taken[0], self._clock.monotonic()
            if permit.not_before - self.lead <= now:
                self._taken.popleft()
                if not permit.is_late(now):
                    self._give_to_next(permit)
            elif self._should_take_more(now):
                return
            else:
                await self._clock.sleep(permit.not_before - self.lead - now)

    def _should_take_more(self, now: float) -> bool:
        is_nearly_out = self._taken[-1].not_before - self.lead - now < TAKE_AHEAD_SECONDS / 2
        return is_nearly_out and now >= self._ask_again_at and self._count_waiting() > len(self._taken)

    def _give_to_next(self, permit: Permit) -> bool:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(permit)
                return True
        return False

    def _fail_all_waiting(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if not future.done():
                future.set_exception(error)
