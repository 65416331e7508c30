"""What waits, runs, comes and goes, out of counts that stop at a bound."""

from __future__ import annotations

from datetime import datetime

from taskframework.model.status import Priority
from taskframework.model.traffic import CountedTasks, LaneCount, LaneCounts, LaneTraffic, combine_counts
from tests.unit.model.scenes import MINUTE, NOW, SECOND

NORMAL, LOW = Priority.NORMAL, Priority.LOW
EMPTY = {group: [LaneCounts()] for group in CountedTasks}


def counted(count: int, first_at: datetime = NOW - MINUTE, *, lane: Priority = NORMAL, due: int = 0) -> LaneCount:
    return LaneCount("charge", lane, count, due, first_at, NOW - 2 * MINUTE)


def test_lanes_are_counted_separately_and_a_task_type_is_their_sum() -> None:
    seen = combine_counts(
        {
            **EMPTY,
            CountedTasks.WAITING: [LaneCounts((counted(9, due=4), counted(3, lane=LOW, due=0)))],
            CountedTasks.RUNNING: [LaneCounts((counted(2, lane=LOW),))],
            CountedTasks.RETRYING: [LaneCounts((counted(5),))],
            CountedTasks.SUBMITTED: [LaneCounts((counted(120),))],
            CountedTasks.DONE: [LaneCounts((counted(30),))],
            CountedTasks.DEAD: [LaneCounts((counted(15), counted(15, lane=LOW)))],
        },
        NOW,
    )
    assert seen.of_lane("charge", NORMAL) == LaneTraffic(4, NOW - 2 * MINUTE, 0, 2.0, 0.75, 0.25, 5)
    assert seen.of_lane("charge", LOW) == LaneTraffic(running=2, finished_per_second=0.25, failed_per_second=0.25)
    assert seen.of_type("charge") == LaneTraffic(4, NOW - 2 * MINUTE, 2, 2.0, 1.0, 0.5, 5)
    assert seen.of_type("unknown") == LaneTraffic()
    assert (seen.task_types, seen.is_bounded) == (frozenset({"charge"}), False)


def test_a_rate_is_taken_over_what_was_looked_at() -> None:
    newest = LaneCounts((counted(100, NOW - 4 * SECOND), counted(20, NOW - 2 * SECOND, lane=LOW)), is_bounded=True)
    assert newest.rates(NOW) == {("charge", NORMAL): 25.0, ("charge", LOW): 5.0}
    all_at_once = LaneCounts((counted(100, NOW),), is_bounded=True)
    assert all_at_once.rates(NOW)["charge", NORMAL] == 100_000


def test_a_count_that_may_be_larger_is_marked_as_bounded() -> None:
    for group in CountedTasks:
        seen = combine_counts({**EMPTY, group: [LaneCounts((counted(1, due=1),), is_bounded=True)]}, NOW)
        live = group in (CountedTasks.WAITING, CountedTasks.RUNNING, CountedTasks.RETRYING)
        assert (seen.is_bounded, seen.is_running_bounded) == (live, group is CountedTasks.RUNNING), group


def test_a_full_lane_is_bounded_and_the_other_lanes_are_not() -> None:
    full, few = LaneCounts((counted(9, due=9),), is_bounded=True), LaneCounts((counted(3, lane=LOW, due=3),))
    seen = combine_counts({**EMPTY, CountedTasks.WAITING: [full, few]}, NOW)
    assert (seen.of_lane("charge", NORMAL).is_bounded, seen.of_lane("charge", LOW).is_bounded) == (True, False)
    assert seen.of_type("charge").is_bounded
    later = LaneCounts((counted(9, due=2),), is_bounded=True)
    seen = combine_counts({**EMPTY, CountedTasks.WAITING: [later]}, NOW)
    assert not seen.is_bounded, "what is due comes first, so all of it was counted"
