"""The Grafana dashboard of an installation, as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

_SOURCE = {"type": "prometheus", "uid": "${source}"}
#: The number of columns of Grafana's grid.
_GRID_COLUMNS = 24
_PANEL_HEIGHT = 8


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart, or one number."""

    title: str
    #: Expressions in PromQL, each with the legend of its series.
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: Literal["timeseries", "stat"] = "timeseries"
    #: A number is red from this value on; None means never.
    alarming: float | None = None


_OF_TYPE = '{task_type=~"$task_type"}'


def _rate(counter: str, *by: str, of: str = _OF_TYPE, what: str = "") -> tuple[str, str]:
    """Return a counter's increase per second, one series for each value of these labels; `what` ends their legend."""
    labels = " ".join(f"{{{{{name}}}}}" for name in by)
    return f"sum by ({', '.join(by)}) (rate({counter}{of}[$__rate_interval]))", f"{labels} {what}".strip()


#: As `_rate`, for a counter without a label for the task type.
_rate_of_all = partial(_rate, of="")


def _quantiles(histogram: str) -> tuple[tuple[str, str], ...]:
    buckets = f"sum by (le, task_type) (rate({histogram}_bucket{_OF_TYPE}[$__rate_interval]))"
    return tuple(
        (f"histogram_quantile({share}, {buckets})", f"{{{{task_type}}}} p{share * 100:g}") for share in (0.5, 0.95)
    )


#: The rows, each with its title. All panels of a row have the same width.
ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "At a glance",
        (
            Panel("Undriven tasks", (("max(tasks_undriven)", ""),), kind="stat", alarming=1),
            Panel(
                "Dead letters",
                (('sum(max by (status) (tasks_by_status{status=~"FAILED|DEAD_LETTER"}))', ""),),
                kind="stat",
                alarming=1,
            ),
            Panel("Halted streams", (("max(tasks_halted_streams)", ""),), kind="stat", alarming=1),
            Panel("Lost workers", (("max(tasks_workers_lost)", ""),), kind="stat", alarming=1),
            Panel(
                "Processes without broker",
                (("count(tasks_broker_connected == 0) or vector(0)", ""),),
                kind="stat",
                alarming=1,
            ),
            Panel(
                "Processes without store",
                (("count(tasks_store_available == 0) or vector(0)", ""),),
                kind="stat",
                alarming=1,
            ),
            Panel("Attempts running", (("sum(tasks_in_flight)", ""),), kind="stat"),
        ),
    ),
    (
        "Flow",
        (
            Panel("Submitted, by type", (_rate("tasks_submitted_total", "task_type"),), "ops"),
            Panel(
                "Attempts, by outcome",
                (_rate("tasks_execution_seconds_count", "task_type", "status"),),
                "ops",
            ),
            Panel("Tasks by status", (("max by (status) (tasks_by_status)", "{{status}}"),)),
        ),
    ),
    (
        "Waiting",
        (
            Panel("Wait in the queue", _quantiles("tasks_queue_wait_seconds"), "s"),
            Panel(
                "Messages ready",
                ((f"max by (task_type, lane) (tasks_queue_depth{_OF_TYPE})", "{{task_type}} {{lane}}"),),
            ),
            Panel("Workers, by type", ((f"max by (task_type) (tasks_workers{_OF_TYPE})", "{{task_type}}"),)),
            Panel("Paused", ((f"max by (task_type) (tasks_paused{_OF_TYPE})", "{{task_type}}"),)),
        ),
    ),
    (
        "Working",
        (
            Panel("Time of an attempt", _quantiles("tasks_execution_seconds"), "s"),
            Panel("First result of a batch", _quantiles("batch_first_response_seconds"), "s"),
            Panel(
                "Running, and consuming",
                (
                    ("sum by (instance) (tasks_in_flight)", "{{instance}}"),
                    ("sum(tasks_consuming)", "consuming processes"),
                ),
            ),
        ),
    ),
    (
        "Trouble",
        (
            Panel("Retries", (_rate("tasks_retries_total", "task_type"),), "ops"),
            Panel("New dead letters", (_rate("tasks_dlq_entered_total", "task_type"),), "ops"),
            Panel("Results after a lost lease", (_rate("tasks_stale_writes_total", "task_type"),), "ops"),
            Panel("Repairs that failed", (_rate_of_all("tasks_repairs_failed_total", "repair"),), "ops"),
        ),
    ),
    (
        "Limits",
        (
            Panel(
                "Permits of rate limits",
                (
                    _rate_of_all("tasks_rate_limit_permits_total", "limit"),
                    _rate_of_all("tasks_rate_limit_turns_total", "limit", what="put off"),
                ),
                "ops",
            ),
            Panel("Slots held", ((f"sum by (task_type) (tasks_concurrency_slots_held{_OF_TYPE})", "{{task_type}}"),)),
            Panel("Without a slot", (_rate("tasks_concurrency_waits_total", "task_type"),), "ops"),
        ),
    ),
    (
        "Events and HTTP",
        (
            Panel("External events", (_rate_of_all("tasks_events_published_total", "event_type"),), "ops"),
            Panel("Events late", (("max(tasks_events_lag_seconds)", "late by"),), "s"),
            Panel(
                "Events inside, by listener",
                (
                    _rate_of_all("tasks_events_processed_total", "listener"),
                    _rate_of_all("tasks_events_failed_total", "listener", what="failed"),
                ),
                "ops",
            ),
            Panel("HTTP answers", (_rate_of_all("tasks_http_responses_total", "status"),), "ops"),
        ),
    ),
    (
        "Processes",
        (
            Panel(
                "Event loop late",
                (("max by (instance, process) (tasks_loop_lag_seconds)", "{{instance}} {{process}}"),),
                "s",
            ),
            Panel("Event loop blocked, by type", (_rate("tasks_loop_blocked_total", "task_type"),), "ops"),
            Panel("Process restarts", (_rate_of_all("tasks_worker_restarts_total", "instance"),), "ops"),
            Panel("Status changes written", (_rate_of_all("tasks_state_db_updates_total", "operation"),), "ops"),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana reads it: by import, or from a provisioning folder."""
    return {
        "uid": "taskframework",
        "title": "taskframework",
        "tags": ["taskframework"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source_variable(), _task_type_variable()]},
        "panels": list(_place_panels(ROWS)),
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _task_type_variable() -> dict[str, Any]:
    return {
        "name": "task_type",
        "label": "Task type",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(tasks_workers, task_type)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _place_panels(rows: Sequence[tuple[str, Sequence[Panel]]]) -> Iterator[dict[str, Any]]:
    """Yield rows and panels with their places on the grid."""
    number = top = 0
    for title, panels in rows:
        number += 1
        place = {"x": 0, "y": top, "w": _GRID_COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        width = _GRID_COLUMNS // len(panels)
        for column, panel in enumerate(panels):
            number += 1
            place = {"x": column * width, "y": top + 1, "w": width, "h": _PANEL_HEIGHT}
            yield {"id": number, "gridPos": place, **_view(panel)}
        top += 1 + _PANEL_HEIGHT


def _view(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.alarming is not None:
        steps.append({"color": "red", "value": panel.alarming})
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend or "__auto",
            }
            for place, (expression, legend) in enumerate(panel.queries)
        ],
    }
