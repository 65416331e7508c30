"""The only place that names concrete adapters, and the visible list of who listens to what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

from taskframework.aggregation.state_aggregator import StateAggregatorService
from taskframework.brokers.base import Broker
from taskframework.bus import EventBus
from taskframework.clock import Clock
from taskframework.errors import ConfigurationError
from taskframework.events.bridge import ExternalEventBridge
from taskframework.events.publisher import TaskEventPublisher
from taskframework.events.subscriber import EventSubscriber
from taskframework.model.events import (
    AttemptFinished,
    TaskCancelRequestedEvent,
    TaskEvent,
    TaskReleasedEvent,
    TaskReplayedEvent,
    TaskRetryingEvent,
    TaskSubmittedEvent,
)
from taskframework.model.retry import RetryPolicy
from taskframework.moves import TaskMoves
from taskframework.observability import task_log
from taskframework.observability.loop_watch import LoopWatch
from taskframework.observability.metrics import Metrics
from taskframework.operations.collector import DeadLetterCollector
from taskframework.operations.dead_letters import DeadLetterOperations
from taskframework.operations.health import Health
from taskframework.operations.tasks import TaskOperations
from taskframework.recovery.loop import RepairLoop
from taskframework.recovery.reaper import Reaper
from taskframework.recovery.relay import Relay
from taskframework.recovery.retention import Retention
from taskframework.recovery.sweeper import Sweeper
from taskframework.recovery.topology import TopologyRepair
from taskframework.settings import Settings, sqlite_file
from taskframework.stores.base import TaskStore
from taskframework.stores.marking import MOMENT
from taskframework.submission.producer import DispatchPolicy, TaskMessageProducer
from taskframework.submission.service import TaskSubmissionService
from taskframework.submission.types import TaskTypes
from taskframework.tasks.registry import TaskRegistry
from taskframework.worker.admission import Admission
from taskframework.worker.claim import ClaimPolicy, ClaimStation
from taskframework.worker.consumer import TaskConsumer
from taskframework.worker.deliveries import PendingDeliveries
from taskframework.worker.executor import TaskExecutorService
from taskframework.worker.heartbeat import Heartbeat
from taskframework.worker.intake import Intake
from taskframework.worker.patience import StoreBreaker
from taskframework.worker.settle import SettleStation
from taskframework.worker.suspects import Suspects
from taskframework.worker.worker import Worker, new_worker_id

_METRICS_INTERVAL = timedelta(seconds=30)
_RETENTION_INTERVAL = timedelta(minutes=1)
_TOPOLOGY_INTERVAL = timedelta(seconds=2)
#: A lease that ends within this time is one of those that are held now, whatever `worker.lease` was: that is, all.
_ANY_LEASE = timedelta(days=36_500)
#: Running tasks of one process: far more than it can have.
_EVERYTHING = 1_000_000
#: Without these a process does not keep what it promises.
_ESSENTIAL_REPAIRS = frozenset({"sweep", "expire", "reap", "relay"})


@dataclass(frozen=True, slots=True)
class Desk:
    """What needs nothing but the store: submitting, looking, cancelling, replaying."""

    settings: Settings
    registry: TaskRegistry
    clock: Clock
    bus: EventBus
    store: TaskStore
    moves: TaskMoves
    types: TaskTypes
    submission: TaskSubmissionService
    tasks: TaskOperations
    dead_letters: DeadLetterOperations


@dataclass(frozen=True, slots=True)
class Plant:
    """A desk with a broker: dispatches, repairs, tells other programs, and executes if it has a worker."""

    desk: Desk
    broker: Broker
    producer: TaskMessageProducer
    bridge: ExternalEventBridge
    collector: DeadLetterCollector
    topology: TopologyRepair
    metrics: Metrics
    loop_watch: LoopWatch
    health: Health
    breaker: StoreBreaker
    worker: Worker | None
    repairs: tuple[RepairLoop, ...]


def build_store(settings: Settings, clock: Clock) -> TaskStore:
    """The store that `store.url` names."""
    if settings.store.scheme == "sqlite":
        from taskframework.stores.sqlite import SqliteStore

        return SqliteStore(sqlite_file(settings.store.url), clock=clock)
    from taskframework.stores.mongo.store import MongoStore

    return MongoStore(
        settings.store.url,
        driver=settings.store.driver,
        timeout=settings.store.timeout,
        pool_size=settings.store.pool_size,
    )


def build_broker(settings: Settings, clock: Clock) -> Broker:
    """The broker that `broker.url` names."""
    if settings.broker.scheme == "embedded":
        from taskframework.brokers.embedded import EmbeddedBroker

        return EmbeddedBroker(clock=clock, prefix=settings.broker.prefix)
    from taskframework.brokers.rabbitmq.broker import RabbitBroker

    return RabbitBroker.from_settings(settings.broker)


def topology_lines(settings: Settings, task_types: Sequence[str]) -> list[str]:
    """One line for each exchange, queue and binding that is declared; none for the embedded broker."""
    if settings.broker.scheme == "embedded":
        return []
    from taskframework.brokers.rabbitmq.topology import whole_topology

    def lines(with_plugin: bool) -> list[str]:
        limit = settings.broker.delivery_limit
        topology = whole_topology(settings.broker.prefix, task_types, delivery_limit=limit, with_plugin=with_plugin)
        return list(topology.lines())

    if settings.broker.delay != "auto":
        return lines(settings.broker.delay == "plugin")
    always = lines(False)
    return always + [f"{line} (if the broker has the plugin)" for line in lines(True) if line not in always]


def is_shared(settings: Settings) -> bool:
    """Whether any number of processes may dispatch and repair: store and broker are servers."""
    return settings.store.scheme != "sqlite" and settings.broker.scheme != "embedded"


def execution_lock(settings: Settings) -> AbstractContextManager[object]:
    """Held by the one executing process of a SQLite file; nothing to hold where a server keeps order.

    Raises:
        ConfigurationError: on entering, if another process executes there.
    """
    if settings.store.scheme != "sqlite":
        return nullcontext()
    from taskframework.stores.sqlite import ExecutionLock

    return ExecutionLock(sqlite_file(settings.store.url))


def build_desk(settings: Settings, registry: TaskRegistry, clock: Clock, store: TaskStore, *, dispatches: bool) -> Desk:
    """A desk; in a process that does not dispatch, new tasks are due for another process's sweeper at once."""
    bus = EventBus()
    moves = TaskMoves(store, bus)
    dispatch_after = settings.recovery.dispatch_grace if dispatches else timedelta(0)
    types = TaskTypes(registry, store)
    submission = TaskSubmissionService(
        store, bus, types, max_attempts=settings.retry.max_attempts, dispatch_after=dispatch_after
    )
    tasks = TaskOperations(store, moves, dispatch_after)
    dead_letters = DeadLetterOperations(store, tasks)
    return Desk(settings, registry, clock, bus, store, moves, types, submission, tasks, dead_letters)


def build_plant(desk: Desk, broker: Broker, *, executes: bool) -> Plant:
    """Everything of a process that is more than a desk, with its listeners registered."""
    dispatches = executes or broker.outlives_process
    settings, store, clock = desk.settings, desk.store, desk.clock
    metrics = Metrics()
    topology = TopologyRepair(broker, desk.registry.task_types)
    recovery = settings.recovery
    policy = DispatchPolicy(
        recovery.redispatch,
        recovery.redispatch_max,
        settings.broker.delay_limit,
        mark_after=min(MOMENT, recovery.dispatch_grace * 2 / 5),
    )
    producer = TaskMessageProducer(store, broker, clock, policy, topology.doubt)
    bridge = ExternalEventBridge(store, TaskEventPublisher(broker, metrics.event_published), settings.app.source)
    deliveries = PendingDeliveries(clock, lambda: broker.consumer_timeout)
    breaker = StoreBreaker(store.ping, clock, (lambda: deliveries.unanswered) if executes else None)
    heartbeat_and_worker = _build_worker(desk, broker, metrics, breaker, deliveries) if executes else None
    heartbeat, worker = heartbeat_and_worker or (None, None)
    _register_listeners(desk, producer if dispatches else None, bridge, metrics, heartbeat)
    repairs = _repairs(desk, broker, producer, bridge, metrics, topology, breaker)
    if not dispatches:
        repairs = tuple(loop for loop in repairs if loop.name != "sweep")
    health = Health(store, repairs)
    health.required.append(("topology", lambda: topology.problem if broker.is_connected else None))
    health.required.extend((loop.name, _problem_of(loop)) for loop in repairs if loop.name in _ESSENTIAL_REPAIRS)
    health.reported.append(("broker", lambda: None if broker.is_connected else "not connected; tasks are stored"))
    if worker is not None:
        health.reported.append(("consumers", lambda: worker.problem))
    collector = DeadLetterCollector(store, broker)
    watch = LoopWatch(settings.observability.loop_lag_warning, metrics.loop_lag.set, metrics.blocked)
    return Plant(desk, broker, producer, bridge, collector, topology, metrics, watch, health, breaker, worker, repairs)


def build_subscriber(settings: Settings, clock: Clock, queue: str | None) -> EventSubscriber:
    """A subscriber with a broker connection of its own.

    Raises:
        ConfigurationError: if the broker is embedded; nothing outside its process can hear it.
    """
    if settings.broker.scheme == "embedded":
        raise ConfigurationError(
            "The embedded broker cannot be heard from another process.",
            key="broker.url",
            hint='Listen to its HTTP interface: event_subscriber("http://localhost:8000"); or use RabbitMQ.',
        )
    return EventSubscriber(build_broker(settings, clock), queue=queue, owns_broker=True)


def _register_listeners(
    desk: Desk,
    producer: TaskMessageProducer | None,
    bridge: ExternalEventBridge,
    metrics: Metrics,
    heartbeat: Heartbeat | None,
) -> None:
    """Who hears what, in order. The aggregator must succeed; the others observe what is already stored."""
    bus = desk.bus
    aggregator = StateAggregatorService(desk.moves)
    bus.listen(AttemptFinished, aggregator.hear, name="state_aggregator", must_succeed=True)
    if producer is not None:
        for claimable in (TaskSubmittedEvent, TaskRetryingEvent, TaskReleasedEvent, TaskReplayedEvent):
            bus.listen(claimable, producer.hear, name="producer")
    if heartbeat is not None:
        bus.listen(TaskCancelRequestedEvent, heartbeat.hear, name="heartbeat")
    bus.listen(TaskEvent, bridge.hear, name="bridge")
    metrics.listen(bus)
    task_log.listen(bus)


def _build_worker(
    desk: Desk, broker: Broker, metrics: Metrics, breaker: StoreBreaker, deliveries: PendingDeliveries
) -> tuple[Heartbeat, Worker]:
    settings, store, bus, clock = desk.settings, desk.store, desk.bus, desk.clock
    worker_id = new_worker_id()
    heartbeat = Heartbeat(store, clock, settings.worker.lease, breaker.open)
    executor = TaskExecutorService(
        desk.moves, clock, threads=settings.worker.max_threads, processes=settings.worker.max_processes
    )
    claims = ClaimStation(
        store,
        desk.moves,
        clock,
        worker_id,
        ClaimPolicy(settings.worker.lease, settings.recovery.no_handler_delay, settings.recovery.no_handler_limit),
        lambda task_type: desk.registry.get(task_type) is not None,
    )
    settlement = SettleStation(store, bus, clock, worker_id, retry_policy(settings), metrics.stale, breaker.open)
    consumer = TaskConsumer(
        desk.registry,
        claims,
        executor,
        settlement,
        heartbeat,
        breaker,
        deliveries,
        Admission([Suspects(settings.worker.max_crashes, settings.worker.lease)]),
        slots=settings.worker.concurrency,
    )
    intake = Intake(broker, consumer, breaker, clock, settings.worker.prefetch)
    grace = settings.shutdown.await_termination_timeout
    return heartbeat, Worker(worker_id, intake, consumer, executor, heartbeat, grace=grace)


def _repairs(
    desk: Desk,
    broker: Broker,
    producer: TaskMessageProducer,
    bridge: ExternalEventBridge,
    metrics: Metrics,
    topology: TopologyRepair,
    breaker: StoreBreaker,
) -> tuple[RepairLoop, ...]:
    settings, store, clock = desk.settings, desk.store, desk.clock
    recovery, batch = settings.recovery, settings.recovery.batch_size
    sweeper = Sweeper(store, broker, desk.moves, producer, batch)
    reaper = _reaper(desk, settings.worker.lease_grace, batch)
    retention = Retention(
        store, finished=settings.retention.finished, dead_letters=settings.retention.dead_letters, batch=batch
    )
    looks: dict[str, tuple[Callable[[], Awaitable[bool]], timedelta]] = {
        "topology": (topology.repair, _TOPOLOGY_INTERVAL),
        "sweep": (sweeper.sweep, recovery.sweep_interval),
        "expire": (sweeper.expire, recovery.sweep_interval),
        # Twice as often as the grace is long: lease, grace and a look together must not take longer than lease + 10 s.
        "reap": (reaper.reap, settings.worker.lease_grace / 2),
        "relay": (Relay(store, broker, bridge, batch).relay, recovery.relay_interval),
        "retention": (retention.purge, _RETENTION_INTERVAL),
        "metrics": (lambda: metrics.keep_fresh(store), _METRICS_INTERVAL),
    }
    return tuple(
        RepairLoop(name, look, interval, clock, metrics.repair_failed, breaker.is_away)
        for name, (look, interval) in looks.items()
    )


def _reaper(desk: Desk, grace: timedelta, batch: int) -> Reaper:
    max_crashes = desk.settings.worker.max_crashes
    return Reaper(
        desk.store, desk.moves, retry_policy(desk.settings), grace=grace, max_crashes=max_crashes, batch=batch
    )


async def take_over(desk: Desk) -> None:
    """Reap every lease on a SQLite file, whose execution lock we hold: who held the leases is dead.

    On a server nothing proves that, and the reaper waits for the end of each lease.
    """
    if desk.settings.store.scheme == "sqlite":
        await _reaper(desk, -_ANY_LEASE, _EVERYTHING).reap()


def retry_policy(settings: Settings) -> RetryPolicy:
    """The settings' retry policy as the model's rule."""
    retry = settings.retry
    return RetryPolicy(
        retry.max_attempts, retry.initial_delay, retry.max_delay, retry.backoff_factor, retry.jitter_factor
    )


def _problem_of(loop: RepairLoop) -> Callable[[], str | None]:
    return lambda: loop.problem
