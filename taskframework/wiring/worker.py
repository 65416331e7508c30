"""The worker of a process that executes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from taskframework.limits.task_limits import hold_bucket_of, limits_of
from taskframework.model.status import Priority
from taskframework.settings import PrioritySettings
from taskframework.submission.subtasks import SubtaskKinds
from taskframework.tasks.extensions import WorkerExtensions
from taskframework.wiring.process_services import ProcessServices
from taskframework.wiring.store_services import StoreServices
from taskframework.worker.admission import Admission
from taskframework.worker.claim import ClaimPolicy, ClaimStation
from taskframework.worker.concurrency_limits import ConcurrencyLimits
from taskframework.worker.consumer import TaskConsumer
from taskframework.worker.executor import TaskExecutorService
from taskframework.worker.family import FamilyServices
from taskframework.worker.heartbeat import Heartbeat
from taskframework.worker.idle_workers import IdleWorkers
from taskframework.worker.intake import Intake
from taskframework.worker.keyed_limits import KeyedRateLimits
from taskframework.worker.lanes import LanePolicy
from taskframework.worker.next_turns import NextTurns
from taskframework.worker.paused_types import PausedTypes
from taskframework.worker.presence import SignOfLife
from taskframework.worker.rate_limits import RateLimits
from taskframework.worker.settle import SettleStation
from taskframework.worker.suspects import Suspects
from taskframework.worker.versions import NewestVersions
from taskframework.worker.worker import Worker, new_worker_id


def build_worker(process: ProcessServices, extensions: WorkerExtensions) -> Worker:
    """A worker with its stations; it consumes nothing before it is started."""
    services, breaker, metrics = process.services, process.breaker, process.metrics
    settings, store, bus, clock = services.settings, services.store, services.bus, services.clock
    worker_id = new_worker_id()
    heartbeat = Heartbeat(store, clock, settings.worker.lease, breaker.open)
    executor = _build_executor(services, extensions)
    claims = ClaimStation(
        store,
        services.moves,
        clock,
        worker_id,
        ClaimPolicy(settings.worker.lease, settings.recovery.no_handler_delay, settings.recovery.no_handler_limit),
        lambda task_type: services.registry.get(task_type) is not None,
    )
    limits, count_permits = limits_of(settings.rate_limiter), metrics.permits.add_many
    rate_limits = RateLimits(services.buckets, limits, store, services.registry, clock, count_permits)
    keyed_limits = KeyedRateLimits(services.buckets, limits, store, clock, count_permits, metrics.turns.add)
    concurrency, paused = _build_concurrency_limits(process, worker_id), PausedTypes(process.pauses)
    suspects = Suspects(store, settings.worker.max_crashes, settings.worker.probation)
    newest = NewestVersions(store, services.moves, settings.retention.idempotency_keys)
    hold = partial(hold_bucket_of, services.buckets, limits)
    consumer = TaskConsumer(
        services.registry,
        claims,
        executor,
        SettleStation(store, bus, clock, worker_id, process.retry_policy, metrics.stale_writes.add, breaker.open, hold),
        heartbeat,
        breaker,
        process.deliveries,
        # A slot before a permit: a task that waits for a slot would waste its permit, while one that holds a slot and
        # waits for a permit keeps back only tasks that need a permit, too. Both may take long. By then the type may be
        # paused, the version old, or the time of the slot over; so these are checked once more.
        Admission([paused, newest, suspects, concurrency, rate_limits, keyed_limits, concurrency, newest, paused]),
        _build_lane_policy(settings.priority),
        store.now,
        IdleWorkers(store, process.broker, worker_id, clock).can_begin,
        slots=settings.worker.concurrency,
    )
    intake = Intake(
        process.broker,
        consumer,
        breaker,
        clock,
        settings.worker.prefetch,
        [process.pauses.ceiling, rate_limits.ceiling, concurrency.ceiling],
    )
    process.pauses.on_change.append(intake.wake)
    next_turns = NextTurns(consumer, intake, services.registry, worker_id, settings.worker.lease, concurrency.has_limit)
    services.looks.turns.try_start = next_turns.try_start
    grace = settings.shutdown.await_termination_timeout
    sign_of_life = SignOfLife(
        store,
        worker_id,
        lambda: services.registry.task_types,
        settings.worker.concurrency,
        lambda: consumer.lanes.running,
    )
    return Worker(
        worker_id, intake, consumer, executor, heartbeat, [rate_limits, concurrency], sign_of_life, grace=grace
    )


async def start_worker(worker: Worker, services: StoreServices, stack: AsyncExitStack) -> None:
    """Begin to consume; the exit of the stack stops the worker.

    Other processes check submissions by what is declared here, so this comes after all that can fail a start.
    """
    await services.schedules.apply(services.settings.schedules.named)
    await services.types.declare(worker.worker_id)
    stack.enter_context(services.registry.in_use())
    worker.start(services.registry.task_types)
    stack.push_async_callback(worker.stop)


def _build_executor(services: StoreServices, extensions: WorkerExtensions) -> TaskExecutorService:
    settings, store = services.settings, services.store
    kinds = SubtaskKinds(services.types, store.now, settings.retry.max_attempts)
    return TaskExecutorService(
        services.moves,
        services.clock,
        FamilyServices(store, kinds, services.clock),
        threads=settings.worker.max_threads,
        processes=settings.worker.max_processes,
        extensions=extensions,
    )


def _build_concurrency_limits(process: ProcessServices, worker_id: str) -> ConcurrencyLimits:
    services, metrics = process.services, process.metrics
    return ConcurrencyLimits(
        process.slots,
        services.store,
        services.registry,
        services.clock,
        worker_id,
        services.settings.concurrency.limits,
        services.settings.worker.claimed_within,
        metrics.change_slots,
        metrics.slot_waits.add,
    )


def _build_lane_policy(settings: PrioritySettings) -> LanePolicy:
    weights = {Priority.HIGH: settings.high, Priority.NORMAL: settings.normal, Priority.LOW: settings.low}
    return LanePolicy(weights, settings.max_wait)
