"""The rules of slots: who holds one, whoever asks, gives back and stands in the line, in whatever order."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskframework.clock import from_timestamp
from taskframework.model.slots import KEPT_AFTER_USE, SLOTS, GiveSlotBack, KeepPlace, Slots, TakeSlot, rank_of
from taskframework.model.status import Priority

START = 1_800_000_000.0
RESIZE = SLOTS.id_of("resize")
Change = TakeSlot | GiveSlotBack | KeepPlace

_NAMES = st.sampled_from("abcde")
_RANKS = st.integers(0, 2)
_SINCE = st.sampled_from([1.0, 2.0, 3.0])
_CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(
        TakeSlot,
        st.just(RESIZE),
        st.integers(1, 3),
        _NAMES,
        _NAMES,
        st.just("w"),
        _RANKS,
        _SINCE,
        st.just(15.0),
        st.sampled_from([0.0, 30.0]),
    ),
    st.builds(GiveSlotBack, st.just(RESIZE), _NAMES),
    st.builds(KeepPlace, st.just(RESIZE), _NAMES, _RANKS, _SINCE, _NAMES, st.just(2.0), st.booleans()),
)


def take(claim: str, number: int = 1, *, task: str = "t", rank: int = 1, since: float = 5.0) -> TakeSlot:
    return TakeSlot(RESIZE, number, task, claim, "w", rank, since, 15.0, 30.0)


def after(slots: Slots, change: Change, now: float = START) -> Slots:
    return change.apply(replace(slots, asked_at=now), now)


@given(st.lists(st.tuples(_CHANGES, st.sampled_from([0.0, 1.0, 5.0])), max_size=60))
def test_no_more_claims_hold_a_slot_than_the_last_request_allowed(changes: list[tuple[Change, float]]) -> None:
    slots, now = Slots(), START
    for change, passes in changes:
        now += passes
        before, slots = slots, after(slots, change, now)
        claims = [holder.claim_id for holder in slots.holders]
        assert len(set(claims)) == len(claims), "a claim holds one"
        if isinstance(change, TakeSlot) and len(slots.holders) > len(before.holders):
            assert len(slots.holders) <= change.number
        lost = {holder.claim_id for holder in before.holders} - set(claims)
        assert lost <= ({change.claim_id} if isinstance(change, GiveSlotBack) else set())
        tasks = [place.task_id for place in slots.line]
        assert len(set(tasks)) == len(tasks), "a task stands in the line once"


@pytest.mark.parametrize(
    ("rank", "since", "is_let_through"),
    [(1, 6.0, False), (2, 1.0, False), (1, 4.0, True), (0, 9.0, True), (1, 5.0, True)],
    ids=["later", "a lower lane", "earlier", "a higher lane", "at once"],
)
def test_the_line_is_in_the_order_of_lanes_and_then_of_time(rank: int, since: float, is_let_through: bool) -> None:
    slots = after(Slots(), KeepPlace(RESIZE, "first", 1, 5.0, "w", 2.0))
    assert bool(after(slots, take("a", rank=rank, since=since)).holders) is is_let_through


def test_a_place_counts_for_its_time_alone() -> None:
    slots = after(Slots(), KeepPlace(RESIZE, "first", 0, 1.0, "w", 2.0))
    assert after(slots, take("a"), START + 1.9).holders == ()
    assert len(after(slots, take("a"), START + 2.1).holders) == 1
    assert after(slots, KeepPlace(RESIZE, "other", 0, 1.0, "w", 2.0), START + 2.1).line[0].task_id == "other"


def test_slots_are_kept_for_a_refused_task_until_it_must_have_asked_again() -> None:
    slots = after(after(Slots(), take("a")), take("b"))
    assert slots.has_waiting_tasks
    assert after(slots, GiveSlotBack(RESIZE, "a"), START + 29).has_waiting_tasks
    assert not after(slots, GiveSlotBack(RESIZE, "a"), START + 31).has_waiting_tasks


def test_a_slot_that_was_renewed_is_not_given_back_by_an_older_time() -> None:
    first = after(Slots(), take("a"))
    again = after(first, take("a"), START + 8)
    assert again.holders[0].until == START + 23
    assert after(again, GiveSlotBack(RESIZE, "a", first.holders[0].until), START + 30).holders == again.holders
    assert after(again, GiveSlotBack(RESIZE, "a", again.holders[0].until), START + 30).holders == ()


def test_a_record_expires_only_while_nobody_holds_a_slot() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    held = take("a").change(None, now)
    assert held.expires_at is None
    assert GiveSlotBack(RESIZE, "a").change(held, now).expires_at == now + KEPT_AFTER_USE
    waited_for = GiveSlotBack(RESIZE, "a").change(take("b").change(held, now), now)
    assert waited_for.expires_at == now + timedelta(seconds=30) + KEPT_AFTER_USE


def test_times_are_those_of_the_server() -> None:
    now = datetime(2026, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)
    [holder] = SLOTS.content(take("a").change(None, now)).holders
    assert (from_timestamp(holder.since), from_timestamp(holder.until)) == (now, now + timedelta(seconds=15))


def test_high_goes_before_normal_and_low() -> None:
    assert sorted([Priority.LOW, Priority.HIGH, Priority.NORMAL], key=rank_of) == ["high", "normal", "low"]
