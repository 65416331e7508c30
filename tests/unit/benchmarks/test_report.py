"""One run as JSON, Markdown, table and chart."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from rich.console import Console

from tests.benchmarks import chart, table
from tests.unit.benchmarks.reports import NAMES, example

_SVG = "{http://www.w3.org/2000/svg}"


def test_the_report_is_json() -> None:
    whole = example()
    assert json.loads(json.dumps(whole))["contenders"]["taskframework"]["figures"]["drain_2"] == {
        "value": 3300,
        "low": 3000,
        "high": 3600,
    }


def test_ratios_name_the_best_peer_and_never_the_floor() -> None:
    # Dramatiq with one process is faster than any peer with two.
    assert example()["ratios"]["drain_2"] == {"best_peer": "dramatiq", "to_best_peer": 1.65, "to_floor": 0.8}


@pytest.mark.parametrize(
    ("part", "value", "limit", "met"),
    [
        ("Drain with 2", 1.65, 1.5, True),
        ("submit to start, median", 5, 2 + 3, True),
        ("submit to start, p99", 6, 3 + 4, True),
        ("dramatiq's", 500, 600, True),
        ("taskiq's", 500, 500, True),
        ("floor", 1.25, 1.5, True),
        ("Embedded", 2500, 2000, True),
    ],
)
def test_targets_are_judged_by_the_figures(part: str, value: float, limit: float, met: bool) -> None:
    (target,) = [target for target in example()["targets"] if part in target["title"]]
    assert (target["value"], target["limit"], target["met"]) == (value, limit, met)


def test_a_target_without_figures_is_not_judged() -> None:
    assert not [
        target for target in example()["targets"] if "celery" in target["title"] or "submit_many" in target["title"]
    ]


def test_markdown_has_every_contender_with_its_configuration_and_weaknesses() -> None:
    page = table.markdown(example())
    assert "| Drain, 2 worker processes (tasks/s) | 3,300 (3,000\u20133,600) | 1,500 | 1,800 | 4,125 | " in page
    assert page.count("- queue: quorum") == page.count("- less") == len(NAMES)
    assert page.count("| met |") == len(example()["targets"])
    assert "Submit, single calls" not in page.split("## Targets")[0], "a row without figures"


def test_the_terminal_shows_failures() -> None:
    console = Console(width=150)
    with console.capture() as captured:
        console.print(table.terminal(example(failures=["round 1, taskiq: it died"])))
    assert "failed: round 1, taskiq: it died" in captured.get()
    assert "3,300" in captured.get()


@pytest.mark.parametrize(
    ("value", "text"), [(4321.4, "4,321"), (98.74, "98.7"), (0.123, "0.12"), (100, "100"), (0, "0.00")]
)
def test_numbers_have_three_figures(value: float, text: str) -> None:
    assert table.number(value) == text


def test_a_chart_tells_its_figures_to_those_who_do_not_see_it() -> None:
    drawn = chart.svg(chart.CHARTS[0], example())
    assert drawn is not None
    root = ElementTree.fromstring(drawn)
    title, description = root.find(f"{_SVG}title"), root.find(f"{_SVG}desc")
    assert title is not None
    assert description is not None
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert "taskframework: 1 process 1,500, 2 processes 3,300; " in (description.text or "")


def test_a_bar_is_as_long_as_its_figure() -> None:
    drawn = chart.svg(chart.CHARTS[0], example())
    assert drawn is not None
    bars = [rect for rect in ElementTree.fromstring(drawn).iter(f"{_SVG}rect") if rect.get("rx") == "2"]
    widths = [float(bar.get("width", 0)) for bar in bars]
    assert len(widths) == 2 * len(NAMES)
    assert widths[1] / widths[0] == pytest.approx(3300 / 1500, rel=0.01)


def test_a_chart_without_figures_is_not_drawn() -> None:
    (submit,) = [one for one in chart.CHARTS if one.file == "submit.svg"]
    assert chart.svg(submit, example()) is None
