"""What is to be done about a schedule: what was missed, jitter, what is shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskframework.model.schedules import (
    SCHEDULE,
    DueRuns,
    LastRun,
    Missed,
    Schedule,
    next_runs,
    run_key,
    runs_due,
    start_schedule,
    with_jitter,
    with_next_run,
)

MIDNIGHT = datetime(2026, 3, 28, tzinfo=UTC)
DAY, HOUR, MINUTE, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


def schedule(**fields: Any) -> Schedule:
    rule = {} if "cron" in fields else {"every": HOUR}
    usual = {"name": "nightly", "task_type": "t", "since": MIDNIGHT, "next_at": MIDNIGHT, "due_at": MIDNIGHT}
    return with_next_run(Schedule(**{**usual, **rule, **fields}), MIDNIGHT)


@pytest.mark.parametrize(
    ("missed", "after", "expected"),
    [
        pytest.param(Missed.SKIP, HOUR, [HOUR], id="in time"),
        pytest.param(Missed.SKIP, HOUR + MINUTE, [HOUR], id="nearly in time"),
        pytest.param(Missed.SKIP, HOUR + 61 * SECOND, [], id="too late"),
        pytest.param(Missed.SKIP, DAY + SECOND, [DAY], id="of many only the one that is in time"),
        pytest.param(Missed.ONCE, DAY + HOUR / 2, [DAY], id="the newest of a day"),
        pytest.param(Missed.ALL, DAY + HOUR / 2, [n * HOUR for n in range(1, 25)], id="all of a day"),
    ],
)
def test_missed_runs_are_found_as_the_schedule_requires(
    missed: Missed, after: timedelta, expected: list[timedelta]
) -> None:
    found = runs_due(schedule(missed=missed), MIDNIGHT + after, 100)
    assert found.times == tuple(MIDNIGHT + each for each in expected)
    assert found.last == MIDNIGHT + after // HOUR * HOUR


def test_many_missed_runs_are_found_in_parts() -> None:
    due = schedule(missed=Missed.ALL, every=SECOND)
    first = runs_due(due, MIDNIGHT + DAY, 100)
    assert first.times == tuple(MIDNIGHT + n * SECOND for n in range(1, 101))
    assert with_next_run(due, first.last).is_due(MIDNIGHT + DAY)
    assert runs_due(with_next_run(due, first.last), MIDNIGHT + DAY, 100).times[0] == MIDNIGHT + 101 * SECOND


@pytest.mark.parametrize("missed", [Missed.SKIP, Missed.ONCE])
def test_missed_runs_of_a_year_are_found_without_a_long_search(missed: Missed) -> None:
    due = schedule(missed=missed, cron="* * * * *", timezone="Europe/Berlin")
    now = MIDNIGHT + 365 * DAY + SECOND
    assert runs_due(due, now, 100) == DueRuns((now - SECOND,), now - SECOND)


def test_a_clock_that_goes_back_fires_nothing_twice() -> None:
    due = schedule()
    fired = with_next_run(due, runs_due(due, MIDNIGHT + HOUR, 100).last)
    assert not fired.is_due(MIDNIGHT + HOUR / 2)
    assert not fired.is_due(MIDNIGHT + HOUR)
    assert fired.is_due(MIDNIGHT + 2 * HOUR)


def test_a_clock_that_goes_forward_fires_what_the_policy_says() -> None:
    due = schedule(missed=Missed.ALL)
    ahead = runs_due(due, MIDNIGHT + 3 * HOUR, 100)
    assert len(ahead.times) == 3
    assert not with_next_run(due, ahead.last).is_due(MIDNIGHT + 3 * HOUR), (
        "and when it is set right again, nothing twice"
    )


@pytest.mark.parametrize("rule", [{"every": HOUR}, {"cron": "0,1 * * * *"}, {"cron": "* * * * *"}])
@pytest.mark.parametrize("jitter", [10 * SECOND, HOUR, DAY])
def test_jitter_is_bounded_and_the_same_for_each_run(rule: dict[str, Any], jitter: timedelta) -> None:
    due = schedule(jitter=jitter, **rule)
    delays = set()
    at = due.next_at
    for _ in range(50):
        following = due.recurrence.next_after(at)
        moment = with_jitter(due, at)
        assert at <= moment <= min(at + jitter, following)
        assert moment == with_jitter(due, at)
        assert moment.microsecond % 1000 == 0
        delays.add(moment - at)
        at = following
    assert len(delays) > 40, "it is spread"


def test_two_schedules_of_one_time_have_different_jitter() -> None:
    moments = {schedule(name=f"s{n}", jitter=HOUR).due_at for n in range(100)}
    assert len(moments) > 95


def test_a_run_is_not_due_before_its_jitter() -> None:
    due = schedule(jitter=HOUR / 2, missed=Missed.ALL)
    assert not due.is_due(due.due_at - timedelta(milliseconds=1))
    assert due.is_due(due.due_at)
    second = with_next_run(due, due.next_at)
    for missed in Missed:
        before = runs_due(schedule(jitter=HOUR / 2, missed=missed), second.due_at - timedelta(milliseconds=1), 100)
        assert before.last == due.next_at, "the second one has not come"


def test_a_paused_schedule_is_not_due_and_starts_again_when_it_is_resumed() -> None:
    paused = schedule(is_paused=True)
    assert not paused.is_due(MIDNIGHT + DAY)
    assert next_runs(paused, 5) == []
    resumed = start_schedule(schedule(cron="0 * * * *"), MIDNIGHT + DAY + SECOND)
    assert resumed.next_at == MIDNIGHT + DAY + HOUR


def test_the_next_runs_of_a_schedule_are_found() -> None:
    assert next_runs(schedule(), 3) == [MIDNIGHT + n * HOUR for n in (1, 2, 3)]
    assert next_runs(schedule(jitter=HOUR), 1) == [schedule(jitter=HOUR).due_at]


def test_a_key_names_the_schedule_and_the_time() -> None:
    assert run_key("nightly", MIDNIGHT) == "schedule/nightly/2026-03-28T00:00:00.000Z"


def test_a_record_is_read_as_it_was_written() -> None:
    whole = schedule(
        parameters={"n": [1, None]},
        missed=Missed.ALL,
        jitter=MINUTE,
        last_run=LastRun(MIDNIGHT, "id"),
        every=90 * SECOND,
    )
    assert SCHEDULE.content(SCHEDULE.new("nightly", content=whole)) == whole
