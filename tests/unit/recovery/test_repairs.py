"""One look of each repair: what it does, whom it tells, what it leaves alone, and whether there may be more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, cast

import pytest

from taskframework.brokers.base import Broker
from taskframework.bus import EventBus
from taskframework.errors import BrokerUnavailableError, TopologyMismatchError
from taskframework.events.bridge import ExternalEventBridge
from taskframework.limits.pauses import Pauses
from taskframework.model.drivers import DEADLINE, DISPATCH
from taskframework.model.events import TaskEvent
from taskframework.model.marks import MakeDue, MarkDispatched
from taskframework.model.pauses import PAUSE, Pause
from taskframework.model.query import DeadMessage
from taskframework.model.retry import RetryPolicy
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import Lease, ParentLink
from taskframework.model.transitions import Move
from taskframework.moves import TaskMoves
from taskframework.recovery.loop import choose_due
from taskframework.recovery.parents import ParentRepair
from taskframework.recovery.pauses import PauseRepair
from taskframework.recovery.reaper import Reaper
from taskframework.recovery.relay import Relay
from taskframework.recovery.retention import RetentionRepair
from taskframework.recovery.sweeper import Sweeper
from taskframework.recovery.topology import TopologyRepair
from taskframework.stores.reading import read_record
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.producer import TaskMessageProducer
from taskframework.testing.clock import FakeClock
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.factories import new_task

SECOND = timedelta(seconds=1)
GRACE = 5 * SECOND
BATCH = 2


class Connection:
    """A broker that is there or away."""

    is_connected = True
    error: Exception | None = None

    def __init__(self) -> None:
        self.declared: list[Sequence[str]] = []

    async def declare(self, task_types: Sequence[str]) -> None:
        if self.error is not None:
            raise self.error
        self.declared.append(task_types)


class Bridge:
    """Notes what it was given, and for what of it somebody waited."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.awaited: list[str] = []

    def enqueue(self, task: Task) -> None:
        self.taken.append(task.task_id)

    async def wait_until_published(self, tasks: Iterable[Task]) -> None:
        self.awaited += [task.task_id for task in tasks]


@pytest.fixture
def told() -> list[TaskEvent]:
    return []


@pytest.fixture
def bus(told: list[TaskEvent]) -> EventBus:
    bus = EventBus()
    bus.listen(TaskEvent, told.append, name="told")
    return bus


async def put(store: SqliteStore, number: int = 1, **fields: Any) -> list[Task]:
    tasks = [new_task(now=store.now()).evolve(**fields) for _ in range(number)]
    return [(await insert_one(store, task)).task for task in tasks]


async def put_running(store: SqliteStore, number: int = 1, **fields: Any) -> list[Task]:
    lease = Lease("worker", "claim", store.now())
    return await put(store, number, status=TaskStatus.RUNNING, lease=lease, attempts=1, next_dispatch_at=None, **fields)


def of(told: list[TaskEvent]) -> list[tuple[str, str]]:
    return [(event.task.task_id, event.task.history[-1].type) for event in told]


async def present(store: SqliteStore, task: Task) -> Task:
    found = await store.get(task.task_id, EVERYONE)
    assert found is not None
    return found


@pytest.fixture
def reaper(store: SqliteStore, bus: EventBus) -> Reaper:
    policy = RetryPolicy(initial_delay=10 * SECOND, backoff_factor=3, jitter_factor=0)
    return Reaper(store, TaskMoves(store, bus), policy, grace=GRACE, max_crashes=3, limit=BATCH)


async def test_a_lease_is_reaped_when_its_grace_is_over(
    store: SqliteStore, reaper: Reaper, clock: FakeClock, told: list[TaskEvent]
) -> None:
    [task] = await put_running(store)
    clock.advance(GRACE - timedelta(milliseconds=1))
    assert not await reaper.reap()
    assert told == []
    clock.advance(timedelta(milliseconds=1))
    assert not await reaper.reap()
    assert of(told) == [(task.task_id, "retrying")]


@pytest.mark.parametrize(
    ("crashes", "status", "delay"),
    [(0, TaskStatus.RETRYING, 0), (1, TaskStatus.RETRYING, 10), (2, TaskStatus.DEAD_LETTER, None)],
)
async def test_the_first_crash_is_tried_again_at_once_later_ones_wait_and_the_third_is_the_last(
    store: SqliteStore, reaper: Reaper, clock: FakeClock, crashes: int, status: TaskStatus, delay: int | None
) -> None:
    [task] = await put_running(store, crashes=crashes)
    clock.advance(60)
    await reaper.reap()
    reaped = await present(store, task)
    assert (reaped.status, reaped.crashes) == (status, crashes + 1)
    assert delay is None or reaped.not_before == clock.now() + delay * SECOND


async def test_the_delay_after_a_crash_grows_with_them(store: SqliteStore, bus: EventBus, clock: FakeClock) -> None:
    policy = RetryPolicy(initial_delay=10 * SECOND, backoff_factor=3, jitter_factor=0)
    [task] = await put_running(store, crashes=2)
    clock.advance(60)
    await Reaper(store, TaskMoves(store, bus), policy, grace=GRACE, max_crashes=9, limit=BATCH).reap()
    assert (await present(store, task)).not_before == clock.now() + 30 * SECOND


async def test_a_full_batch_may_have_more_behind_it(
    store: SqliteStore, reaper: Reaper, clock: FakeClock, told: list[TaskEvent]
) -> None:
    await put_running(store, BATCH + 1)
    clock.advance(60)
    assert await reaper.reap()
    assert len(told) == BATCH
    assert not await reaper.reap()
    assert len(told) == BATCH + 1


async def test_a_task_past_its_deadline_ends_or_is_asked_to_stop(
    store: SqliteStore, reaper: Reaper, clock: FakeClock, told: list[TaskEvent]
) -> None:
    deadline = clock.now() + 10 * SECOND
    [waits], [runs] = await put(store, deadline=deadline), await put_running(store, deadline=deadline)
    await put(store, deadline=deadline + SECOND)
    assert not await reaper.expire()
    assert told == []
    clock.advance(10)
    assert not await reaper.expire(), "the third is not due yet"
    assert sorted(of(told)) == sorted([(waits.task_id, "failed"), (runs.task_id, "cancel_requested")])
    assert not await reaper.expire()
    assert len(told) == 2


async def test_processes_that_look_at_one_moment_choose_different_tasks(store: SqliteStore, clock: FakeClock) -> None:
    tasks = await put(store, 3 * BATCH, deadline=clock.now())
    due = {task.task_id for task in tasks}
    chosen = set[frozenset[str]]()
    for _ in range(50):
        part, has_more = await choose_due(store, DEADLINE, BATCH)
        assert (len(part), has_more) == (BATCH, True)
        chosen.add(frozenset(task.task_id for task in part))
    assert len(chosen) > 1
    assert set.union(*map(set, chosen)) == due
    assert await choose_due(store, DEADLINE, 3 * BATCH) == (await store.due(DEADLINE, 3 * BATCH), False)


@pytest.mark.parametrize("what", ["deadlines", "leases", "waits"])
async def test_tasks_that_are_due_at_one_look_are_written_at_once(
    store: SqliteStore, bus: EventBus, clock: FakeClock, what: str
) -> None:
    """One after the other, thousands of them would take longer than a worker needs to begin the tasks."""
    all_at_once = asyncio.Barrier(BATCH)

    class Moves(TaskMoves):
        async def repair(self, move: Move) -> None:
            await asyncio.wait_for(all_at_once.wait(), 10)

    moves = Moves(store, bus)
    reaper = Reaper(store, moves, RetryPolicy(), grace=GRACE, max_crashes=3, limit=BATCH)
    if what == "deadlines":
        await put(store, BATCH, deadline=clock.now())
        assert not await reaper.expire()
    elif what == "leases":
        await put_running(store, BATCH)
        clock.advance(60)
        assert not await reaper.reap()
    else:
        await put(store, BATCH, status=TaskStatus.WAITING, next_dispatch_at=None, check_at=clock.now())
        nobody: Any = None
        assert not await ParentRepair(store, moves, nobody, nobody, nobody, BATCH).run_once()
    assert all_at_once.n_waiting == 0


async def test_while_the_broker_is_away_nothing_is_swept_or_relayed(store: SqliteStore, clock: FakeClock) -> None:
    connection, bridge = Connection(), Bridge()
    connection.is_connected = False
    [task] = await put(store)
    clock.advance(60)
    assert not await Sweeper(store, cast(Broker, connection), cast(TaskMessageProducer, None), 1).sweep()
    assert not await Relay(store, cast(Broker, connection), cast(ExternalEventBridge, bridge), 1).relay()
    assert bridge.taken == []
    assert await present(store, task) == task


async def test_a_relay_reserves_due_events_so_that_no_other_publishes_them(
    store: SqliteStore, clock: FakeClock
) -> None:
    bridge = Bridge()
    relay = Relay(store, cast(Broker, Connection()), cast(ExternalEventBridge, bridge), BATCH)
    assert not await relay.relay()
    tasks = await put(store, BATCH + 1)
    clock.advance(60)
    assert await relay.relay()
    assert await relay.relay() is False
    assert sorted(bridge.awaited) == sorted(task.task_id for task in tasks)
    assert not await relay.relay()
    clock.advance(15)
    assert await relay.relay(), "it was not published, so it is due again"


async def test_a_task_that_another_process_sent_after_a_pause_is_not_made_due_again(
    store: SqliteStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = Pauses(store)
    waiting, elsewhere = await put(store, 2, task_type="t")
    for task in (waiting, elsewhere):
        await store.mark(MakeDue(task.task_id, task.dispatch_epoch, 60 * SECOND))
    await store.write_records([PAUSE.new("t", content=Pause("t", "tests", store.now()))])
    repair = PauseRepair(store, pauses, 15 * 60 * SECOND)
    await repair.run_once()
    record = await read_record(store, PAUSE.id_of("t"))
    assert record is not None
    await store.delete_records([record])
    put_off = store.put_off

    async def find_then_send(*arguments: Any, **options: Any) -> Any:
        page = await put_off(*arguments, **options)
        await store.mark(MarkDispatched(elsewhere.task_id, elsewhere.dispatch_epoch, 20 * SECOND, 60 * SECOND))
        return page

    monkeypatch.setattr(store, "put_off", find_then_send)
    await repair.run_once()
    due = [task.task_id for task in await store.due(DISPATCH, 10)]
    assert due == [waiting.task_id], "a second message for each process would be sent"


async def test_tasks_that_a_pause_put_off_are_made_due_in_parts(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskframework.recovery.pauses._PAGE_SIZE", 2)
    tasks = await put(store, 5, task_type="t")
    await store.mark(*(MakeDue(task.task_id, task.dispatch_epoch, 60 * SECOND) for task in tasks))
    [pause] = await store.write_records([PAUSE.new("t", content=Pause("t", "tests", store.now()))])
    assert pause is not None
    repair = PauseRepair(store, Pauses(store), 15 * 60 * SECOND)
    assert not await repair.run_once()
    await store.delete_records([pause])
    looks = [await repair.run_once() for _ in range(3)]
    assert looks == [True, True, False]
    assert len(await store.due(DISPATCH, 10)) == len(tasks)


@pytest.mark.parametrize("seconds_between", [0, 2])
async def test_after_two_pauses_no_type_waits_for_all_tasks_of_the_other(
    store: SqliteStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, seconds_between: int
) -> None:
    monkeypatch.setattr("taskframework.recovery.pauses._PAGE_SIZE", 2)
    for task_type, count in (("large", 20), ("small", 2)):  # the tasks of the large type were submitted first
        tasks = await put(store, count, task_type=task_type)
        await store.mark(*(MakeDue(task.task_id, task.dispatch_epoch, 60 * SECOND) for task in tasks))
    pauses = [PAUSE.new(task_type, content=Pause(task_type, "a", store.now())) for task_type in ("large", "small")]
    large, small = await store.write_records(pauses)
    assert large is not None
    assert small is not None
    repair = PauseRepair(store, Pauses(store), 15 * 60 * SECOND)
    await repair.run_once()
    await store.delete_records([large])
    await repair.run_once()
    clock.advance(seconds_between)
    await store.delete_records([small])
    while await repair.run_once():
        pass
    due = [task.task_type for task in await store.due(DISPATCH, 30)]
    assert len(due) == 22
    assert "small" in due[: 2 * (2 + seconds_between)], due


@pytest.mark.parametrize(("finished", "dead_letters", "left"), [(1, None, 2), (None, 1, 1), (1, 1, 0), (None, None, 3)])
async def test_ended_tasks_and_dead_messages_are_removed_after_their_own_time(
    store: SqliteStore, clock: FakeClock, finished: int | None, dead_letters: int | None, left: int
) -> None:
    for status in (TaskStatus.COMPLETED, TaskStatus.DEAD_LETTER):
        await put(store, status=status, finished_at=clock.now(), next_dispatch_at=None, publish_at=None)
    await store.keep_dead_message(DeadMessage("m", b"", {}, "q", "r", clock.now()))
    times = [None if days is None else timedelta(days=days) for days in (finished, dead_letters)]
    retention = RetentionRepair(
        store, finished=times[0], dead_letters=times[1], idempotency_keys=timedelta(days=1), limit=BATCH
    )
    clock.advance(timedelta(days=1) - timedelta(milliseconds=1))
    assert not await retention.purge()
    clock.advance(timedelta(milliseconds=1))
    while await retention.purge():
        pass
    counts = await store.count_by_status()
    assert sum(counts.values()) + (await store.get_dead_message("m") is not None) == left


async def test_a_parent_goes_in_the_same_look_as_its_sub_tasks(store: SqliteStore, clock: FakeClock) -> None:
    over: dict[str, Any] = {
        "status": TaskStatus.COMPLETED,
        "finished_at": clock.now(),
        "next_dispatch_at": None,
        "publish_at": None,
    }
    [parent] = await put(store, **over)
    await put(store, parent=ParentLink(parent.task_id, 0, 1), **over)
    day = timedelta(days=1)
    retention = RetentionRepair(store, finished=day, dead_letters=day, idempotency_keys=day, limit=10)
    clock.advance(day)
    assert await retention.purge(), "now the parent can go, too"
    while await retention.purge():
        pass
    assert sum((await store.count_by_status()).values()) == 0


async def test_the_topology_is_declared_once_until_it_is_doubted() -> None:
    connection = Connection()
    repair = TopologyRepair(cast(Broker, connection), ["reports"])
    assert (repair.is_declared, repair.problem) == (False, "not declared yet")
    connection.error = BrokerUnavailableError("It is away.")
    await repair.repair()
    assert (repair.is_declared, repair.problem) == (False, "It is away.")
    connection.error = None
    for _ in range(2):
        await repair.repair()
        assert (repair.is_declared, repair.problem) == (True, None)
    assert connection.declared == [["reports"]]
    repair.request_check()
    assert not repair.is_declared
    await repair.repair()
    assert len(connection.declared) == 2


async def test_a_topology_that_a_person_has_to_mend_is_an_error_and_a_problem() -> None:
    connection = Connection()
    connection.error = TopologyMismatchError("tasks.reports.normal", "its type differs")
    repair = TopologyRepair(cast(Broker, connection), ["reports"])
    with pytest.raises(TopologyMismatchError):
        await repair.repair()
    assert (repair.is_declared, repair.problem) == (False, connection.error.message)
