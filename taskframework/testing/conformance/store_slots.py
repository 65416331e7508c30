"""Store suite: the slots of concurrency limits, the claims that need a slot, and the tasks that wait for one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from taskframework.errors import StoreUnavailableError
from taskframework.model.attempts import Complete, Fail, TakenSlot
from taskframework.model.limits import slot_to_give_back, waiting_limit
from taskframework.model.marks import MakeDue
from taskframework.model.records import Record
from taskframework.model.slots import (
    KEPT_AFTER_USE,
    SLOTS,
    AnnounceWaiting,
    GiveSlotBack,
    KeepPlace,
    SlotChange,
    SlotChanges,
    Slots,
    TakeSlot,
)
from taskframework.model.status import TaskStatus
from taskframework.model.task_fields import HeldSlot
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import (
    HOUR,
    MINUTE,
    SECOND,
    StoreSuite,
    claim_task,
    expect_refusal,
    lose_reply,
    make_claim,
    make_error,
    make_mark,
    make_move,
    put,
    put_final,
    put_running,
    read_task,
)

RESIZE = SLOTS.id_of("resize")
#: The last digits of a time, in seconds, may be rounded differently by another server.
_TIME_TOLERANCE = 1e-5
Change = SlotChange | SlotChanges


def take(claim: str, task: str = "t", number: int = 2, **options: Any) -> TakeSlot:
    values: dict[str, Any] = {"worker_id": "w", "rank": 1, "since": 100.0, "claimed_within": 15.0} | options
    return TakeSlot(RESIZE, number, task, claim, **values)


def keep(
    task: str,
    rank: int = 1,
    since: float = 100.0,
    by: str = "w",
    seconds: float = 60.0,
    for_free_slot: bool = False,
) -> KeepPlace:
    return KeepPlace(RESIZE, task, rank, since, by, seconds, for_free_slot)


async def change_and_check(store: TaskStore, change: Change) -> Slots:
    """Make a change, check it against the rule, and return the slots after it."""
    before = (await store.read_records([change.record_id])).get(change.record_id)
    after = await store.change_record(change)
    assert await store.read_records([change.record_id]) == {change.record_id: after}
    slots = SLOTS.content(after)
    known_slots = replace(Slots() if before is None else SLOTS.content(before), asked_at=slots.asked_at)
    expected = change.apply(known_slots, slots.asked_at)
    assert _plain(slots) == _plain(expected)
    assert _times(slots) == pytest.approx(_times(expected), rel=0, abs=_TIME_TOLERANCE)
    if after.expires_at is None or expected.expires_at is None:
        assert after.expires_at is expected.expires_at
    else:
        assert abs(after.expires_at - expected.expires_at) < timedelta(milliseconds=2)
    assert (after.kind, before is None or after.revision != before.revision) == (SLOTS.name, True)
    return slots


def _plain(slots: Slots) -> Slots:
    """The slots without their times."""
    holders = tuple([replace(holder, since=0.0, until=0.0) for holder in slots.holders])
    line = tuple([replace(place, until=0.0) for place in slots.line])
    return Slots(slots.number, holders, line)


def _times(slots: Slots) -> list[float]:
    holders = [time for holder in slots.holders for time in (holder.since, holder.until)]
    return [*holders, *(place.until for place in slots.line), slots.waiting_until, slots.asked_at]


class SlotCases(StoreSuite):
    """The effects of `change_record` on slots."""

    async def test_no_more_claims_hold_a_slot_than_there_are(self, store: TaskStore) -> None:
        assert len((await change_and_check(store, take("a"))).holders) == 1
        assert len((await change_and_check(store, take("b"))).holders) == 2
        refused = await change_and_check(store, take("c", asks_again_within=30.0))
        assert refused.held_by("c") is None
        assert refused.has_waiting_tasks
        await change_and_check(store, GiveSlotBack(RESIZE, "a"))
        assert (await change_and_check(store, take("c"))).held_by("c") is not None

    async def test_concurrent_requests_get_no_more_slots_than_there_are(self, store: TaskStore) -> None:
        takes = [take(f"claim {at}", f"task {at}", 3) for at in range(30)]
        replies = [SLOTS.content(reply) for reply in await asyncio.gather(*map(store.change_record, takes))]
        winners = [
            change.claim_id for change, slots in zip(takes, replies, strict=True) if slots.held_by(change.claim_id)
        ]
        assert len(winners) == 3
        assert {
            holder.claim_id for holder in (await change_and_check(store, GiveSlotBack(RESIZE, "none"))).holders
        } == set(winners)

    async def test_a_claim_that_asks_again_keeps_its_slot_for_a_new_time(self, store: TaskStore) -> None:
        with lose_reply("record.reply"), pytest.raises(StoreUnavailableError):
            await store.change_record(take("a", claimed_within=5.0))
        kept = await change_and_check(store, take("a", claimed_within=9.0))
        [holder] = kept.holders
        assert holder.until == pytest.approx(kept.asked_at + 9, abs=_TIME_TOLERANCE)

    async def test_a_slot_is_given_back_by_its_claim_alone(self, store: TaskStore) -> None:
        """Its task cannot give it back, because it may hold another slot by now. A slot that was taken again stays."""
        [first] = (await change_and_check(store, take("a"))).holders
        await self.pass_time(0.05)
        kept = (await change_and_check(store, take("a"))).held_by("a")
        assert len((await change_and_check(store, GiveSlotBack(RESIZE, "b"))).holders) == 1
        assert len((await change_and_check(store, GiveSlotBack(RESIZE, "a", first.until))).holders) == 1
        assert kept is not None
        assert (await change_and_check(store, GiveSlotBack(RESIZE, "a", kept.until))).holders == ()

    async def test_several_changes_in_one_write_are_made_one_after_the_other(self, store: TaskStore) -> None:
        for _ in range(2):  # the first write makes the record
            changes = (take("a", "1"), keep("9"), take("b", "2"), GiveSlotBack(RESIZE, "a"), take("$c", "3"), keep("4"))
            slots = await change_and_check(store, SlotChanges(RESIZE, changes))
            assert [holder.claim_id for holder in slots.holders] == ["b", "$c"]
            assert [place.task_id for place in slots.line] == ["9", "4"]
            await change_and_check(store, SlotChanges(RESIZE, (GiveSlotBack(RESIZE, "b"), GiveSlotBack(RESIZE, "$c"))))

    async def test_the_number_of_slots_of_a_limit_may_change(self, store: TaskStore) -> None:
        for claim in "abc":
            await change_and_check(store, take(claim, number=3))
        assert (await change_and_check(store, take("d", number=2))).held_by("d") is None
        await change_and_check(store, GiveSlotBack(RESIZE, "a"))
        assert (await change_and_check(store, take("d", number=2))).held_by("d") is None
        assert (await change_and_check(store, take("d", number=4))).held_by("d") is not None

    async def test_a_task_in_the_line_goes_before_a_task_that_comes_now(self, store: TaskStore) -> None:
        await change_and_check(store, keep("first", since=50.0))
        await change_and_check(store, keep("high", rank=0, since=90.0))
        assert (await change_and_check(store, take("x", "later"))).held_by("x") is None
        assert (await change_and_check(store, take("y", "first", since=50.0))).held_by("y") is not None, (
            "the second slot"
        )
        assert (await change_and_check(store, take("x", "later"))).held_by("x") is None
        slots = await change_and_check(store, take("z", "high", rank=0, since=90.0))
        assert (len(slots.holders), slots.line) == (2, ())

    async def test_a_task_that_does_not_come_in_time_loses_its_place_in_the_line(self, store: TaskStore) -> None:
        await change_and_check(store, keep("first", since=50.0, seconds=2.0))
        assert (await change_and_check(store, take("x", "later", number=1))).held_by("x") is None
        await self.pass_time(2.1)
        assert (await change_and_check(store, take("x", "later", number=1))).held_by("x") is not None

    async def test_a_place_in_the_line_stays_with_the_worker_that_keeps_it(self, store: TaskStore) -> None:
        await change_and_check(store, keep("first", by="one", seconds=5.0))
        [place] = (await change_and_check(store, keep("first", by="other", seconds=50.0))).line
        assert place.by == "one"
        [place] = (slots := await change_and_check(store, keep("first", by="one", seconds=50.0))).line
        assert place.until == pytest.approx(slots.asked_at + 50, abs=_TIME_TOLERANCE)

    async def test_a_task_that_goes_back_to_the_store_has_no_place_in_the_line(self, store: TaskStore) -> None:
        await change_and_check(store, take("a", number=1))
        for task in ("here", "in the store"):
            await change_and_check(store, keep(task))
        assert len((await change_and_check(store, take("b", "here", number=1))).line) == 2
        slots = await change_and_check(store, take("c", "in the store", number=1, asks_again_within=30.0))
        assert ([place.task_id for place in slots.line], slots.held_by("c")) == (["here"], None)

    async def test_no_more_places_are_given_for_free_slots_than_there_are(self, store: TaskStore) -> None:
        await change_and_check(store, take("a", number=3))
        for task in ("first", "second", "third"):
            slots = await change_and_check(store, keep(task, for_free_slot=True))
        assert ([place.task_id for place in slots.line], slots.free) == (["first", "second"], 0)
        longer = await change_and_check(store, keep("second", seconds=90.0, for_free_slot=True))
        assert longer.line[1].until > longer.asked_at + 80
        assert len((await change_and_check(store, keep("third"))).line) == 3, "a worker keeps a place in any case"

    async def test_tasks_that_wait_are_announced_before_anybody_has_asked_for_a_slot(self, store: TaskStore) -> None:
        slots = await change_and_check(store, AnnounceWaiting(RESIZE, 3, 100.0))
        assert (slots.free, slots.has_waiting_tasks) == (3, True)
        await change_and_check(store, take("a", number=3))
        longer = await change_and_check(store, AnnounceWaiting(RESIZE, 2, 10.0))
        assert (longer.free, len(longer.holders)) == (1, 1)
        assert longer.waiting_until > longer.asked_at + 80, "a shorter time is no news"

    async def test_a_text_that_looks_like_a_database_operator_stays_a_text(self, store: TaskStore) -> None:
        slots = await change_and_check(store, take("$data", "$holders", worker_id="$$NOW"))
        assert [(holder.task_id, holder.claim_id, holder.worker_id) for holder in slots.holders] == [
            ("$holders", "$data", "$$NOW")
        ]
        await change_and_check(store, keep("$data.line", by="$$ROOT"))
        assert (await change_and_check(store, GiveSlotBack(RESIZE, "$data"))).holders == ()

    async def test_slots_are_kept_while_one_is_held_or_waited_for(self, store: TaskStore) -> None:
        await change_and_check(store, take("a", number=1))
        await change_and_check(store, take("b", number=1, asks_again_within=100.0))
        assert (await store.read_records([RESIZE]))[RESIZE].expires_at is None
        await change_and_check(store, GiveSlotBack(RESIZE, "a"))
        expires_at = (await store.read_records([RESIZE]))[RESIZE].expires_at
        assert expires_at is not None
        assert expires_at > store.now() + KEPT_AFTER_USE + timedelta(seconds=90)

    async def test_fields_of_a_newer_release_stay_in_slots(self, store: TaskStore) -> None:
        await store.write_records([Record(RESIZE, SLOTS.name, {"holders": [], "novel": {"b": 1}})])
        await change_and_check(store, take("a"))
        [record] = (await store.read_records([RESIZE])).values()
        assert record.data["novel"] == {"b": 1}


class SlotClaimCases(StoreSuite):
    """Claims with a slot, and tasks that wait for one."""

    async def test_a_claim_notes_its_slot_and_is_refused_after_its_time(self, store: TaskStore) -> None:
        task, late = await put(store), await put(store)
        await expect_refusal(store, make_claim(late, slot=TakenSlot(RESIZE, store.now() - SECOND)))
        claim = make_claim(task, slot=TakenSlot(RESIZE, store.now() + MINUTE))
        running = await make_move(store, claim)
        assert running.slot == HeldSlot(RESIZE, claim.claim_id)
        assert slot_to_give_back(running) is None
        assert await store.claims_of([task.task_id, late.task_id, "none"]) == {task.task_id: claim.claim_id}

    async def test_the_slot_that_an_attempt_held_is_known_after_its_end(self, store: TaskStore) -> None:
        task = await put(store)
        running, fence = await claim_task(store, task, slot=TakenSlot(RESIZE, store.now() + MINUTE))
        retrying = await make_move(store, Fail(fence, "worker-1", make_error(), True, -HOUR))
        assert slot_to_give_back(retrying) == running.slot == HeldSlot(RESIZE, fence.claim_id)
        assert await store.claims_of([task.task_id]) == {}
        other, fence = await claim_task(store, retrying, slot=TakenSlot("slots/other", store.now() + MINUTE))
        assert slot_to_give_back(other) is None
        done = await make_move(store, Complete(fence, "worker-1", None))
        assert slot_to_give_back(done) == HeldSlot("slots/other", fence.claim_id)

    async def test_claims_with_and_without_a_slot_travel_together(self, store: TaskStore) -> None:
        tasks = [await put(store) for _ in range(12)]
        now = store.now()
        slots = [None, TakenSlot(RESIZE, now + MINUTE), TakenSlot(RESIZE, now - SECOND)] * 4
        claims = [make_claim(task, slot=slot) for task, slot in zip(tasks, slots, strict=True)]
        replies = await asyncio.gather(*map(store.apply, claims))
        for claim, reply, before in zip(claims, replies, tasks, strict=True):
            after = await read_task(store, before.task_id)
            if claim.slot is not None and claim.slot.until < now:
                assert (reply, after.status) == (None, TaskStatus.QUEUED)
            else:
                held = None if claim.slot is None else HeldSlot(RESIZE, claim.claim_id)
                assert (after.status, after.slot) == (TaskStatus.RUNNING, held)

    async def test_a_claim_for_other_parameters_is_refused_also_among_others(self, store: TaskStore) -> None:
        tasks = [await put(store, parameters={"tenant": number}) for number in range(9)]
        await expect_refusal(store, make_claim(tasks[0], parameters_hash=tasks[1].parameters_hash))
        await make_move(store, make_claim(tasks[0], parameters_hash=tasks[0].parameters_hash))
        rest = tasks[1:]
        hashes = [None, "of others", *(task.parameters_hash for task in rest[2:])]
        claims = [make_claim(task, parameters_hash=read) for task, read in zip(rest, hashes, strict=True)]
        replies = await asyncio.gather(*map(store.apply, claims))
        assert [reply is not None for reply in replies] == [True, False, *[True] * 6]

    async def test_tasks_that_wait_for_a_limit_are_found_in_their_order(self, store: TaskStore) -> None:
        now = store.now()
        waiting = [
            await put(store, priority=priority, not_before=now - age * SECOND, created_at=now - HOUR)
            for priority, age in (("low", 9), ("normal", 3), ("normal", 7), ("high", 1), ("high", 2))
        ]
        others = [await put(store), (await put_running(store))[0], await put_final(store, TaskStatus.CANCELLED)]
        for task in waiting:
            await make_mark(store, MakeDue(task.task_id, 1, HOUR, RESIZE))
        await make_mark(store, MakeDue(others[0].task_id, 1, HOUR, "slots/other"))
        low, late, early, second, first = [task.task_id for task in waiting]
        assert await waiting_ids(store, 10) == [first, second, early, late, low]
        assert await waiting_ids(store, 3) == [first, second, early]

    async def test_a_task_that_was_claimed_or_has_ended_waits_no_longer_for_a_limit(self, store: TaskStore) -> None:
        task, other = await put(store), await put(store)
        for one in (task, other):
            await make_mark(store, MakeDue(one.task_id, 1, HOUR, RESIZE))
        _, fence = await claim_task(store, task)
        assert await waiting_ids(store, 10) == [other.task_id]
        await make_move(store, Fail(fence, "worker-1", make_error(), True, timedelta(0)))
        assert await waiting_ids(store, 10) == [other.task_id], "it waited at another epoch"
        assert waiting_limit(await read_task(store, task.task_id)) is None


async def waiting_ids(store: TaskStore, most: int) -> list[str]:
    found = await store.waiting_for(RESIZE, most)
    assert all(task.status is TaskStatus.QUEUED and task.due > store.now() for task in found)
    return [task.task_id for task in found]
