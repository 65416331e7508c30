"""The services of a process that dispatches, repairs and publishes events, whether or not it executes."""

from __future__ import annotations

from dataclasses import dataclass

from taskframework.aggregation.cascade import Cascade
from taskframework.aggregation.early_signals import EarlySignals
from taskframework.aggregation.reporter import SubtaskReporter
from taskframework.aggregation.retrier import BatchRetrier
from taskframework.aggregation.spawner import Spawner
from taskframework.brokers.base import Broker
from taskframework.events.bridge import ExternalEventBridge
from taskframework.limits.pauses import Pauses
from taskframework.limits.slots import SlotKeeper
from taskframework.model.retry import RetryPolicy
from taskframework.observability.loop_watch import LoopWatch
from taskframework.observability.metrics import Metrics
from taskframework.operations.collector import DeadLetterCollector
from taskframework.operations.health import Health
from taskframework.recovery.loop import RepairLoop
from taskframework.recovery.topology import TopologyRepair
from taskframework.submission.producer import TaskMessageProducer
from taskframework.wiring.store_services import StoreServices
from taskframework.worker.deliveries import PendingDeliveries
from taskframework.worker.store_breaker import StoreBreaker
from taskframework.worker.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessServices:
    """The services of a process with a broker; worker and repairs are built on top of the rest."""

    services: StoreServices
    broker: Broker
    pauses: Pauses
    slots: SlotKeeper
    producer: TaskMessageProducer
    spawner: Spawner
    reporter: SubtaskReporter
    cascade: Cascade
    retrier: BatchRetrier
    early_signals: EarlySignals
    bridge: ExternalEventBridge
    collector: DeadLetterCollector
    topology: TopologyRepair
    metrics: Metrics
    loop_watch: LoopWatch
    health: Health
    breaker: StoreBreaker
    deliveries: PendingDeliveries
    #: Whether this process sends messages. If the broker ends with the process, only the process that executes does.
    dispatches: bool
    worker: Worker | None = None
    repairs: tuple[RepairLoop, ...] = ()

    @property
    def retry_policy(self) -> RetryPolicy:
        """The settings' retry policy as the model's rule."""
        retry = self.services.settings.retry
        return RetryPolicy(
            retry.max_attempts, retry.initial_delay, retry.max_delay, retry.backoff_factor, retry.jitter_factor
        )
