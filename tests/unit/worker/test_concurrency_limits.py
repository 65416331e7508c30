"""The check of concurrency limits: who waits in the worker, who is put off, and what is given back when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskframework import BackgroundTaskExecutable, ConcurrencyLimit, TaskContext, TaskOptions
from taskframework.errors import StoreUnavailableError, TaskUnreadableError
from taskframework.limits.slots import SlotKeeper
from taskframework.model.attempts import Claim
from taskframework.model.marks import MakeDue
from taskframework.model.message import TaskMessage
from taskframework.model.records import Record, RecordChange
from taskframework.model.slots import (
    MAX_CLOCK_DIFFERENCE_SECONDS,
    SLOTS,
    AnnounceWaiting,
    GiveSlotBack,
    Holder,
    KeepPlace,
    Slots,
    TakeSlot,
)
from taskframework.model.status import Priority, TaskStatus
from taskframework.model.task import Task
from taskframework.stores.reading import read_record
from taskframework.stores.replies import DueTask
from taskframework.stores.sqlite import SqliteStore
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from taskframework.worker.admission import WAITED_TOO_LONG, Admission, Candidate, PutOff
from taskframework.worker.concurrency_limits import ConcurrencyLimits
from taskframework.worker.slot_line import SlotLine

WITHIN = timedelta(seconds=15)


class Free(BackgroundTaskExecutable[dict[str, Any], None]):
    task_type = "free"

    async def execute(self, context: TaskContext[dict[str, Any]]) -> None: ...


class OneAtOnce(Free):
    task_type = "one"
    options = TaskOptions(concurrency_limit=1)


class OneOfUser(Free):
    task_type = "one-of-user"
    options = TaskOptions(concurrency_limit=ConcurrencyLimit(1, key="user"))


class Stage:
    """The check over a store whose clock stands still."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.store = SqliteStore(path / "tasks.db", clock=self.clock)
        self.registry = TaskRegistry()
        for executable in (Free, OneAtOnce, OneOfUser):
            self.registry.register(executable)
        self.sent: list[str] = []
        self.held: list[int] = []
        self.waits: list[str] = []
        self.keeper = SlotKeeper(self.store, self.send)
        self.holding = AsyncExitStack()
        self.numbers: dict[str, int] = {}
        self.check = self.another_worker()

    def another_worker(self) -> ConcurrencyLimits:
        held = lambda task_type, change: self.held.append(change)  # noqa: E731
        own = (self.keeper, self.store, self.registry, self.clock, "w", self.numbers, WITHIN)
        return ConcurrencyLimits(*own, held, self.waits.append)

    async def send(self, task: DueTask) -> None:
        self.sent.append(task.task_id)

    async def task(self, task_type: str = "one-of-user", **fields: Any) -> Task:
        task = new_task(now=self.clock.now(), task_type=task_type, parameters={"user": "ada"}).evolve(**fields)
        await self.store.insert([task])
        return task

    def candidate(self, task: Task, claim_id: str) -> Candidate:
        message = TaskMessage(task.task_id, task.task_type, task.dispatch_epoch)
        registration = self.registry.get(task.task_type)
        return Candidate(message, {}, registration, claim_id, self.holding, lane=Priority.NORMAL)

    async def slots(self, *parts: str) -> Slots:
        record = await read_record(self.store, SLOTS.id_of(*parts))
        return Slots() if record is None else SLOTS.content(record)

    async def hold(self, *parts: str) -> list[str]:
        return [holder.claim_id for holder in (await self.slots(*parts)).holders]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    await stage.store.open()
    yield stage
    await stage.check.close()
    await stage.store.close()


async def test_a_type_without_a_limit_costs_nothing(stage: Stage) -> None:
    assert await stage.check.admit(stage.candidate(await stage.task("free"), "a")) is None
    assert await stage.store.list_records(SLOTS.name, limit=10) == []
    assert stage.check.ceiling("free") is None


async def test_a_worker_takes_in_no_more_than_there_are_slots(stage: Stage) -> None:
    assert stage.check.ceiling("one") == 1
    assert stage.check.ceiling("one-of-user") is None
    stage.numbers["one"] = stage.numbers["free"] = 7
    assert (stage.check.ceiling("one"), stage.check.ceiling("free")) == (7, 7)


async def test_a_type_has_a_limit_by_its_options_or_by_the_settings(stage: Stage) -> None:
    assert [stage.check.has_limit(name) for name in ("one", "one-of-user", "free", "unknown")] == [
        True,
        True,
        False,
        False,
    ]
    stage.numbers["free"] = 7
    assert stage.check.has_limit("free")


async def test_the_claim_has_the_slot_and_its_time(stage: Stage) -> None:
    candidate = stage.candidate(await stage.task("one"), "a")
    assert await stage.check.admit(candidate) is None
    assert candidate.slot is not None
    assert (candidate.slot.limit, candidate.slot.until) == (SLOTS.id_of("one"), stage.clock.now() + WITHIN)
    assert (await stage.hold("one"), stage.held, stage.waits) == (["a"], [1], [])


@pytest.mark.parametrize("task_type", ["one", "one-of-user"])
async def test_a_slot_is_given_back_if_the_task_is_surely_not_claimed(stage: Stage, task_type: str) -> None:
    candidate = stage.candidate(await stage.task(task_type), "a")
    parts = ("one",) if task_type == "one" else ("one-of-user", "ada")
    await stage.check.admit(candidate)
    candidate.unless_claimed.close()
    await eventually(lambda: _hold(stage, [], *parts))
    assert candidate.slot is None


async def _hold(stage: Stage, claims: list[str], *parts: str) -> bool:
    return await stage.hold(*parts) == claims


async def test_a_task_without_a_free_slot_of_its_key_is_put_off_for_growing_times(stage: Stage) -> None:
    assert await stage.check.admit(stage.candidate(await stage.task(), "a")) is None
    waiting, ada = await stage.task(), SLOTS.id_of("one-of-user", "ada")
    delays = []
    for waits in (0, 10, 1_000):
        stage.clock.advance(waits)
        put_off = await stage.check.admit(stage.candidate(waiting, "b"))
        assert put_off is not None
        assert put_off.limit == ada
        delays.append(put_off.delay(stage.clock.now()).total_seconds())
    assert all(
        0.75 * expected <= delay <= 1.25 * expected for delay, expected in zip(delays, (1, 10, 300), strict=True)
    )
    assert (stage.waits, (await stage.slots("one-of-user", "ada")).has_waiting_tasks) == (["one-of-user"] * 3, True)
    assert await stage.check.admit(stage.candidate(await stage.task(parameters={"user": "bob"}), "c")) is None


@pytest.mark.parametrize("fields", [{"status": TaskStatus.RUNNING}, {"dispatch_epoch": 2}], ids=["runs", "newer"])
async def test_a_task_that_the_claim_will_refuse_takes_no_slot(stage: Stage, fields: dict[str, Any]) -> None:
    task = await stage.task(**fields)
    assert await stage.check.admit(stage.candidate(task.evolve(dispatch_epoch=1), "a")) is None
    assert await stage.hold("one-of-user", "ada") == []


async def test_a_candidate_that_waited_for_another_check_renews_its_slot(stage: Stage) -> None:
    candidate = stage.candidate(await stage.task("one"), "a")
    await stage.check.admit(candidate)
    [first] = (await stage.slots("one")).holders
    stage.clock.advance(5)
    await stage.check.admit(candidate)
    assert (await stage.slots("one")).holders == (first,), "it has time enough"
    stage.clock.advance(5)
    assert await stage.check.admit(candidate) is None
    assert candidate.slot is not None
    assert candidate.slot.until == stage.clock.now() + WITHIN
    assert (await stage.hold("one"), stage.held) == (["a"], [1])


async def test_a_candidate_that_lost_its_slot_is_put_off(stage: Stage) -> None:
    candidate = stage.candidate(await stage.task("one"), "a")
    await stage.check.admit(candidate)
    stage.clock.advance(30)
    await stage.keeper.reconcile()
    await stage.check.admit(stage.candidate(await stage.task("one"), "b"))
    assert isinstance(await stage.check.admit(candidate), PutOff)
    assert await stage.hold("one") == ["b"]


async def test_slots_that_only_a_newer_release_can_read_hold_up_no_others(stage: Stage) -> None:
    await stage.store.write_records([Record("slots/a", "slots", {"holders": "of a newer release"})])
    candidate = stage.candidate(await stage.task("one"), "a")
    await stage.check.admit(candidate)
    stage.clock.advance(30)
    await stage.keeper.reconcile()
    assert await stage.hold("one") == []


async def test_a_slot_that_was_taken_again_is_not_given_back_by_the_first_round(stage: Stage) -> None:
    """The store is away behind the check, so that everything is left; asked again, the same claim takes a slot."""
    candidate = stage.candidate(await stage.task("one"), "a")

    class Away:
        async def admit(self, candidate: Candidate) -> PutOff | None:
            raise StoreUnavailableError("away")

    with pytest.raises(StoreUnavailableError):
        await Admission([stage.check, Away()]).admit(candidate)
    stage.clock.advance(0.001)
    assert await stage.check.admit(candidate) is None
    await stage.check.close()
    assert await stage.hold("one") == ["a"]


async def test_a_limit_without_a_key_lets_tasks_wait_here_until_a_slot_is_given_back(stage: Stage) -> None:
    await stage.check.admit(stage.candidate(await stage.task("one"), "a"))
    second = asyncio.create_task(stage.check.admit(stage.candidate(await stage.task("one"), "b")))
    await eventually(lambda: _stands_in_line(stage))
    assert (second.done(), stage.waits) == (False, ["one"])
    await stage.keeper.give_back(SLOTS.id_of("one"), "a")
    assert await second is None
    assert await stage.hold("one") == ["b"]


async def _stands_in_line(stage: Stage) -> bool:
    return bool((await stage.slots("one")).line)


async def test_a_candidate_that_may_wait_no_longer_is_put_off(stage: Stage) -> None:
    await stage.check.admit(stage.candidate(await stage.task("one"), "a"))

    async def too_late(awaited: Any) -> None:
        awaited.close()

    candidate = stage.candidate(await stage.task("one"), "b")
    candidate.without_slot = too_late
    assert await stage.check.admit(candidate) == WAITED_TOO_LONG


async def test_a_free_slot_wakes_one_task_that_waits_in_the_store_and_only_once(stage: Stage) -> None:
    ada = SLOTS.id_of("one-of-user", "ada")
    stage.numbers["one-of-user"] = 2
    for claim in "ab":
        await stage.check.admit(stage.candidate(await stage.task(), claim))
    now, tasks = stage.clock.now(), []
    for name, age in (("late", 1), ("early", 2), ("last", 0)):
        task = await stage.task(task_id=name, not_before=now - timedelta(seconds=age))
        await stage.check.admit(stage.candidate(task, name))
        await stage.store.mark(MakeDue(name, 1, timedelta(seconds=20), ada))
        tasks.append(task)
    await stage.keeper.give_back(ada, "a")
    assert stage.sent == ["early"]
    [due] = await stage.store.waiting_for(ada, 1)
    assert (due.task_id, due.due) == ("early", stage.clock.now())
    newcomer = await stage.check.admit(stage.candidate(await stage.task(), "new"))
    assert newcomer is not None, "the slot is for whoever was woken"
    await stage.keeper.give_back(ada, "of nobody")
    assert stage.sent == ["early"], "no other slot is free"
    await stage.keeper.give_back(ada, "b")
    assert stage.sent == ["early", "late"]
    assert await stage.check.admit(stage.candidate(tasks[1], "early")) is None


async def test_a_slot_that_somebody_took_at_once_wakes_nobody(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is woken without a slot finds none, and its place in the line would keep the next slot idle."""
    ada = SLOTS.id_of("one-of-user", "ada")
    await stage.check.admit(stage.candidate(await stage.task(), "a"))
    waiting = await stage.task(task_id="waiting", not_before=stage.clock.now() - timedelta(seconds=1))
    await stage.check.admit(stage.candidate(waiting, "waiting"))
    await stage.store.mark(MakeDue("waiting", 1, timedelta(seconds=20), ada))
    newcomer = stage.candidate(await stage.task(not_before=stage.clock.now() - timedelta(seconds=9)), "new")
    waiting_for = stage.store.waiting_for

    async def others_come_first(limit: str, most: int) -> Any:
        found = await waiting_for(limit, most)
        assert await stage.check.admit(newcomer) is None
        return found

    monkeypatch.setattr(stage.store, "waiting_for", others_come_first)
    await stage.keeper.give_back(ada, "a")
    assert (stage.sent, (await stage.slots("one-of-user", "ada")).line) == ([], ())
    monkeypatch.setattr(stage.store, "waiting_for", waiting_for)
    await stage.keeper.give_back(ada, "new")
    assert stage.sent == ["waiting"]


async def test_a_woken_task_that_finds_no_slot_is_woken_again(stage: Stage) -> None:
    ada = SLOTS.id_of("one-of-user", "ada")
    await stage.check.admit(stage.candidate(await stage.task(), "a"))
    waiting = await stage.task(task_id="waiting", not_before=stage.clock.now() - timedelta(seconds=1))
    await stage.check.admit(stage.candidate(waiting, "first"))
    await stage.store.mark(MakeDue("waiting", 1, timedelta(seconds=20), ada))
    await stage.keeper.give_back(ada, "a")
    earlier = await stage.task(not_before=stage.clock.now() - timedelta(seconds=9))
    assert await stage.check.admit(stage.candidate(earlier, "earlier")) is None
    assert await stage.check.admit(stage.candidate(waiting, "second")) is not None
    await stage.store.mark(MakeDue("waiting", 1, timedelta(seconds=20), ada))
    await stage.keeper.give_back(ada, "earlier")
    assert stage.sent == ["waiting", "waiting"]


async def test_a_task_of_a_newer_release_does_not_keep_others_from_being_woken(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = SLOTS.id_of("one-of-user", "ada")
    await stage.check.admit(stage.candidate(await stage.task(), "a"))
    for name, age in (("of-tomorrow", 2), ("of-today", 1)):
        task = await stage.task(task_id=name, not_before=stage.clock.now() - timedelta(seconds=age))
        await stage.check.admit(stage.candidate(task, name))
        await stage.store.mark(MakeDue(name, 1, timedelta(seconds=20), ada))

    async def send(task: DueTask) -> None:
        stage.sent.append(task.task_id)
        if task.task_id == "of-tomorrow":
            raise TaskUnreadableError(task.task_id, "a status of tomorrow")

    monkeypatch.setattr(stage.keeper, "_dispatch", send)
    await stage.keeper.give_back(ada, "a")
    assert stage.sent == ["of-tomorrow", "of-today"]


async def test_a_task_not_woken_because_a_process_died_is_woken_by_the_next_look(stage: Stage) -> None:
    ada = SLOTS.id_of("one-of-user", "ada")
    await stage.check.admit(stage.candidate(await stage.task(), "a"))
    for name in ("first", "second"):
        await stage.check.admit(stage.candidate(await stage.task(task_id=name), name))
        await stage.store.mark(MakeDue(name, 1, timedelta(seconds=20), ada))
    await stage.keeper.reconcile()
    assert stage.sent == [], "no slot is free"
    await stage.keeper.change(GiveSlotBack(ada, "a"))
    for _ in range(2):
        await stage.keeper.reconcile()
    assert len(stage.sent) == 1, "it has its place, and is not woken again"


async def test_two_slots_given_back_at_once_wake_two_tasks(stage: Stage) -> None:
    ada, now = SLOTS.id_of("one-of-user", "ada"), stage.clock.now()
    stage.numbers["one-of-user"] = 2
    for claim in "ab":
        await stage.check.admit(stage.candidate(await stage.task(), claim))
    for name, age in (("early", 2), ("late", 1), ("last", 0)):
        task = await stage.task(task_id=name, not_before=now - timedelta(seconds=age))
        await stage.check.admit(stage.candidate(task, name))
        await stage.store.mark(MakeDue(name, 1, timedelta(seconds=20), ada))
    await asyncio.gather(*(stage.keeper.give_back(ada, claim) for claim in "ab"))
    assert sorted(stage.sent) == ["early", "late"]


async def test_one_look_wakes_a_task_for_each_of_many_free_slots(stage: Stage) -> None:
    """As after the number of a limit was raised: all its slots are free at once, and none is given back."""
    ada, names = SLOTS.id_of("one-of-user", "ada"), [f"t-{number:02}" for number in range(35)]
    for name in names:
        await stage.task(task_id=name)
        await stage.store.mark(MakeDue(name, 1, timedelta(minutes=5), ada))
    await stage.keeper.change(AnnounceWaiting(ada, 30, 600))
    await stage.keeper.reconcile()
    assert len(set(stage.sent)) == len(stage.sent) == 30


async def test_where_no_task_waits_any_more_a_look_at_many_free_slots_reads_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slots tell for minutes that tasks may be waiting, and there may be thousands of keys."""
    ada, searched = SLOTS.id_of("one-of-user", "ada"), list[str]()
    waiting_for = stage.store.waiting_for

    async def counted(limit: str, most: int) -> Sequence[DueTask]:
        searched.append(limit)
        return await waiting_for(limit, most)

    monkeypatch.setattr(stage.store, "waiting_for", counted)
    await stage.keeper.change(AnnounceWaiting(ada, 1_000, 600))
    await stage.keeper.reconcile()
    assert searched == [ada]
    await stage.task(task_id="late")
    await stage.store.mark(MakeDue("late", 1, timedelta(minutes=5), ada))
    await stage.keeper.reconcile()
    assert (stage.sent, searched) == (["late"], [ada] * 3)


async def test_a_slot_that_is_renewed_during_a_look_is_not_taken_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = stage.candidate(await stage.task("one"), "a")
    await stage.check.admit(candidate)
    stage.clock.advance(WITHIN.total_seconds() + MAX_CLOCK_DIFFERENCE_SECONDS)

    async def meanwhile(task_ids: Collection[str]) -> dict[str, str]:
        assert await stage.check.admit(candidate) is None
        return {}

    monkeypatch.setattr(stage.store, "claims_of", meanwhile)
    await stage.keeper.reconcile()
    assert await stage.hold("one") == ["a"]


async def test_a_slot_that_was_not_given_back_is_freed_when_its_time_is_over(stage: Stage) -> None:
    for claim, task_type in (("a", "one"), ("b", "one-of-user")):
        await stage.check.admit(stage.candidate(await stage.task(task_type), claim))
    running = await stage.task("free")
    candidate = stage.candidate(running.evolve(task_type="one"), "c")
    stage.numbers["one"] = 2
    assert await stage.check.admit(candidate) is None
    made = Claim(running.task_id, 1, "c", "w", timedelta(hours=1), slot=candidate.slot)
    assert await stage.store.apply(made) is not None
    stage.clock.advance(WITHIN.total_seconds() + MAX_CLOCK_DIFFERENCE_SECONDS - 0.1)
    await stage.keeper.reconcile()
    assert await stage.hold("one") == ["a", "c"]
    stage.clock.advance(0.2)
    await stage.keeper.reconcile()
    assert (await stage.hold("one"), await stage.hold("one-of-user", "ada")) == (["c"], [])


async def test_changes_that_come_together_are_one_write_for_each_limit(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = Counter[str]()

    async def counted(change: RecordChange) -> Record:
        writes[change.record_id] += 1
        if change.record_id == SLOTS.id_of("broken"):
            raise StoreUnavailableError("away")
        return await SqliteStore.change_record(stage.store, change)

    monkeypatch.setattr(stage.store, "change_record", counted)
    takes = [take_request(limit, f"{limit} {at}") for at in range(30) for limit in ("one", "other", "broken")]
    replies = await asyncio.gather(*map(stage.keeper.change, takes), return_exceptions=True)
    assert {type(reply) for take, reply in zip(takes, replies, strict=True) if "broken" in take.record_id} == {
        StoreUnavailableError
    }
    assert (await stage.hold("one"), await stage.hold("other")) == (
        [f"one {at}" for at in range(5)],
        [f"other {at}" for at in range(5)],
    )
    assert max(writes.values()) <= 3


def take_request(limit: str, claim_id: str) -> TakeSlot:
    return TakeSlot(SLOTS.id_of(limit), 5, claim_id, claim_id, "w", 1, 0.0, 15.0)


async def test_each_free_slot_gives_the_turn_to_the_next_task_in_line(stage: Stage) -> None:
    looks = list[KeepPlace]()

    async def look(keep: KeepPlace) -> Slots:
        looks.append(keep)
        return Slots(2, (holder("x"), holder("y")))

    line = SlotLine(look, "w", stage.clock)
    came = {"third": 3.0, "first": 1.0, "second": 2.0}
    takes = {name: replace(take_request("one", name), number=2, since=since) for name, since in came.items()}
    waits = {name: asyncio.create_task(line.wait_for_free_slot(take)) for name, take in takes.items()}
    await eventually(lambda: bool(looks))
    assert looks[0].task_id == "first"
    line.note(Slots(2, (holder("x"),)))
    assert await waits["first"]
    await eventually(lambda: looks[-1].task_id == "second")
    assert not waits["second"].done()
    line.note(Slots(2))
    assert all(await asyncio.gather(waits["second"], waits["third"]))
    await line.close()


def holder(claim_id: str) -> Holder:
    return Holder(claim_id, claim_id, "w", 0.0, 15.0)
