"""Alerts and dashboard: made of metrics that exist, up to date, and true when they should be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from taskframework.observability.alerts import ALERTS, PAGE
from taskframework.observability.dashboard import ROWS
from taskframework.observability.metrics import Metrics
from taskframework.observability.monitoring import dashboard_json, rules_yaml
from tests.support.pages import ROOT

RULES = ROOT / "config" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "config" / "grafana" / "dashboard.json"

#: Added by who scrapes, by the parent of several worker processes, and by histograms.
_ADDED = {"instance", "job", "process", "le"}
_METRIC = re.compile(r"\b((?:tasks|batch)_\w+)(?:\{([^}]*)\})?")
_SUFFIX = re.compile(r"_(?:total|bucket|count|sum)$")


def expressions() -> Iterator[tuple[str, str]]:
    for alert in ALERTS:
        yield alert.name, alert.expression
    for _, panels in ROWS:
        for panel in panels:
            for expression, _ in panel.queries:
                yield panel.title, expression


KNOWN = {described.name: set(described.labels) for described in Metrics().table}


@pytest.mark.parametrize(("whose", "expression"), list(expressions()))
def test_every_metric_that_is_asked_for_exists_with_its_labels(whose: str, expression: str) -> None:
    labels = set[str]()
    found = _METRIC.findall(expression)
    assert found
    for name, matchers in found:
        bare = name if name in KNOWN else _SUFFIX.sub("", name)
        assert bare in KNOWN, f"{whose}: there is no metric {name}"
        labels |= KNOWN[bare]
        asked = set(re.findall(r"(\w+)\s*[=!]~?", matchers))
        assert asked <= KNOWN[bare] | _ADDED, f"{whose}: {name} has no such label"
    for grouping in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        assert set(grouping.split(", ")) <= labels | _ADDED, f"{whose}: no metric of it has such a label"


def test_counters_are_asked_for_by_the_name_that_prometheus_gives_them() -> None:
    exposed = set(re.findall(r"^# TYPE (\S+)", Metrics().exposition().decode(), re.MULTILINE)) | {
        "tasks_worker_restarts_total"
    }
    for whose, expression in expressions():
        for name, _ in _METRIC.findall(expression):
            histogram = re.sub(r"_(?:bucket|count|sum)$", "", name)
            assert name in exposed or histogram in exposed, f"{whose}: {name}"


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {
        _SUFFIX.sub("", name)
        for _, panels in ROWS
        for panel in panels
        for name, _ in _METRIC.findall(str(panel.queries))
    }
    assert shown == KNOWN.keys(), "every metric has a panel in `ROWS` of observability/dashboard.py"


def test_every_metric_is_on_the_page_with_its_labels() -> None:
    rows = [
        line.split("|")
        for line in (ROOT / "docs/operations/monitoring.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    told = {name: row[2] for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    by_bare = {
        _SUFFIX.sub("", name) if _SUFFIX.sub("", name) in KNOWN else name: labels for name, labels in told.items()
    }
    assert by_bare.keys() == KNOWN.keys(), "every metric has a row in docs/operations/monitoring.md"
    for name, labels in KNOWN.items():
        assert labels <= set(re.findall(r"`(\w+)`", by_bare[name])), name


@pytest.mark.parametrize(
    ("path", "made"), [(RULES, rules_yaml()), (DASHBOARD, dashboard_json())], ids=["rules", "dashboard"]
)
def test_the_files_are_up_to_date(path: Path, made: str) -> None:
    assert path.read_text() == made, "run: make docs"


def test_the_limit_of_the_wait_in_the_queue_is_the_bound_of_a_bucket() -> None:
    [limit] = re.findall(r"> (\d+)$", next(it.expression for it in ALERTS if it.name == "TaskframeworkQueueWait"))
    metrics = Metrics()
    metrics.queue_wait.observe(1, "t", "normal")
    assert f'le="{limit}.0"' in metrics.exposition().decode(), "else Prometheus estimates on which side of it a wait is"


def test_every_alert_has_a_section_that_says_what_to_do() -> None:
    sections = re.findall(r"^## (\w+)$", (ROOT / PAGE).read_text(), re.MULTILINE)
    assert sections == [alert.name for alert in ALERTS], f"{PAGE} has a section for each of `ALERTS`, in that order"
    page = "https://example.org/alerts/"
    addresses = [rule["annotations"]["runbook_url"] for rule in yaml.safe_load(rules_yaml(page))["groups"][0]["rules"]]
    assert addresses == [f"{page}#{name.lower()}" for name in sections]


class Case(NamedTuple):
    """What Prometheus has seen, a value a minute, and what it tells at a minute."""

    alert: str
    series: dict[str, str]
    at: str
    #: None: nothing.
    told: str | None = None
    labels: dict[str, str] = {}  # noqa: RUF012 - never changed


_TYPE = {"task_type": "t"}
_DEPTH = {
    'tasks_queue_depth{instance="a",task_type="t",lane="high"}': "1x20",
    'tasks_queue_depth{instance="a",task_type="t",lane="low"}': "2x20",
}
_WAITS = {
    f'tasks_queue_wait_seconds_bucket{{task_type="t",lane="low",le="{bound}"}}': f"0+{step}x40"
    for bound, step in (("60", 90), ("300", 90), ("1800", 100), ("+Inf", 100))
}
_FAILING = {'tasks_repairs_failed_total{instance="a",repair="reap"}': "_ 1+1x60"}
CASES = (
    Case("TaskframeworkUndrivenTasks", {'tasks_undriven{instance="a"}': "0 0 3x20"}, "6m"),
    Case(
        "TaskframeworkUndrivenTasks",
        {'tasks_undriven{instance="a"}': "0 0 3x20", 'tasks_undriven{instance="b"}': "0x20"},
        "8m",
        "Unfinished tasks that nothing will ever continue: 3",
    ),
    Case("TaskframeworkStreamHalted", {'tasks_halted_streams{instance="a"}': "0 0 2x20"}, "6m"),
    Case(
        "TaskframeworkStreamHalted",
        {'tasks_halted_streams{instance="a"}': "0 0 2x20", 'tasks_halted_streams{instance="b"}': "2x20"},
        "8m",
        "Streams that have halted because one of their tasks failed: 2",
    ),
    Case("TaskframeworkNoWorker", {**_DEPTH, 'tasks_workers{instance="a",task_type="t"}': "1x20"}, "10m"),
    Case(
        "TaskframeworkNoWorker",
        {
            **_DEPTH,
            'tasks_workers{instance="a",task_type="t"}': "1 1 0x20",
            'tasks_workers{instance="a",task_type="u"}': "1x20",
        },
        "5m",
        "No running worker handles t; waiting messages: 3",
        _TYPE,
    ),
    Case(
        "TaskframeworkWorkerLost",
        {'tasks_workers_lost{instance="a"}': "0 1x9"},
        "3m",
        "Workers that were killed, are frozen or cannot reach the store: 1",
    ),
    Case("TaskframeworkWorkerRestarts", {'tasks_worker_restarts_total{instance="a",process="2"}': "0+1x30"}, "2m"),
    Case(
        "TaskframeworkWorkerRestarts",
        {'tasks_worker_restarts_total{instance="a",process="2"}': "_x5 5x30"},
        "8m",
        "Process 2 of a died 5 times in 15 minutes",
        {"instance": "a", "process": "2"},
    ),
    Case(
        "TaskframeworkBrokerAway",
        {'tasks_broker_connected{instance="a"}': "1 1 0x9", 'tasks_broker_connected{instance="b"}': "1x9"},
        "4m",
        "a has no connection to RabbitMQ",
        {"instance": "a"},
    ),
    Case(
        "TaskframeworkStoreAway",
        {'tasks_store_available{instance="a"}': "1 1 0x9", 'tasks_store_available{instance="b"}': "1x9"},
        "4m",
        "a cannot reach its store",
        {"instance": "a"},
    ),
    Case("TaskframeworkDeadLetters", {'tasks_dlq_entered_total{instance="a",task_type="t"}': "4x60"}, "40m"),
    # The first dead letter of a type is the first sample of its series.
    Case(
        "TaskframeworkDeadLetters",
        {'tasks_dlq_entered_total{instance="a",task_type="t"}': "_x20 1x60"},
        "25m",
        "Tasks of t that became dead letters in 15 minutes: 1",
        _TYPE,
    ),
    Case(
        "TaskframeworkDeadLetters",
        {'tasks_dlq_entered_total{instance="a",task_type="t"}': "4x30 6x60"},
        "35m",
        "Tasks of t that became dead letters in 15 minutes: 2",
        _TYPE,
    ),
    Case("TaskframeworkQueueWait", {key: value.replace("90", "99") for key, value in _WAITS.items()}, "30m"),
    Case(
        "TaskframeworkQueueWait",
        _WAITS,
        "30m",
        "One of twenty tasks of t (low) waits longer than five minutes",
        {**_TYPE, "lane": "low"},
    ),
    Case("TaskframeworkStaleWrites", {'tasks_stale_writes_total{instance="a",task_type="t"}': "_x20 5x20"}, "22m"),
    Case(
        "TaskframeworkStaleWrites",
        {'tasks_stale_writes_total{instance="a",task_type="t"}': "_x20 7x20"},
        "22m",
        "7 results of t came after their lease was lost",
        _TYPE,
    ),
    Case(
        "TaskframeworkEventsLate",
        {'tasks_events_lag_seconds{instance="a"}': "0 61+60x20"},
        "7m",
        "External events have been waiting 7m 1s to be published",
    ),
    Case("TaskframeworkRepairFails", _FAILING | {'tasks_store_available{instance="a"}': "1x60"}, "10m"),
    Case("TaskframeworkRepairFails", _FAILING | {'tasks_store_available{instance="a"}': "1x38 0x9 1x20"}, "50m"),
    Case(
        "TaskframeworkRepairFails",
        _FAILING | {'tasks_store_available{instance="a"}': "1x60"},
        "50m",
        "Repair reap of a failed 15 times in 15 minutes",
        {"instance": "a", "repair": "reap"},
    ),
    Case(
        "TaskframeworkLoopBlocked",
        {'tasks_loop_lag_seconds{instance="a"}': "0 4x9"},
        "4m",
        "The event loop of a is 4s late",
        {"instance": "a"},
    ),
    Case(
        "TaskframeworkHttpErrors",
        {
            'tasks_http_responses_total{instance="a",status="202"}': "0+100x30",
            'tasks_http_responses_total{instance="a",status="500"}': "0+5x30",
        },
        "20m",
    ),
    Case(
        "TaskframeworkHttpErrors",
        {
            'tasks_http_responses_total{instance="a",status="202"}': "0+90x30",
            'tasks_http_responses_total{instance="a",status="503"}': "0+10x30",
        },
        "20m",
        "10% of the HTTP answers are server errors",
    ),
    Case("TaskframeworkNothingScraped", {'tasks_store_available{instance="a"}': "1x9"}, "8m"),
    Case("TaskframeworkNothingScraped", {"up": "0x30"}, "8m", "Prometheus gets no metrics from any process"),
)


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    told = {case.alert for case in CASES if case.told}
    assert told == {alert.name for alert in ALERTS}, "every alert has a case in `CASES` here in which it is told"


@pytest.fixture
def promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        reason = "promtool is not on this machine: run `make servers` (it is in the package prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return program


def _entry(case: Case) -> dict[str, Any]:
    """A case as promtool reads it."""
    alert = next(alert for alert in ALERTS if alert.name == case.alert)
    annotations = {"summary": case.told, "runbook_url": f"{PAGE}#{case.alert.lower()}"}
    labels = {"severity": alert.severity, **case.labels}
    told = [] if case.told is None else [{"exp_labels": labels, "exp_annotations": annotations}]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [{"eval_time": case.at, "alertname": case.alert, "exp_alerts": told}],
    }


def test_each_alert_fires_when_it_should(promtool: str, tmp_path: Path) -> None:
    tests = tmp_path / "tests.yml"
    tests.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": [*map(_entry, CASES)]})
    )
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(tests)]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
