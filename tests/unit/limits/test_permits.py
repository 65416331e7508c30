"""The permits of a process: taken for those who wait, given out at their time, never late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from taskframework.errors import StoreUnavailableError
from taskframework.limits.buckets import MemoryBuckets
from taskframework.limits.permits import Permit, Permits, permits_of
from taskframework.model.rate_limits import RATE, AttemptLimit, Bucket, BucketLimit, HoldBucket, TakePermits
from taskframework.testing.clock import FakeClock
from tests.support.witness import most_above

OPENAI = RATE.id_of("openai")


class CountedBuckets(MemoryBuckets):
    """Buckets that know what was asked of them."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.asked: list[TakePermits] = []
        self.is_away = False

    async def take(self, take: TakePermits) -> Bucket:
        self.asked.append(take)
        if self.is_away:
            raise StoreUnavailableError
        return await super().take(take)


@pytest.fixture
def buckets(clock: FakeClock) -> CountedBuckets:
    return CountedBuckets(clock)


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def passing(clock: FakeClock, seconds: float, step: float = 0.01) -> None:
    """Let time pass in small steps, with time in between for whoever wakes."""
    for _ in range(round(seconds / step)):
        clock.advance(step)
        await turns(10)


class CountedGroup:
    """Many that wait for a permit, and when each began."""

    def __init__(self, clock: FakeClock, permits: Permits, size: int) -> None:
        self._clock = clock
        self.began: list[float] = []
        self.tasks = [asyncio.create_task(self._wait(permits.next)) for _ in range(size)]

    async def _wait(self, next_one: Callable[[], Awaitable[Permit]]) -> None:
        permit = await next_one()
        assert not permit.is_late(self._clock.monotonic())
        self.began.append(self._clock.monotonic())

    def leave(self) -> None:
        for task in self.tasks:
            task.cancel()


async def test_permits_come_at_their_rate_and_cost_few_requests(clock: FakeClock, buckets: CountedBuckets) -> None:
    permits = Permits(buckets, OPENAI, BucketLimit(20, 5), clock)
    group = CountedGroup(clock, permits, 500)
    await turns()
    assert len(group.began) == 5
    await passing(clock, 10)
    assert len(group.began) == pytest.approx(205, abs=2)
    assert all(count <= 5 + 20 * time + 0.01 for count, time in enumerate(group.began, 1))
    assert len(buckets.asked) < 10 * 10
    group.leave()
    await permits.close()


async def test_several_processes_share_one_rate(clock: FakeClock, buckets: CountedBuckets) -> None:
    processes = [Permits(buckets, OPENAI, BucketLimit(20, 1), clock) for _ in range(8)]
    crowds = [CountedGroup(clock, permits, 100) for permits in processes]
    await passing(clock, 30)
    began = sorted(time for group in crowds for time in group.began)
    assert len(began) == pytest.approx(600, rel=0.02)
    assert all(count <= 1 + 20 * time + 0.3 for count, time in enumerate(began, 1))
    assert len(buckets.asked) < 8 * 30 * 10
    for group, permits in zip(crowds, processes, strict=True):
        group.leave()
        await permits.close()


async def test_no_permit_is_taken_if_no_task_waits(clock: FakeClock, buckets: CountedBuckets) -> None:
    permits = Permits(buckets, OPENAI, BucketLimit(20, 5), clock)
    await permits.next()
    await passing(clock, 1)
    assert [take.most for take in buckets.asked] == [1]


async def test_the_first_caller_gets_the_first_permit_and_a_cancelled_one_gets_none(
    clock: FakeClock, buckets: CountedBuckets
) -> None:
    permits = Permits(buckets, OPENAI, BucketLimit(1, 1), clock)
    await permits.next()
    order: list[str] = []
    waiting = {name: asyncio.create_task(permits.next(), name=name) for name in ("first", "left", "second")}
    for name, task in waiting.items():
        task.add_done_callback(lambda task, name=name: None if task.cancelled() else order.append(name))  # type: ignore[misc]
    await turns()
    waiting["left"].cancel()
    await passing(clock, 2.5)
    assert order == ["first", "second"]


async def test_a_permit_whose_time_is_long_over_is_not_used(clock: FakeClock, buckets: CountedBuckets) -> None:
    """As after a pause of the whole process: meanwhile the bucket has filled up for others."""
    permits = Permits(buckets, OPENAI, BucketLimit(20, 1), clock)
    group = CountedGroup(clock, permits, 50)
    await turns()
    clock.advance(10)
    await turns()
    assert len(group.began) == 2, "one at the start, and one that was there after the pause"
    await passing(clock, 1)
    assert len(group.began) == pytest.approx(22, abs=1)
    group.leave()
    await permits.close()


async def test_a_permit_that_was_not_used_is_for_the_next_one(clock: FakeClock, buckets: CountedBuckets) -> None:
    permits = Permits(buckets, OPENAI, BucketLimit(0.1, 1), clock)
    permits.give_back(await permits.next())
    await permits.next()
    assert len(buckets.asked) == 1
    permits.give_back(Permit(-20.0, -10.0))
    late = asyncio.create_task(permits.next())
    await turns()
    assert not late.done()
    late.cancel()
    await permits.close()


async def test_a_permit_that_comes_when_its_caller_is_cancelled_is_for_the_next_one(
    clock: FakeClock, buckets: CountedBuckets
) -> None:
    permits = Permits(buckets, OPENAI, BucketLimit(0.1, 1), clock)
    permit = await permits.next()
    leaving = asyncio.create_task(permits.next())
    await turns()
    permits.give_back(permit)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    assert [*permits._taken] == [permit]
    await permits.close()


async def test_a_permit_comes_back_while_others_wait_for_a_later_one(clock: FakeClock, buckets: CountedBuckets) -> None:
    permits = Permits(buckets, OPENAI, BucketLimit(5, 1), clock)
    first = await permits.next()
    group = CountedGroup(clock, permits, 2)
    await passing(clock, 0.1)
    assert group.began == []
    began_at = clock.monotonic()
    permits.give_back(first)
    await turns()
    assert group.began == [began_at]
    await passing(clock, 0.2)
    assert len(group.began) == 2
    permits.give_back(Permit(-20.0, -10.0))
    await permits.close()


@given(
    st.floats(0.5, 500),
    st.integers(2, 200),
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.01, 0.1, 3.0]), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60
    ),
)
def test_however_late_permits_are_used_and_claims_come_no_window_has_too_many(
    rate: float, burst: int, requests: list[tuple[float, float, float]]
) -> None:
    limit = AttemptLimit(rate, burst)
    assume(limit.held_back_seconds / 2 >= 0.1)  # else a permit may be used for longer than its bucket allows
    bucket, now, began = Bucket(), 0.0, list[float]()
    for pause, late, slow in requests:
        now += pause
        bucket = TakePermits(OPENAI, limit, 1000, ahead=0.25).apply(bucket, now)
        for permit in permits_of(bucket, limit, now):
            earliest = max(now, permit.not_before)
            began.append(earliest + late * (permit.until - earliest) + slow * limit.held_back_seconds / 2)
    assert most_above(began, rate, burst) <= 0.01


async def test_a_caller_that_waits_gets_the_error_that_the_buckets_are_away(
    clock: FakeClock, buckets: CountedBuckets
) -> None:
    permits = Permits(buckets, OPENAI, BucketLimit(20, 1), clock)
    buckets.is_away = True
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await permits.next()
    buckets.is_away = False
    await permits.next()


async def test_during_a_hold_the_bucket_is_left_alone(clock: FakeClock, buckets: CountedBuckets) -> None:
    limit = BucketLimit(20, 5)
    permits = Permits(buckets, OPENAI, limit, clock)
    await buckets.hold(HoldBucket(OPENAI, limit, 60))
    group = CountedGroup(clock, permits, 10)
    await passing(clock, 59, step=0.5)
    assert (len(group.began), len(buckets.asked)) == (0, 1)
    await passing(clock, 2)
    assert len(group.began) == 10
    await permits.close()
