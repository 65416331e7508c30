"""`top` and `queues list`: what people and programs see of an installation."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from rich.console import Console

from taskframework.cli.top import render_overview
from taskframework.model.counts import TaskCounts
from taskframework.model.status import Priority
from taskframework.model.traffic import LaneTraffic, Traffic
from tests.unit.cli.conftest import Cli
from tests.unit.model.scenes import MINUTE, NOW, SECOND
from tests.unit.model.test_overview import UNWELL, WELL


def shown(overview: object) -> list[str]:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(overview)
    return capture.get().splitlines()


def test_the_screen_has_the_counts_the_problems_and_a_line_for_each_type() -> None:
    first, problem, _, names, charge, mail = shown(render_overview(UNWELL["paused"][0]))
    assert first == "1 worker, 5 dead letters   COMPLETED 90   FAILED 2   DEAD_LETTER 3"
    assert problem.startswith("paused: ada paused charge")
    assert names.split() == ["Type", "Waiting", "Oldest", "Running", "Retrying", "In", "Out", "Failed"]
    assert charge.split() == ["charge", "3", "-", "0", "0", "0/s", "2/s", "0/s"]
    assert mail.split()[0] == "mail"


@pytest.mark.parametrize(("age", "told"), [(SECOND, ""), (12 * SECOND, "   as of 12 s ago")])
def test_old_counts_say_how_old_they_are(age: timedelta, told: str) -> None:
    counts = TaskCounts(NOW, {"COMPLETED": 90}, counted_at=NOW - age)
    [first, *_] = shown(render_overview(replace(WELL, counts=counts)))
    assert first == f"1 worker, 0 dead letters   COMPLETED 90{told}"


def test_a_count_up_to_a_bound_is_marked() -> None:
    full, few = LaneTraffic(10_000, NOW - 5 * MINUTE, is_bounded=True), LaneTraffic(2, NOW - 5 * MINUTE, running=7)
    lanes = {("charge", Priority.HIGH): full, ("mail", Priority.HIGH): few}
    *_, charge, mail = shown(render_overview(replace(WELL, traffic=Traffic(NOW, lanes, is_running_bounded=True))))
    assert charge.split()[:2] == ["charge", "10,000+"]
    assert mail.split()[:6] == ["mail", "2", "5", "min", "ago", "7+"]


@pytest.mark.usefixtures("empty_store")
def test_an_empty_installation_is_shown_once_where_nobody_watches(cli: Cli) -> None:
    done = cli("top")
    assert (done.code, done.out.splitlines()[0]) == (0, "0 workers, 0 dead letters")
    told = json.loads(cli("top", "--json").out)
    assert (told["workers"], told["types"], told["problems"]) == (0, [], [])


@pytest.mark.usefixtures("empty_store")
def test_a_refresh_interval_that_is_no_time_is_refused(cli: Cli) -> None:
    assert cli("top", "--every", "soon").code == 2
