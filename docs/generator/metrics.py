"""The metrics, from their definitions."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Gauge

from docs.generator.tables import table
from taskframework.observability.metrics import EventCounter, Metrics, SecondsHistogram

_INTRODUCTION = """\
# Metrics

What `/metrics` of every api and worker shows, in the format of Prometheus. Which of them are worth an alert, and how
the counts of the store come about, is in [monitoring](../operations/monitoring.md). `worker --processes` adds
`tasks_worker_restarts_total`, with the label `process`: how often a worker process was restarted.

This page is made from the definitions, by `make docs`.

"""


def markdown() -> str:
    """A row for each metric."""
    return _INTRODUCTION + table(("Metric", "Kind", "Labels", "Meaning"), sorted(_rows()))


def _rows() -> Iterator[tuple[str, str, str, str]]:
    for metric in vars(Metrics()).values():
        match metric:
            case EventCounter():
                name, meaning, labels = metric._description
                yield f"`{name}_total`", "counter", _names(labels), meaning
            case SecondsHistogram():
                name, meaning, labels = metric._description
                yield f"`{name}`", "histogram", _names(labels), meaning
            case Gauge():
                yield f"`{metric._name}`", "gauge", _names(metric._labelnames), metric._documentation


def _names(labels: object) -> str:
    return ", ".join(f"`{label}`" for label in labels) if isinstance(labels, (list, tuple)) else ""
