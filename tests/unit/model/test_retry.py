"""The retry policy."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskframework.model.retry import RetryPolicy

EXACT = RetryPolicy(jitter_factor=0)


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 5), (2, 10), (3, 20), (10, 2560), (11, 3600), (12, 3600), (5000, 3600)]
)
def test_the_delay_doubles_up_to_the_maximum(attempt: int, seconds: float) -> None:
    assert EXACT.delay(attempt) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, 9.0), (0.5, 10.0), (0.75, 10.5)])
def test_jitter_spreads_the_delay(chance: float, seconds: float) -> None:
    assert RetryPolicy(jitter_factor=0.1).delay(2, chance) == timedelta(seconds=seconds)


def test_jitter_is_random_when_nobody_chooses() -> None:
    assert len({RetryPolicy().delay(3) for _ in range(50)}) > 10


def test_jitter_never_leads_beyond_the_maximum_or_below_zero() -> None:
    assert RetryPolicy(jitter_factor=0.5).delay(20, 0.999) == timedelta(hours=1)
    assert RetryPolicy(jitter_factor=1).delay(1, 0.0) == timedelta(0)
    assert RetryPolicy(jitter_factor=5).delay(1, 0.0) == timedelta(0)


def test_a_factor_of_one_keeps_the_delay() -> None:
    assert RetryPolicy(backoff_factor=1, jitter_factor=0).delay(100) == timedelta(seconds=5)


def test_no_delay_stays_no_delay() -> None:
    assert RetryPolicy(initial_delay=timedelta(0)).delay(7) == timedelta(0)


def test_after_a_crash_a_task_waits_from_the_second_crash_on() -> None:
    assert EXACT.after_crash(1) == timedelta(0), "the machine was more likely at fault than the task"
    assert [EXACT.after_crash(crashes) for crashes in (2, 3, 4)] == [EXACT.delay(attempt) for attempt in (1, 2, 3)]


def test_a_type_has_delays_of_its_own_where_it_names_them() -> None:
    first, longest = timedelta(seconds=1), timedelta(seconds=3)
    assert EXACT.with_own(None, None) == EXACT
    assert EXACT.with_own(first, None).delay(1) == first
    assert EXACT.with_own(None, longest).delay(1) == longest
    assert [EXACT.with_own(first, longest).delay(attempt) for attempt in (1, 2, 3)] == [first, 2 * first, longest]
