"""What needs somebody, out of what is seen of an installation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from taskframework.model.counts import TaskCounts
from taskframework.model.limits import ReachedLimit
from taskframework.model.overview import Overview
from taskframework.model.pauses import Pause
from taskframework.model.schedules import RunProblem, Schedule
from taskframework.model.status import Priority
from taskframework.model.traffic import LaneTraffic, Traffic
from taskframework.model.workers import LOST_AFTER, Presence
from tests.unit.model.scenes import MINUTE, NOW, SECOND

WORKER = Presence("worker-1", "host", 1, "1.0", ("charge",), 10, 0, NOW - MINUTE, NOW - SECOND)
LOST = replace(WORKER, worker_id="gone", seen_at=NOW - LOST_AFTER - SECOND)
NIGHTLY = Schedule(name="nightly", task_type="charge", cron="0 3 * * *", since=NOW, next_at=NOW, due_at=NOW)
WELL = Overview(
    Traffic(NOW, {("charge", Priority.NORMAL): LaneTraffic(waiting=3, finished_per_second=2.0)}),
    TaskCounts(NOW, {"COMPLETED": 90, "FAILED": 2, "DEAD_LETTER": 3}),
    ("charge", "mail"),
    {},
    (WORKER,),
    is_broker_connected=True,
)


def seen(lane: LaneTraffic) -> Traffic:
    return Traffic(NOW, {("charge", Priority.LOW): lane})


def test_an_alarm_of_the_broker_is_not_shown_as_a_missing_connection() -> None:
    [problem] = replace(WELL, is_broker_connected=False, is_broker_blocked=True).problems()
    assert problem.code == "broker_away"
    assert "memory or disk alarm" in problem.text
    assert "connection" not in problem.text


UNWELL: Mapping[str, tuple[Overview, str]] = {
    "broker_away": (replace(WELL, is_broker_connected=False), "no connection to the broker"),
    "limiter_away": (replace(WELL, is_limiter_away=True), "Tasks with a rate limit wait until it is back"),
    "undriven": (replace(WELL, counts=TaskCounts(NOW, undriven=2)), "2 unfinished tasks"),
    "no_worker": (
        replace(WELL, workers=()),
        "3 charge tasks are waiting, and no running worker handles this type. Start a worker whose program",
    ),
    "worker_lost": (replace(WELL, workers=(WORKER, LOST)), "Worker gone has sent no sign of life since 2026-01-02"),
    "failing": (
        replace(WELL, traffic=seen(LaneTraffic(finished_per_second=1.0, failed_per_second=0.75))),
        "75% of the charge tasks that ended in the last minute failed",
    ),
    "retrying": (
        replace(WELL, traffic=seen(LaneTraffic(retrying=1_200, finished_per_second=5.0, failed_per_second=1.0))),
        "1,200 charge tasks failed and will be retried",
    ),
    "behind": (
        replace(WELL, traffic=seen(LaneTraffic(9, NOW - 6 * MINUTE, submitted_per_second=2.0))),
        "9 charge tasks are waiting, the oldest since 2026-01-02T02:58:05.000Z; they arrive at 2 per second and finish",
    ),
    "halted": (
        replace(WELL, counts=TaskCounts(NOW, halted_streams=1)),
        "1 stream has halted because one of its tasks failed",
    ),
    "schedule": (
        replace(WELL, schedules=(replace(NIGHTLY, problem=RunProblem(NOW, "gone")), NIGHTLY)),
        "The last run of schedule nightly could not be submitted",
    ),
    "paused": (
        replace(WELL, pauses={"charge": Pause("charge", "ada", NOW, "a bad release")}),
        "ada paused charge at 2026-01-02T03:04:05.000Z (a bad release); 3 charge tasks are waiting",
    ),
}


def test_an_installation_without_trouble_has_no_problems() -> None:
    assert list(WELL.problems()) == []
    assert (WELL.dead_letters, WELL.at) == (5, NOW)
    few = LaneTraffic(finished_per_second=1.0, failed_per_second=0.4)
    assert list(replace(WELL, traffic=seen(few)).problems()) == []
    usual = LaneTraffic(retrying=200, finished_per_second=5.0, failed_per_second=1.0)
    assert list(replace(WELL, traffic=seen(usual)).problems()) == []
    assert list(replace(WELL, traffic=seen(LaneTraffic(retrying=9))).problems()) == []
    for catches_up in (
        LaneTraffic(9, NOW - 4 * MINUTE, submitted_per_second=2.0),
        LaneTraffic(9, NOW - 6 * MINUTE, submitted_per_second=2.0, finished_per_second=2.5),
    ):
        assert list(replace(WELL, traffic=seen(catches_up)).problems()) == []
    assert list(replace(WELL, counts=None, is_broker_connected=None).problems()) == []
    paused = replace(NIGHTLY, problem=RunProblem(NOW, "gone"), is_paused=True)
    assert list(replace(WELL, schedules=(paused,)).problems()) == []


@pytest.mark.parametrize("code", UNWELL)
def test_each_problem_of_an_installation_is_named(code: str) -> None:
    overview, text = UNWELL[code]
    [problem] = overview.problems()
    assert problem.code == code
    assert text in problem.text


@pytest.mark.parametrize(("waiting", "is_behind"), [(1_700, False), (1_900, True)])
def test_a_task_type_that_needs_over_half_an_hour_for_its_waiting_tasks_is_behind(
    waiting: int, is_behind: bool
) -> None:
    slow = LaneTraffic(waiting, NOW - 6 * MINUTE, submitted_per_second=1.0, finished_per_second=2.0)
    problems = list(replace(WELL, traffic=seen(slow)).problems())
    assert [problem.code for problem in problems] == (["behind"] if is_behind else [])


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (
            [ReachedLimit("rate", "openai", None)],
            "The rate limit 'openai' is used up: a higher rate in rate_limiter lets more tasks start.",
        ),
        (
            [
                ReachedLimit("rate", "openai", "acme"),
                ReachedLimit("rate", "openai", "b"),
                ReachedLimit("rate", "x", "c"),
            ],
            "The rate limit 'openai' for acme and 2 other keys is used up: a higher rate",
        ),
        (
            [ReachedLimit("concurrency", "charge", "acme")],
            "All slots of charge for acme are in use: a higher concurrency_limit lets more tasks run.",
        ),
    ],
)
def test_tasks_that_wait_for_a_limit_do_not_need_more_workers(limits: list[ReachedLimit], text: str) -> None:
    overview = replace(UNWELL["behind"][0], reached_limits={"charge": limits})
    [problem] = overview.problems()
    assert problem.code == "behind"
    assert text in problem.text
    assert "More workers do not help the tasks that wait for a limit" in problem.text
    assert "Start more workers" not in problem.text


def test_a_paused_task_type_is_not_behind() -> None:
    paused = replace(UNWELL["behind"][0], pauses={"charge": Pause("charge", "ada", NOW)})
    assert [problem.code for problem in paused.problems()] == ["paused"]


def test_a_count_up_to_a_bound_is_not_shown_as_the_whole_number() -> None:
    assert [replace(WELL, counts=counts).dead_letters for counts in (None, TaskCounts(NOW))] == [None, None]
    many = Traffic(NOW, {("charge", Priority.NORMAL): LaneTraffic(waiting=5_000, is_bounded=True)})
    [problem] = replace(WELL, traffic=many, workers=()).problems()
    assert "5,000 or more charge tasks are waiting" in problem.text
    beside = {("mail", Priority.NORMAL): LaneTraffic(waiting=2), **many.lanes}
    both = replace(WELL, traffic=Traffic(NOW, beside), workers=()).problems()
    assert any(problem.text.startswith("2 mail tasks are waiting") for problem in both)


def test_a_lost_worker_is_named_with_what_to_do() -> None:
    [problem] = UNWELL["worker_lost"][0].problems()
    assert "Look at process 1 on host, or start a worker in its place: taskframework worker --app" in problem.text


def test_a_lost_worker_in_whose_place_another_was_started_needs_nobody() -> None:
    after = replace(WORKER, started_at=LOST.seen_at + SECOND, task_types=("charge", "mail"))
    earlier = replace(LOST, worker_id="gone earlier", seen_at=NOW - 9 * MINUTE)
    meanwhile = replace(LOST, started_at=NOW - 8 * MINUTE)
    for well in ((LOST, after), (earlier, meanwhile, after), (after, meanwhile, earlier)):
        assert list(replace(WELL, workers=well).problems()) == []
    for still_missing in (
        (replace(after, host="elsewhere"), LOST),
        (replace(after, task_types=("mail",)), LOST, WORKER),
        (after, LOST, replace(LOST, worker_id="its brother")),
    ):
        problems = replace(WELL, workers=still_missing).problems()
        assert [problem.code for problem in problems] == ["worker_lost"]


def test_a_lost_worker_runs_nothing() -> None:
    overview = replace(WELL, workers=(LOST,))
    assert [problem.code for problem in overview.problems()] == ["no_worker", "worker_lost"]
    assert overview.live_workers == ()


def test_running_and_retrying_tasks_are_shown_as_counted_now_unless_bounded() -> None:
    lanes = {
        ("charge", Priority.NORMAL): LaneTraffic(running=2, retrying=1),
        ("send", Priority.LOW): LaneTraffic(running=1, retrying=4),
    }
    seen = replace(WELL, traffic=Traffic(NOW, lanes))
    assert seen.by_status == {"COMPLETED": 90, "FAILED": 2, "DEAD_LETTER": 3, "RUNNING": 3, "RETRYING": 5}
    bounded = replace(WELL, traffic=Traffic(NOW, lanes, is_running_bounded=True))
    assert bounded.by_status == {"COMPLETED": 90, "FAILED": 2, "DEAD_LETTER": 3}


def test_discarded_tasks_are_no_dead_letters() -> None:
    counts = TaskCounts(NOW, {"FAILED": 2, "DEAD_LETTER": 3}, dead_letters=1)
    assert (WELL.dead_letters, replace(WELL, counts=counts).dead_letters) == (5, 1)
