"""The arithmetic of rate limits: what is let through, whatever is asked for and when."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskframework.model.rate_limits import RATE, Bucket, BucketLimit, HoldBucket, TakePermits

START = 1_800_000_000.0
LIMITS = st.builds(BucketLimit, st.floats(0.01, 5_000), st.integers(1, 200))


@dataclass(frozen=True)
class Request:
    after: float
    most: int
    ahead: float


REQUESTS = st.lists(
    st.builds(
        Request, st.sampled_from([0.0, 0.001, 0.05, 1.0, 30.0]), st.integers(1, 50), st.sampled_from([0.0, 0.25])
    ),
    min_size=1,
    max_size=60,
)


def take(limit: BucketLimit, most: int = 1, **options: float | bool) -> TakePermits:
    return TakePermits(RATE.id_of("openai"), limit, most, **options)  # type: ignore[arg-type]


def times_of(bucket: Bucket, limit: BucketLimit) -> list[float]:
    """When each permit that was granted may be used: not before it was asked for."""
    return [max(bucket.asked_at, bucket.first_at + at / limit.rate) for at in range(bucket.granted)]


def most_above(times: list[float], limit: BucketLimit) -> float:
    """By how much the fullest window of time is above `burst + rate * seconds`."""
    # The fullest windows begin at one use and end at another. `count - rate * time` must never rise by more than the
    # burst, so it is enough to know the lowest value before each use.
    worst, lowest = float("-inf"), float("inf")
    for count, time in enumerate(sorted(times)):
        level = count - limit.rate * (time - START)
        lowest = min(lowest, level)
        worst = max(worst, level + 1 - lowest - limit.burst)
    return worst


@given(LIMITS, REQUESTS)
def test_no_time_window_has_more_permits_than_burst_and_rate_allow(limit: BucketLimit, requests: list[Request]) -> None:
    bucket, now, used = None, START, list[float]()
    for request in requests:
        now += request.after
        bucket = take(limit, request.most, ahead=request.ahead).apply(bucket, now)
        assert 0 <= bucket.granted <= request.most
        times = times_of(bucket, limit)
        assert all(time <= now + request.ahead + 0.01 / limit.rate for time in times)
        used += times
    assert most_above(used, limit) <= 0.01


@given(LIMITS, st.sampled_from([0.01, 0.1, 0.7]))
def test_requests_far_enough_ahead_get_the_whole_rate(limit: BucketLimit, pause: float) -> None:
    bucket, granted = None, 0
    for at in range(201):
        bucket = take(limit, 10_000, ahead=2 * pause).apply(bucket, START + at * pause)
        granted += bucket.granted
    assert granted >= limit.burst + limit.rate * 201 * pause - 1.01


def test_no_permit_is_lost_by_rounding_in_a_day() -> None:
    limit = BucketLimit(3, 1)
    bucket, now, granted, one = Bucket(), START, 0, take(limit, ahead=0.5)
    while now < START + 86_400:
        bucket = one.apply(bucket, now)
        granted += bucket.granted
        now = max(now, bucket.first_at - 0.25) if bucket.granted else max(now + 0.01, bucket.first_at - 0.5)
    assert granted == pytest.approx(3 * 86_400, abs=5)


@given(LIMITS, st.integers(0, 300))
def test_turns_are_one_permit_apart_and_each_gets_its_permit_in_time(limit: BucketLimit, waiting: int) -> None:
    bucket = take(limit, limit.burst).apply(None, START)
    turns = []
    for _ in range(waiting):
        bucket = take(limit, in_line=True).apply(bucket, START)
        assert bucket.granted == 0
        turns.append(bucket.first_at)
    assert turns == sorted(turns)
    for turn in turns:
        bucket = take(limit, in_line=True, has_turn=True).apply(bucket, turn + 1e-5)
        assert bucket.granted == 1
    bucket = take(limit, in_line=True).apply(bucket, START + (waiting + 2) / limit.rate)
    assert bucket.granted == 1, "the line is over"


@given(LIMITS, st.integers(1, 300), st.booleans())
def test_turns_that_are_asked_for_together_are_those_of_single_requests(
    limit: BucketLimit, waiting: int, has_turn: bool
) -> None:
    empty = take(limit, limit.burst).apply(None, START)
    together = take(limit, waiting, in_line=True, has_turn=has_turn).apply(empty, START)
    bucket, turns = empty, list[float]()
    for _ in range(waiting):
        bucket = take(limit, in_line=True, has_turn=has_turn).apply(bucket, START)
        turns.append(bucket.first_at)
    assert [together.first_at + at / limit.rate for at in range(waiting)] == pytest.approx(turns, rel=0, abs=1e-3)
    assert (together.line_at, together.late_at) == pytest.approx((bucket.line_at, bucket.late_at), rel=0, abs=1e-3)


@given(st.integers(20, 300))
def test_requests_whose_turns_came_too_late_get_the_next_turns(waiting: int) -> None:
    limit = BucketLimit(2, 1)
    bucket = take(limit).apply(None, START)
    turns = []
    for _ in range(waiting):
        bucket = take(limit, in_line=True).apply(bucket, START)
        turns.append(bucket.first_at)
    missed = waiting // 4  # nothing was run until then, and now all of them ask at once
    now, late = turns[missed], []
    for _ in range(missed):
        bucket = take(limit, in_line=True, has_turn=True).apply(bucket, now)
        late += [] if bucket.granted else [bucket.first_at]
    assert late == pytest.approx([now + at / limit.rate for at in range(1, missed)], rel=0, abs=1e-3)
    newcomer = take(limit, in_line=True).apply(bucket, now)
    assert newcomer.first_at > turns[-1], "who has no turn yet waits for all who have"
    bucket = take(limit, in_line=True, has_turn=True).apply(bucket, late[0] + 1e-5)
    assert bucket.granted == 1


@given(st.floats(0.01, 10), st.booleans())
def test_turns_that_nobody_uses_are_forgotten_although_tasks_go_on_coming(pause: float, is_late: bool) -> None:
    """As after a flood of one key was cancelled, while its owner submits every few seconds."""
    limit = BucketLimit(1, 1)
    bucket = take(limit).apply(None, START)
    bucket = take(limit, 3_600, in_line=True, has_turn=is_late).apply(bucket, START)
    now = START
    while now <= START + 30 and not bucket.granted:
        now += pause
        bucket = take(limit, in_line=True).apply(bucket, now)
    assert bucket.granted == 1


@given(LIMITS, st.floats(0, 3_600), st.integers(0, 10))
def test_a_held_bucket_gives_no_permit_until_the_end_of_the_hold(
    limit: BucketLimit, seconds: float, taken: int
) -> None:
    bucket = take(limit, max(1, taken)).apply(None, START)
    held = HoldBucket(RATE.id_of("openai"), limit, seconds).apply(bucket, START)
    if seconds > 0.1 / limit.rate:
        assert take(limit).apply(held, START + seconds - 0.05 / limit.rate).granted == 0
    over = max(START + seconds, bucket.full_at - (limit.burst - 1) / limit.rate)
    assert take(limit).apply(held, over + 1e-5).granted == 1


def test_a_bucket_is_kept_as_long_as_it_is_not_full() -> None:
    limit = BucketLimit(0.1, 1)
    bucket = take(limit).apply(None, START)
    assert bucket.expires_at.timestamp() == pytest.approx(START + 10 + 60)
    bucket = take(limit, in_line=True).apply(bucket, START)
    assert bucket.expires_at.timestamp() == pytest.approx(START + 20 + 60)
