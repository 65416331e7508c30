"""The growth benchmark asks what it says, of a store that holds what it says, and tells what grows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from taskframework import Settings, TaskFramework
from taskframework.model.drivers import DISPATCH, OUTBOX
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from tests.benchmarks import chart, growth_report
from tests.benchmarks.growth_filling import CHILDREN, PARENT, SqliteFiller, due, finished, waiting
from tests.benchmarks.growth_questions import Effort, measure

SIZES = [(100, 100), (1_000, 100)]


async def test_a_filled_store_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "growth.db"
    framework, filler = (
        TaskFramework(Settings.model_validate({"store": {"url": f"sqlite:///{path}"}})),
        SqliteFiller(path),
    )
    async with framework.store_only():
        store = framework.services.store
        filler.insert(finished(600, first=0))
        filler.insert(waiting(50))
        filler.settle()
        counts = await store.count_by_status()
        assert (counts[TaskStatus.QUEUED], counts[TaskStatus.FAILED], sum(counts.values())) == (50, 12, 650)
        assert await store.undriven(10) == []
        assert (await store.due(OUTBOX, 10), await store.due(DISPATCH, 10)) == ([], [])
        children = await store.list_tasks(EVERYONE, TaskFilter(parent_task_id=PARENT), limit=CHILDREN)
        assert (len(children.items), children.next_cursor) == (CHILDREN, None)
        filler.insert(due(3))
        found = await store.due(DISPATCH, 10)
        assert [task.dispatches for task in found] == [0, 0, 0]

        times = await measure(framework, filler, Effort(often=2, rarely=1))
    assert {name: len(took) for name, took in times.items() if not took or min(took) <= 0} == {}
    assert Counter(map(len, times.values()))[2] > 15


def a_report() -> dict[str, Any]:
    flat = {"get": [1.0, 1.0], "insert": [0.1]}, {"get": [1.4, 9.0, 1.2], "insert": [0.39]}
    grows = {"get": [1.0]}, {"get": [2.0]}
    return {
        "date": "2026-01-01 00:00 UTC",
        "machine": {"cpu": "c", "cores": 2, "memory_gib": 8, "system": "Linux", "python": "3.11"},
        "sizes": SIZES,
        "stores": {
            name: growth_report.store_report(dict(zip(SIZES, times, strict=True)))
            for name, times in (("MongoDB", flat), ("SQLite", grows))
        },
        "memory": [(1_000, 90.0), (5_000, 91.5)],
    }


def test_a_question_grows_if_it_takes_longer_by_more_than_noise() -> None:
    stores = a_report()["stores"]
    assert stores["MongoDB"]["get"] == {"median_ms": [1.0, 1.4], "p99_ms": [1.0, 9.0], "ratio": 1.4, "grows": False}
    assert (stores["MongoDB"]["insert"]["ratio"], stores["MongoDB"]["insert"]["grows"]) == (3.9, False)
    assert stores["SQLite"]["get"]["grows"]


def test_the_page_has_every_question_and_size() -> None:
    page = growth_report.markdown(a_report())
    assert "| get | 1.00 (1.00) | 1.40 (9.00) | 1.40 | flat |" in page
    assert "| get | 1.00 (1.00) | 2.00 (2.00) | 2.00 | grows |" in page
    assert "|  | 100 + 100 | 1,000 + 100 | ratio | verdict |" in page
    assert "| 5,000 | 91.5 |" in page


def test_the_chart_has_a_bar_for_each_store() -> None:
    drawn = chart.svg(growth_report.CHART, growth_report.drawn(a_report()))
    assert drawn is not None
    assert drawn.count("<rect") == 1 + 4 + 3  # the page, the legend, the bars
    assert "above 1.5 it grows" in drawn


def test_a_ratio_beyond_the_chart_is_not_drawn() -> None:
    report = a_report()
    report["stores"]["SQLite"]["get"]["ratio"] = 80.0
    drawn = chart.svg(growth_report.CHART, growth_report.drawn(report))
    assert drawn is not None
    assert (drawn.count("<rect"), ">80.0<" in drawn) == (1 + 4 + 2, False)
