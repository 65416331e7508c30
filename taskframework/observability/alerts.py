"""The alerts for an installation, as data; `monitoring` prints them as rules for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

#: The page on which each alert has a section that says what to do.
PAGE = "docs/operations/alerts.md"
_GROUP = "taskframework"


@dataclass(frozen=True, slots=True)
class Alert:
    """A condition about which operators should know."""

    name: str
    #: An expression in PromQL; the condition is true while it returns any series.
    expression: str
    #: How long the condition must be true before the alert fires.
    lasts: str
    #: Whether operators have to act at once, or on the next day.
    severity: Literal["critical", "warning"]
    #: The problem in words; Prometheus fills in `{{ $labels.x }}` and `{{ $value }}`.
    summary: str

    def rule(self, page: str) -> dict[str, Any]:
        """Return the alert as an entry of a rules file; `page` is the address of the page about all alerts."""
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.lasts,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "runbook_url": f"{page}#{self.name.lower()}"},
        }


def grown(counter: str, during: str) -> str:
    """Return an expression for how much each series of a counter grew.

    A counter appears with its first increment, and `increase` sees only later increments. So a series that did not
    exist before counts with its whole value.
    """
    return f"({counter} unless {counter} offset {during}) or increase({counter}[{during}])"


ALERTS = (
    Alert(
        "TaskframeworkUndrivenTasks",
        "max(tasks_undriven) > 0",
        "5m",
        "critical",
        'Unfinished tasks that nothing will ever continue: {{ $value | printf "%.0f" }}',
    ),
    Alert(
        "TaskframeworkNoWorker",
        "max by (task_type) (sum by (instance, process, task_type) (tasks_queue_depth)) > 0"
        " and on (task_type) max by (task_type) (tasks_workers) == 0",
        "2m",
        "critical",
        'No running worker handles {{ $labels.task_type }}; waiting messages: {{ $value | printf "%.0f" }}',
    ),
    Alert(
        "TaskframeworkWorkerLost",
        "max(tasks_workers_lost) > 0",
        "1m",
        "warning",
        'Workers that were killed, are frozen or cannot reach the store: {{ $value | printf "%.0f" }}',
    ),
    Alert(
        "TaskframeworkStreamHalted",
        "max(tasks_halted_streams) > 0",
        "5m",
        "warning",
        'Streams that have halted because one of their tasks failed: {{ $value | printf "%.0f" }}',
    ),
    Alert(
        "TaskframeworkWorkerRestarts",
        f"sum by (instance, process) ({grown('tasks_worker_restarts_total', '15m')}) > 3",
        "0m",
        "warning",
        'Process {{ $labels.process }} of {{ $labels.instance }} died {{ $value | printf "%.0f" }} times in 15 minutes',
    ),
    Alert(
        "TaskframeworkBrokerAway",
        "tasks_broker_connected == 0",
        "1m",
        "critical",
        "{{ $labels.instance }} has no connection to RabbitMQ",
    ),
    Alert(
        "TaskframeworkStoreAway",
        "tasks_store_available == 0",
        "30s",
        "critical",
        "{{ $labels.instance }} cannot reach its store",
    ),
    Alert(
        "TaskframeworkDeadLetters",
        f"sum by (task_type) ({grown('tasks_dlq_entered_total', '15m')}) > 0",
        "0m",
        "warning",
        'Tasks of {{ $labels.task_type }} that became dead letters in 15 minutes: {{ $value | printf "%.0f" }}',
    ),
    Alert(
        "TaskframeworkQueueWait",
        "histogram_quantile(0.95, sum by (le, task_type, lane) (rate(tasks_queue_wait_seconds_bucket[10m]))) > 300",
        "10m",
        "warning",
        # No value in the text, because it is an estimate; five minutes is a bucket's bound, so the comparison is exact.
        "One of twenty tasks of {{ $labels.task_type }} ({{ $labels.lane }}) waits longer than five minutes",
    ),
    Alert(
        "TaskframeworkStaleWrites",
        f"sum by (task_type) ({grown('tasks_stale_writes_total', '15m')}) > 5",
        "0m",
        "warning",
        '{{ $value | printf "%.0f" }} results of {{ $labels.task_type }} came after their lease was lost',
    ),
    Alert(
        "TaskframeworkEventsLate",
        "max(tasks_events_lag_seconds) > 60",
        "5m",
        "warning",
        "External events have been waiting {{ $value | humanizeDuration }} to be published",
    ),
    Alert(
        "TaskframeworkRepairFails",
        # An outage of the store makes all repairs of all processes fail, and has its own alert.
        f"sum by (instance, repair) ({grown('tasks_repairs_failed_total', '15m')}) > 10"
        " and on (instance) min by (instance) (min_over_time(tasks_store_available[15m])) == 1",
        "15m",
        "warning",
        'Repair {{ $labels.repair }} of {{ $labels.instance }} failed {{ $value | printf "%.0f" }} times in 15 minutes',
    ),
    Alert(
        "TaskframeworkLoopBlocked",
        "tasks_loop_lag_seconds > 1",
        "2m",
        "warning",
        "The event loop of {{ $labels.instance }} is {{ $value | humanizeDuration }} late",
    ),
    Alert(
        "TaskframeworkHttpErrors",
        'sum(rate(tasks_http_responses_total{status=~"5.."}[5m])) / sum(rate(tasks_http_responses_total[5m])) > 0.05',
        "5m",
        "warning",
        "{{ $value | humanizePercentage }} of the HTTP answers are server errors",
    ),
    Alert(
        "TaskframeworkNothingScraped",
        "absent(tasks_store_available)",
        "5m",
        "critical",
        "Prometheus gets no metrics from any process",
    ),
)


def rules(page: str = PAGE) -> dict[str, Any]:
    """Return all alerts as a rules file of Prometheus."""
    return {"groups": [{"name": _GROUP, "rules": [alert.rule(page) for alert in ALERTS]}]}
