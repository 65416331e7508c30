"""The services that need only the store: for submitting, looking, cancelling and replaying."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

from taskframework.background import current_loop
from taskframework.bus import EventBus
from taskframework.clock import Clock
from taskframework.limits.buckets import Buckets
from taskframework.limits.task_limits import limits_of
from taskframework.model.streams import record_kept_for
from taskframework.moves import TaskMoves
from taskframework.observability.counting import TaskCounter
from taskframework.operations.audit import AuditLog
from taskframework.operations.batches import BatchOperations
from taskframework.operations.dead_letters import DeadLetterOperations
from taskframework.operations.explain import ExplainOperations
from taskframework.operations.keys import Callers, KeyOperations
from taskframework.operations.limits import LimitOperations
from taskframework.operations.mending import MessageMending
from taskframework.operations.overview import OverviewOperations
from taskframework.operations.queues import QueueOperations
from taskframework.operations.replay_carrier import ReplayCarrier
from taskframework.operations.replay_keys import ReplayKeys
from taskframework.operations.replays import ReplayOperations
from taskframework.operations.schedules import ScheduleOperations
from taskframework.operations.streams import StreamOperations
from taskframework.operations.tasks import TaskOperations
from taskframework.operations.workers import WorkerOperations
from taskframework.settings import Settings
from taskframework.stores.base import TaskStore
from taskframework.streams.gaps import StreamGaps
from taskframework.streams.looks import StreamLooks
from taskframework.streams.turns import StreamTurns
from taskframework.submission.batches import BatchSubmissionService
from taskframework.submission.debounce import DebouncedInserts
from taskframework.submission.edits import Edits
from taskframework.submission.new_tasks import NewTasks
from taskframework.submission.service import TaskSubmissionService
from taskframework.submission.streams import StreamInserts
from taskframework.submission.types import TaskTypes
from taskframework.submission.versions import VersionedInserts
from taskframework.tasks.registry import TaskRegistry
from taskframework.tasks.retention import retention_from_times
from taskframework.wiring.adapters import build_buckets, token_reader_factory


@dataclass(frozen=True, slots=True)
class StoreServices:
    """The services around an open store. Commands that only submit or look use no other services."""

    settings: Settings
    registry: TaskRegistry
    clock: Clock
    bus: EventBus
    store: TaskStore
    moves: TaskMoves
    types: TaskTypes
    submission: TaskSubmissionService
    tasks: TaskOperations
    explain: ExplainOperations
    dead_letters: DeadLetterOperations
    mending: MessageMending
    replays: ReplayOperations
    replay_carrier: ReplayCarrier
    batch_submission: BatchSubmissionService
    batches: BatchOperations
    looks: StreamLooks
    streams: StreamOperations
    queues: QueueOperations
    schedules: ScheduleOperations
    keys: KeyOperations
    callers: Callers
    audit: AuditLog
    buckets: Buckets
    limits: LimitOperations
    workers: WorkerOperations
    overview: OverviewOperations
    counter: TaskCounter
    #: How long the process that stored a task has to dispatch it.
    dispatch_after: timedelta
    #: The event loop on which all of them must be called; None if they were made to check a request only.
    loop: asyncio.AbstractEventLoop | None = field(default_factory=current_loop)


def build_store_services(
    settings: Settings, registry: TaskRegistry, clock: Clock, store: TaskStore, *, dispatches: bool
) -> StoreServices:
    """The services around a store.

    Args:
        settings: the settings of the installation.
        registry: the task types of this process.
        clock: the clock of this process; due times are decided by the store's clock.
        store: the store, which is open or is opened before a service is used.
        dispatches: whether this process sends messages. If not, a new task is due at once for another process's
            sweeper.
    """
    bus, buckets = EventBus(), build_buckets(settings, store, clock)
    moves = TaskMoves(store, bus)
    dispatch_after = settings.recovery.dispatch_grace if dispatches else timedelta(0)
    types, retention = TaskTypes(registry, store), record_kept_for(settings.retention.finished)
    turns, gaps = StreamTurns(store, moves, dispatch_after, retention), StreamGaps(store, moves, retention)
    looks = StreamLooks(turns)
    inserts = StreamInserts(store, looks, gaps, retention)
    new_tasks = NewTasks(
        store,
        moves,
        types,
        max_attempts=settings.retry.max_attempts,
        dispatch_after=dispatch_after,
        keys_kept=settings.retention.idempotency_keys,
        kept=retention_from_times(settings.retention.finished, settings.retention.dead_letters),
        inserts=inserts,
    )
    versions = VersionedInserts(store, moves, settings.retention.idempotency_keys, inserts)
    debounced = DebouncedInserts(store, moves, settings.retention.idempotency_keys)
    submission = TaskSubmissionService(bus, new_tasks, versions, debounced)
    tasks = TaskOperations(store, moves, dispatch_after)
    rate_limits, counter = limits_of(settings.rate_limiter), TaskCounter(store)
    limits = LimitOperations(buckets, rate_limits, store)
    redis_buckets = buckets if settings.rate_limiter.type == "redis" else None
    replays = ReplayOperations(store, ReplayKeys(store, settings.retention.audit), settings.retention.audit)
    is_embedded = settings.broker.scheme == "embedded"
    return StoreServices(
        settings=settings,
        registry=registry,
        clock=clock,
        bus=bus,
        store=store,
        moves=moves,
        types=types,
        submission=submission,
        tasks=tasks,
        explain=ExplainOperations(store, buckets, rate_limits, settings.worker, is_embedded=is_embedded),
        dead_letters=DeadLetterOperations(store, tasks, Edits(types), replays.keys),
        mending=MessageMending(store, types, submission),
        replays=replays,
        replay_carrier=ReplayCarrier(store, tasks, replays),
        batch_submission=BatchSubmissionService(bus, new_tasks, moves, settings.batches.upload_timeout),
        batches=BatchOperations(store, moves, tasks),
        looks=looks,
        streams=StreamOperations(store, moves, turns, gaps, settings.streams.gap),
        queues=QueueOperations(store, types),
        schedules=ScheduleOperations(store, types, submission),
        keys=KeyOperations(store, store.now),
        callers=Callers(store, store.now, tokens=token_reader_factory(settings.security)),
        audit=AuditLog(store, store.now, settings.retention.audit),
        buckets=buckets,
        limits=limits,
        workers=WorkerOperations(store),
        overview=OverviewOperations(store, types, counter.refresh, redis_buckets, limits, is_embedded=is_embedded),
        counter=counter,
        dispatch_after=dispatch_after,
    )
