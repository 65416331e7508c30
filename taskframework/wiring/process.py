"""Builds the services of a process that need more than the store."""

from __future__ import annotations

from dataclasses import replace

from taskframework.aggregation.cascade import Cascade
from taskframework.aggregation.early_signals import EarlySignals
from taskframework.aggregation.reporter import SubtaskReporter
from taskframework.aggregation.retrier import BatchRetrier
from taskframework.aggregation.spawner import Spawner
from taskframework.brokers.base import Broker
from taskframework.events.bridge import ExternalEventBridge
from taskframework.events.publisher import TaskEventPublisher
from taskframework.limits.dispatch_turns import DispatchTurns
from taskframework.limits.pauses import Pauses
from taskframework.limits.rate_turns import RateTurns
from taskframework.limits.slot_turns import SlotTurns
from taskframework.limits.slots import SlotKeeper
from taskframework.limits.task_limits import limits_of
from taskframework.observability.loop_watch import LoopWatch
from taskframework.observability.metrics import Metrics
from taskframework.operations.collector import DeadLetterCollector
from taskframework.operations.health import Health
from taskframework.recovery.topology import TopologyRepair
from taskframework.stores.delayed_marks import MAX_MARK_DELAY
from taskframework.stores.replies import DueTask
from taskframework.submission.producer import DispatchPolicy, TaskMessageProducer
from taskframework.tasks.extensions import WorkerExtensions
from taskframework.wiring.listeners import register_listeners
from taskframework.wiring.process_services import ProcessServices
from taskframework.wiring.repairs import build_repairs, require_repairs
from taskframework.wiring.store_services import StoreServices
from taskframework.wiring.worker import build_worker
from taskframework.worker.deliveries import PendingDeliveries
from taskframework.worker.store_breaker import StoreBreaker

#: After which share of the `dispatch_grace` the mark of a message is written: before the sweeper would send it again,
#: also if the store needs as long for the write.
_MARK_SHARE = 2 / 5


def build_process_services(
    services: StoreServices, broker: Broker, extensions: WorkerExtensions | None
) -> ProcessServices:
    """The services of a process, with its listeners registered; nothing is started.

    Args:
        services: the services around the open store.
        broker: the broker that the settings name.
        extensions: the extensions of the attempts, in a process that executes.
    """
    process = _build_without_worker_and_repairs(services, broker, executes=extensions is not None)
    if extensions is not None:
        process = replace(process, worker=build_worker(process, extensions))
    register_listeners(process)
    process = replace(process, repairs=build_repairs(process))
    _register_health_checks(process)
    return process


def _build_without_worker_and_repairs(services: StoreServices, broker: Broker, *, executes: bool) -> ProcessServices:
    settings, store, clock = services.settings, services.store, services.clock
    metrics = Metrics()
    deliveries = PendingDeliveries(clock, lambda: broker.consumer_timeout)
    topology = TopologyRepair(broker, services.registry.task_types)
    services.counter.on_look.append(metrics.show_counts)
    pauses = Pauses(store)
    pauses.on_change.append(lambda: metrics.show_paused(pauses.paused))
    reporter = SubtaskReporter(store, services.moves, clock)
    dispatches = executes or broker.outlives_process
    # The lambda is called later: the producer, made next, needs the slots, and the slots need the producer.
    slots = SlotKeeper(store, (lambda task: producer.dispatch_now(task)) if dispatches else _leave_to_sweeper)
    producer = TaskMessageProducer(
        store,
        broker,
        clock,
        _build_dispatch_policy(services),
        topology.request_check,
        pauses.is_paused,
        DispatchTurns(
            [
                RateTurns(services.buckets, limits_of(settings.rate_limiter), store, clock, metrics.turns.add),
                SlotTurns(slots, settings.concurrency.limits, clock, metrics.slot_waits.add),
            ],
            services.registry,
            store,
        ),
    )
    publisher = TaskEventPublisher(broker, metrics.published.add)
    bridge = ExternalEventBridge(store, publisher, settings.app.source, reporter, services.looks, clock)
    return ProcessServices(
        services=services,
        broker=broker,
        pauses=pauses,
        slots=slots,
        producer=producer,
        spawner=Spawner(store, services.bus, services.dispatch_after, bridge.wait_for_room),
        reporter=reporter,
        cascade=Cascade(store, services.moves),
        retrier=BatchRetrier(store, services.moves, services.dispatch_after),
        early_signals=EarlySignals(services.moves),
        bridge=bridge,
        collector=DeadLetterCollector(store, broker),
        topology=topology,
        metrics=metrics,
        loop_watch=LoopWatch(settings.observability.loop_lag_warning, metrics.loop_lag.set, metrics.loop_blocked.add),
        health=Health(store),
        breaker=StoreBreaker(store.ping, clock, (lambda: deliveries.unanswered) if executes else None),
        deliveries=deliveries,
        dispatches=dispatches,
    )


async def _leave_to_sweeper(task: DueTask) -> None:
    """Do nothing: in a process that sends no messages, the sweeper of another process sends this one."""


def _build_dispatch_policy(services: StoreServices) -> DispatchPolicy:
    recovery = services.settings.recovery
    return DispatchPolicy(
        recovery.redispatch,
        recovery.redispatch_max,
        services.settings.broker.delay_limit,
        mark_after=min(MAX_MARK_DELAY, recovery.dispatch_grace * _MARK_SHARE),
        lowers_retries=services.settings.priority.retries == "lower",
    )


def _register_health_checks(process: ProcessServices) -> None:
    """Register the conditions that readiness requires, and those that it only reports."""
    health, broker, topology, worker = process.health, process.broker, process.topology, process.worker
    health.required.append(("topology", lambda: topology.problem if broker.is_connected else None))
    require_repairs(health, process.repairs)
    health.reported.append(("broker", lambda: _broker_problem(broker, process.producer.refusal)))
    if worker is not None:
        # The connection for publishing often notices first that the broker is away; then consuming has stopped too.
        away = "not consuming: the broker does not answer"
        health.reported.append(
            ("consumers", lambda: worker.problem or (None if broker.is_connected or broker.is_blocked else away))
        )


def _broker_problem(broker: Broker, refusal: str | None) -> str | None:
    """The problem of the broker. The last refusal is added, because some refusals close the connection for a moment."""
    refused = "" if refusal is None else f"the last message was refused: {refusal}"
    if broker.is_connected:
        return refused or None
    why = "takes no messages: memory or disk alarm" if broker.is_blocked else "not connected"
    return f"{why}; tasks are stored; {refused}".removesuffix("; ")
