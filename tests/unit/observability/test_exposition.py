"""Our own counters and histograms read as Prometheus' do."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from taskframework.observability.metrics import _BUCKET_BOUNDS_SECONDS, EventCounter, Metrics, SecondsHistogram

LABELS = ("plain", 'quo"te', "line\nbreak", "back\\slash", "", "ä{}=,")


def samples(registry: CollectorRegistry) -> dict[tuple[str, str, Any], float]:
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (family.type, sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")  # ours tell no time of birth
    }


def test_our_counter_reads_like_the_clients() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    own = EventCounter("tasks_retries", "Attempts", ["task_type", "other"], registry=ours)
    counter = Counter("tasks_retries", "Attempts", ["task_type", "other"], registry=theirs)
    assert samples(ours) == samples(theirs) == {}
    for number, label in enumerate(LABELS):
        for _ in range(number + 1):
            own.add(label, "x")
            counter.labels(label, "x").inc()
    assert samples(ours) == samples(theirs)
    assert len(samples(ours)) == len(LABELS)


def test_our_histogram_reads_like_the_clients() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    own = SecondsHistogram("tasks_seconds", "Time", ["task_type"], registry=ours)
    histogram = Histogram("tasks_seconds", "Time", ["task_type"], registry=theirs, buckets=_BUCKET_BOUNDS_SECONDS)
    for label in LABELS:
        for bound in (0.0, *_BUCKET_BOUNDS_SECONDS):  # a value on the bound is in its bucket
            for seconds in (bound, bound + 0.25, bound * 2):
                own.observe(seconds, label)
                histogram.labels(label).observe(seconds)
    assert samples(ours) == samples(theirs)


def test_a_type_that_is_no_longer_declared_has_no_workers() -> None:
    metrics = Metrics()
    metrics.show_workers({"mail": 2, "print": 1}, 0)
    metrics.show_workers({"mail": 1}, 0)
    workers = {
        labels: value for (_, name, labels), value in samples(metrics.registry).items() if name == "tasks_workers"
    }
    assert workers == {frozenset({("task_type", "mail")}): 1}


def test_every_metric_is_there_before_anything_happened() -> None:
    text = Metrics().exposition().decode()
    assert "# TYPE tasks_submitted_total counter" in text
    assert "# TYPE tasks_execution_seconds histogram" in text
