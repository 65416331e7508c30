"""The repairs of a process: each looks again and again for work that is due."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta

from taskframework.limits.task_limits import limits_of
from taskframework.model.workers import REPORT_INTERVAL
from taskframework.operations.health import Health
from taskframework.recovery.batches import BatchRepair
from taskframework.recovery.loop import Look, RepairLoop
from taskframework.recovery.pace import RepairPace
from taskframework.recovery.parents import ParentRepair
from taskframework.recovery.pauses import PauseRepair
from taskframework.recovery.queue_timeouts import QueueTimeouts
from taskframework.recovery.rate_turns import RateTurnRepair
from taskframework.recovery.reaper import Reaper
from taskframework.recovery.relay import Relay
from taskframework.recovery.retention import RetentionRepair
from taskframework.recovery.schedules import ScheduleRepair
from taskframework.recovery.streams import StreamRepair
from taskframework.recovery.sweeper import Sweeper
from taskframework.wiring.process_services import ProcessServices

#: Pauses between two looks of a repair.
_RETENTION_INTERVAL = timedelta(minutes=1)
_TOPOLOGY_INTERVAL = timedelta(seconds=2)
#: A slot that was taken and not used is found within lease + 10 s: after `claimed_within`,
#: `MAX_CLOCK_DIFFERENCE_SECONDS` and a pause.
_SLOTS_INTERVAL = timedelta(seconds=5)
_PAUSES_INTERVAL = timedelta(seconds=1)
_TURNS_INTERVAL = timedelta(seconds=10)
_SCHEDULES = "schedules"
#: Repairs without which a promise is not kept: a process is not ready while one of these is late.
_ESSENTIAL_REPAIRS = frozenset(
    {"sweep", "expire", "reap", "slots", "relay", "parents", "batches", _SCHEDULES, "replays", "streams", "unstarted"}
)
#: Repairs that any process can do for all: each looks less often where there are many workers. Not `reap` and `slots`,
#: which have a promised time after a crash, nor those that keep this process itself up to date.
_SHARED_REPAIRS = (_ESSENTIAL_REPAIRS - {"reap", "slots"}) | {"turns"}


def build_repairs(process: ProcessServices) -> tuple[RepairLoop, ...]:
    """The repairs, not started."""
    clock, count_failure, is_away = process.services.clock, process.metrics.repairs_failed.add, process.breaker.is_away
    pace = RepairPace(process.services.store)

    def build(name: str, look: Look, pause: timedelta) -> RepairLoop:
        factor = (lambda: pace.factor) if name in _SHARED_REPAIRS else (lambda: 1.0)
        return RepairLoop(name, look, pause, clock, count_failure, is_away, factor)

    repairs = [build(*repair) for repair in _list_repairs(process)]
    if process.services.settings.store.scheme != "sqlite":  # there, this process is the only one
        repairs.append(build("pace", pace.measure, REPORT_INTERVAL))
    return tuple(repairs)


def start_repairs(process: ProcessServices, stack: AsyncExitStack, *, of_schedules: bool) -> None:
    """Start the repair of schedules, or all others; the exit of the stack stops them.

    The schedules come last in a start: what the settings no longer name is removed first, and must not run once more.
    """
    for repair in process.repairs:
        if (repair.name == _SCHEDULES) is of_schedules:
            repair.start()
            stack.push_async_callback(repair.stop)


def require_repairs(health: Health, repairs: tuple[RepairLoop, ...]) -> None:
    """Let readiness report when each repair looked last, and require the essential repairs."""
    health.repairs = repairs
    for loop in repairs:
        if loop.name in _ESSENTIAL_REPAIRS:
            health.required.append((loop.name, loop.problem))
            health.reported.append((loop.name, loop.standstill))


def _list_repairs(process: ProcessServices) -> Iterator[tuple[str, Look, timedelta]]:
    """Each repair: its name, the function for one look, and the pause between two looks."""
    services, producer = process.services, process.producer
    settings, store, broker = services.settings, services.store, process.broker
    recovery, limit = settings.recovery, settings.recovery.batch_size
    reaper = _build_reaper(process)
    retention = RetentionRepair(
        store,
        finished=settings.retention.finished,
        dead_letters=settings.retention.dead_letters,
        idempotency_keys=settings.retention.idempotency_keys,
        limit=limit,
    )
    yield "pauses", PauseRepair(store, process.pauses, recovery.redispatch_max).run_once, _PAUSES_INTERVAL
    yield "topology", process.topology.repair, _TOPOLOGY_INTERVAL
    if process.dispatches:
        yield "sweep", Sweeper(store, broker, producer, limit, process.pauses.is_paused).sweep, recovery.sweep_interval
    yield "expire", reaper.expire, recovery.sweep_interval
    waits = QueueTimeouts(store, services.moves, services.types, services.buckets, limit)
    yield "unstarted", waits.run_once, recovery.sweep_interval
    # The reaper looks twice in each grace: lease, grace and pause together must not take longer than lease + 10 s.
    yield "reap", reaper.reap, settings.worker.lease_grace / 2
    yield "slots", process.slots.reconcile, min(_SLOTS_INTERVAL, settings.worker.lease / 4)
    if limits := limits_of(settings.rate_limiter):
        turns = RateTurnRepair(services.buckets, limits, store, process.pauses.is_paused)
        yield "turns", turns.run_once, _TURNS_INTERVAL
    yield "relay", Relay(store, broker, process.bridge, limit).relay, recovery.relay_interval
    parents = ParentRepair(store, services.moves, process.spawner, process.reporter, process.cascade, limit)
    yield "parents", parents.run_once, recovery.sweep_interval
    batches = BatchRepair(store, services.moves, process.retrier, limit)
    yield "batches", batches.run_once, recovery.sweep_interval
    yield "streams", StreamRepair(store, services.looks, limit).run_once, recovery.sweep_interval
    schedules = ScheduleRepair(store, services.moves, services.submission, limit)
    yield _SCHEDULES, schedules.run_once, recovery.sweep_interval
    yield "replays", services.replay_carrier.run_once, recovery.sweep_interval
    if process.worker is not None:
        yield "presence", process.worker.sign_of_life.write, REPORT_INTERVAL
        yield "declarations", services.types.keep_declared, REPORT_INTERVAL
    yield "retention", retention.purge, _RETENTION_INTERVAL


def _build_reaper(process: ProcessServices) -> Reaper:
    services, settings = process.services, process.services.settings
    return Reaper(
        services.store,
        services.moves,
        process.retry_policy,
        grace=settings.worker.lease_grace,
        max_crashes=settings.worker.max_crashes,
        limit=settings.recovery.batch_size,
    )


async def reap_leases_on_sqlite(process: ProcessServices) -> None:
    """Reap every lease on a SQLite file: this process has its execution lock, so the workers of all leases are dead.

    On a server nothing proves that, so the reaper waits for the end of each lease.
    """
    if process.services.settings.store.scheme == "sqlite":
        await _build_reaper(process).reap_all()
