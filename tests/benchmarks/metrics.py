"""The rows of the table, and how many samples become one number."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

#: The multiplication sign.
TIMES = "\u00d7"

#: Samples of a contender by name: a list for each round.
Rounds = Mapping[str, Sequence[Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row.

    Attributes:
        name: in the JSON.
        sample: which samples it is made of.
        quantile: which of them: 0.5 is the median.
        is_rate: more is better; for everything else less is better.
        also: metrics that count for a peer here as well if they are better, such as its best way to submit.
    """

    name: str
    title: str
    unit: str
    sample: str
    quantile: float = 0.5
    is_rate: bool = False
    also: tuple[str, ...] = ()


def _latencies(sample: str, title: str) -> tuple[Metric, Metric]:
    return (
        Metric(f"{sample}_median", f"{title}, median", "ms", sample),
        Metric(f"{sample}_p99", f"{title}, p99", "ms", sample, 0.99),
    )


METRICS: tuple[Metric, ...] = (
    Metric("submit_single", "Submit, single calls", "tasks/s", "submit_single", is_rate=True),
    Metric("submit_bulk", "Submit, in bulk", "tasks/s", "submit_bulk", is_rate=True, also=("submit_single",)),
    Metric("submit_stored", "Submit, in bulk, until stored", "tasks/s", "submit_bulk_accepted", is_rate=True),
    Metric("drain_1", "Drain, 1 worker process", "tasks/s", "drain_1", is_rate=True),
    Metric("drain_2", "Drain, 2 worker processes", "tasks/s", "drain_2", is_rate=True, also=("drain_1",)),
    *_latencies("idle_start", "Idle, submit to start"),
    *_latencies("idle_result", "Idle, submit to result"),
    Metric("load_rate", "Load of the next four rows", "tasks/s", "load_rate", is_rate=True),
    *_latencies("load_start", "Loaded, submit to start"),
    *_latencies("load_result", "Loaded, submit to result"),
    Metric("cpu_workers", "CPU of the workers", "µs/task", "cpu_2"),
    Metric("cpu_submitter", "CPU of the submitter", "µs/task", "submit_single_cpu"),
    Metric("cpu_rabbitmq", "CPU of RabbitMQ", "µs/task", "cpu_rabbitmq_2"),
    Metric("cpu_mongodb", "CPU of MongoDB", "µs/task", "cpu_mongodb_2"),
    Metric("cpu_redis", "CPU of Redis", "µs/task", "cpu_redis_2"),
    Metric("memory_pss", "Memory of 1 worker, PSS", "MiB", "memory_pss_1"),
    Metric("memory_rss", "Memory of 1 worker, largest RSS", "MiB", "memory_rss_1"),
)

#: What is measured beside the contenders in the same run.
ALONE: tuple[Metric, ...] = (
    *_latencies("write_insert", "One majority insert"),
    *_latencies("write_claim", "One guarded find_one_and_update"),
    *_latencies("write_both", "Both, one after the other"),
    Metric(
        "embedded", "Embedded broker and SQLite, submitted and done in one process", "tasks/s", "embedded", is_rate=True
    ),
    Metric("start_import", "A Python process that does `import taskframework`", "ms", "start_import"),
    Metric("start_framework", "One that does `from taskframework import TaskFramework`", "ms", "start_framework"),
    Metric("start_help", "`taskframework --help`", "ms", "start_help"),
    Metric("start_list", "`taskframework tasks list` on SQLite", "ms", "start_list"),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A value over all rounds, and the range of the rounds' own values."""

    value: float
    low: float
    high: float


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; the middle of two for the median.

    Raises:
        ValueError: without values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    if share == 0.5:
        return statistics.median(ordered)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def figures(rounds: Rounds, metrics: Sequence[Metric]) -> dict[str, Figure]:
    """The figures for which there are samples, by the metric's name."""
    found = {}
    for metric in metrics:
        lists = [values for values in rounds.get(metric.sample, ()) if values]
        if lists:
            each = [quantile(values, metric.quantile) for values in lists]
            pooled = quantile([value for values in lists for value in values], metric.quantile)
            found[metric.name] = Figure(pooled, min(each), max(each))
    return found


def best(metric: Metric, by_contender: Mapping[str, Mapping[str, Figure]]) -> tuple[str, float] | None:
    """Who is best in a row, and with which value; None if nobody has it."""
    candidates = [
        (name, figures[key].value)
        for name, figures in by_contender.items()
        for key in (metric.name, *metric.also)
        if key in figures
    ]
    if not candidates:
        return None
    return (max if metric.is_rate else min)(candidates, key=lambda candidate: candidate[1])
