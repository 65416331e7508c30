"""Prometheus metrics: names and labels in one table, fed by the bus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from taskframework.bus import EventBus, Listener
from taskframework.model.batches import not_before_of
from taskframework.model.counts import TaskCounts
from taskframework.model.events import (
    ATTEMPT_END_EVENTS,
    Event,
    TaskEvent,
    TaskFailedEvent,
    TaskProgressEvent,
    TaskRetryingEvent,
    TaskStartedEvent,
    TaskSubmittedEvent,
)

#: Upper bounds of the histograms' buckets, in seconds: from a claim at once to a task of an hour. If a bound is far
#: above the bound before, a quantile that Prometheus estimates is far above the real times.
_BUCKET_BOUNDS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


T = TypeVar("T", bound=Collector)


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """A metric as Prometheus knows it."""

    #: The name without the endings of Prometheus: `_total` of a counter, `_bucket` and others of a histogram.
    name: str
    documentation: str
    labels: tuple[str, ...] = ()


#: Counted by the parent of several worker processes, which does no work itself.
WORKER_RESTARTS = MetricDescription("tasks_worker_restarts", "Times a worker process was restarted", ("process",))


class EventCounter(Collector):
    """A counter whose samples are made when Prometheus asks: one increment is one addition, without a lock.

    Each task increments counters a dozen times, all on one thread. One increment takes 0.2 µs here and 1.3 µs with the
    client's own counter; with that one, counting would take a twentieth of the time of a short task.
    """

    def __init__(self, name: str, documentation: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._description = (name, documentation, labels)
        self._counts: Counter[tuple[str, ...]] = Counter()
        registry.register(self)

    def add(self, *labels: str) -> None:
        self._counts[labels] += 1

    def add_many(self, label: str, count: int) -> None:
        self._counts[(label,)] += count

    def collect(self) -> Iterable[Metric]:
        name, documentation, names = self._description
        family = CounterMetricFamily(name, documentation, labels=names)
        for labels, count in list(self._counts.items()):
            family.add_metric(labels, count)
        return [family]


class SecondsHistogram(Collector):
    """A histogram whose samples are made in the same way as those of `EventCounter`."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._description = (name, documentation, labels)
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def observe(self, seconds: float, *labels: str) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(_BUCKET_BOUNDS_SECONDS) + 1)
        counts[bisect_left(_BUCKET_BOUNDS_SECONDS, seconds)] += 1
        self._sums[labels] = self._sums.get(labels, 0.0) + seconds

    def collect(self) -> Iterable[Metric]:
        name, documentation, names = self._description
        family = HistogramMetricFamily(name, documentation, labels=names)
        bounds = [*map(floatToGoString, _BUCKET_BOUNDS_SECONDS), "+Inf"]
        for labels, counts in list(self._counts.items()):
            family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), self._sums[labels])
        return [family]


class Metrics:
    """The metrics of one process, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        #: Every metric that exists; dashboards, alerts and the reference are made from this.
        self.table: list[MetricDescription] = [WORKER_RESTARTS]
        counter = partial(self._make, EventCounter)
        histogram = partial(self._make, SecondsHistogram)
        gauge = partial(self._make, Gauge)
        self.submitted = counter("tasks_submitted", "Tasks accepted", ["task_type"])
        self.execution = histogram(
            "tasks_execution_seconds",
            "Time from claim to settlement of an attempt, by outcome",
            ["task_type", "status"],
        )
        self.queue_wait = histogram(
            "tasks_queue_wait_seconds", "Time a task waited for its claim after it was due", ["task_type", "lane"]
        )
        self.first_responses = histogram(
            "batch_first_response_seconds",
            "Time from the moment a batch could start to its first task that succeeded",
            ["task_type"],
        )
        self.retries = counter("tasks_retries", "Failed attempts that will be retried", ["task_type"])
        self.dead = counter("tasks_dlq_entered", "Tasks that became dead letters", ["task_type"])
        self.published = counter("tasks_events_published", "External events confirmed by the broker", ["event_type"])
        self.processed = counter(
            "tasks_events_processed", "Internal events handled, by listener", ["listener", "event_type"]
        )
        self.failed_listeners = counter(
            "tasks_events_failed", "Internal events that a listener failed to handle", ["listener", "event_type"]
        )
        self.state_updates = counter("tasks_state_db_updates", "Status changes written, by kind", ["operation"])
        self.stale_writes = counter("tasks_stale_writes", "Writes refused because the lease was lost", ["task_type"])
        self.repairs_failed = counter("tasks_repairs_failed", "Failed runs of a repair", ["repair"])
        self.loop_blocked = counter(
            "tasks_loop_blocked",
            "Times something kept the event loop from running; task_type is empty if it was not a task's code",
            ["task_type"],
        )
        self.permits = counter("tasks_rate_limit_permits", "Permits taken from the buckets of a rate limit", ["limit"])
        self.turns = counter("tasks_rate_limit_turns", "Tasks put off until their turn in a rate limit", ["limit"])
        self.slot_waits = counter(
            "tasks_concurrency_waits", "Tasks that found no slot of their concurrency limit", ["task_type"]
        )
        self.slots_held = gauge(
            "tasks_concurrency_slots_held", "Slots of a concurrency limit that this process holds", ["task_type"]
        )
        self.undriven = gauge("tasks_undriven", "Unfinished tasks that nothing will ever continue; must be 0")
        self.halted_streams = gauge("tasks_halted_streams", "Streams that have halted because a task failed")
        self.by_status = gauge("tasks_by_status", "Tasks in the store", ["status"])
        self.paused = gauge("tasks_paused", "1 for a task type that is paused", ["task_type"])
        self.queue_depth = gauge("tasks_queue_depth", "Messages ready in the broker", ["task_type", "lane"])
        self.workers = gauge("tasks_workers", "Workers that sent a sign of life recently", ["task_type"])
        self.workers_lost = gauge("tasks_workers_lost", "Lost workers that no other worker has replaced")
        self.broker_connected = gauge("tasks_broker_connected", "Whether this process has its broker (0 or 1)")
        self.store_available = gauge("tasks_store_available", "Whether this process can reach its store (0 or 1)")
        self.events_lag = gauge("tasks_events_lag_seconds", "How late the relay is with unpublished events")
        self.responses = counter("tasks_http_responses", "Answers of the HTTP interface", ["status"])
        self.in_flight = gauge("tasks_in_flight", "Attempts running in this process")
        self.consuming = gauge("tasks_consuming", "Whether this process consumes messages (0 or 1)")
        self.loop_lag = gauge("tasks_loop_lag_seconds", "How late the event loop was at the last check")

    def listen(self, bus: EventBus) -> None:
        """Count the events of the bus."""
        bus.listen(TaskEvent, self._count, name="metrics")
        bus.on_handled = self._count_handled

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def show_counts(self, counts: TaskCounts) -> None:
        """Show the counts of the store."""
        for status, count in counts.by_status.items():
            self.by_status.labels(status).set(count)
        self.undriven.set(counts.undriven)
        self.halted_streams.set(counts.halted_streams)

    def show_workers(self, by_type: Mapping[str, int], lost: int) -> None:
        """Show how many workers there are of each task type, and how many lost workers were not replaced."""
        self.workers.clear()
        for task_type, count in by_type.items():
            self.workers.labels(task_type).set(count)
        self.workers_lost.set(lost)

    def show_depths(self, depths: Mapping[tuple[str, str], int]) -> None:
        """Show how many messages are ready, by task type and lane. The rest is no longer shown: it may have changed."""
        self.queue_depth.clear()
        for labels, depth in depths.items():
            self.queue_depth.labels(*labels).set(depth)

    def change_slots(self, task_type: str, change: int) -> None:
        """Change how many slots of a task type this process holds."""
        self.slots_held.labels(task_type).inc(change)

    def show_paused(self, task_types: Iterable[str]) -> None:
        """Show which task types are paused."""
        self.paused.clear()
        for task_type in task_types:
            self.paused.labels(task_type).set(1)

    def _make(self, kind: Callable[..., T], name: str, documentation: str, labels: Sequence[str] = ()) -> T:
        self.table.append(MetricDescription(name, documentation, tuple(labels)))
        return kind(name, documentation, labels, registry=self.registry)

    def _count(self, event: TaskEvent) -> None:
        task = event.task
        match event:
            case TaskSubmittedEvent():
                self.submitted.add(task.task_type)
            case TaskStartedEvent():
                waited = (task.history[-1].at - task.not_before).total_seconds()
                self.queue_wait.observe(max(0.0, waited), task.task_type, task.lane)
            case TaskRetryingEvent():
                self.retries.add(task.task_type)
            case TaskFailedEvent() if task.batch is None:  # a failed batch is in no list of dead letters
                self.dead.add(task.task_type)
        if not isinstance(event, TaskProgressEvent):  # it adds nothing to the history
            self.state_updates.add(task.history[-1].type)
        if task.batch is not None and task.batch.first_result_at == task.updated_at:  # this count set the first result
            waited = (task.updated_at - max(task.created_at, not_before_of(task))).total_seconds()
            self.first_responses.observe(max(0.0, waited), task.task_type)
        # A task that does not run when it ends, such as a parent after a count of its sub-tasks, ends no attempt and
        # names no worker.
        if (
            task.started_at is not None
            and isinstance(event, ATTEMPT_END_EVENTS)
            and task.history[-1].worker_id is not None
        ):
            seconds = (task.updated_at - task.started_at).total_seconds()
            self.execution.observe(max(0.0, seconds), task.task_type, str(task.status))

    def _count_handled(self, listener: Listener, event: Event, error: Exception | None) -> None:
        counter = self.processed if error is None else self.failed_listeners
        counter.add(listener.name, type(event).__name__)
