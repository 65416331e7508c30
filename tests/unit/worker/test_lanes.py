"""Lanes: priorities without starvation."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

import pytest

from taskframework.model.status import Priority
from taskframework.worker.lanes import LanePolicy, Lanes

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW
WEIGHTS = {HIGH: 8, NORMAL: 4, LOW: 1}
SECOND = timedelta(seconds=1)


class Started:
    """Remembers what was started. The slots are taken at first, so that something waits."""

    def __init__(self, slots: int = 1, weights: Mapping[Priority, int] = WEIGHTS) -> None:
        self.items: list[str] = []
        self.waited: dict[str, timedelta] = {}
        policy = LanePolicy(weights, max_wait=60 * SECOND)
        self.lanes: Lanes[str] = Lanes(slots, self._start, policy, lambda item: self.waited.get(item, 0 * SECOND))
        self._running: list[Priority] = []
        for _ in range(slots):
            self.lanes.put("before", NORMAL)
        self.items.clear()

    def _start(self, item: str, lane: Priority) -> None:
        self.items.append(item)
        self._running.append(lane)

    def flood(self, number: int, *lanes: Priority) -> None:
        for _ in range(number):
            for lane in lanes:
                self.lanes.put(lane.value, lane)

    def next(self, number: int = 1) -> list[str]:
        """What the next free slots are for."""
        before = len(self.items)
        for _ in range(number):
            self.lanes.release(self._running.pop(0))
        return self.items[before:]


def test_high_goes_before_normal_before_low() -> None:
    started = Started()
    started.flood(1, LOW, NORMAL, HIGH)
    assert started.next(3) == ["high", "normal", "low"]


def test_no_more_deliveries_run_than_there_are_slots() -> None:
    started = Started(slots=3)
    for number in range(7):
        started.lanes.put(str(number), NORMAL)
    assert (started.lanes.running, started.lanes.waiting, started.items) == (3, 7, [])
    started.next()
    assert (started.lanes.running, started.lanes.waiting, started.items) == (3, 6, ["0"])


@pytest.mark.parametrize(
    ("weights", "lanes", "shares"),
    [
        (WEIGHTS, (HIGH, NORMAL, LOW), {"high": 80, "normal": 40, "low": 10}),
        (WEIGHTS, (HIGH, LOW), {"high": 80, "low": 10}),
        (WEIGHTS, (NORMAL, LOW), {"normal": 80, "low": 20}),
        ({HIGH: 8, NORMAL: 1, LOW: 2}, (HIGH, LOW), {"high": 80, "low": 20}),
    ],
)
def test_lanes_that_wait_share_the_slots_by_their_weights(
    weights: Mapping[Priority, int], lanes: tuple[Priority, ...], shares: Mapping[str, int]
) -> None:
    started = Started(weights=weights)
    started.flood(200, *lanes)
    assert Counter(started.next(sum(shares.values()))) == shares


def test_the_turns_of_a_lane_are_spread_evenly() -> None:
    started = Started()
    started.flood(100, HIGH, LOW)
    for _ in range(5):
        assert started.next(9).count("low") == 1


def test_a_high_task_that_comes_alone_never_waits_for_a_second_slot() -> None:
    """What low got while nobody else waited is not counted, and what it was passed over for is soon forgotten."""
    started = Started()
    started.flood(100, LOW)
    for _ in range(20):
        started.flood(1, HIGH)
        assert started.next(3) == ["high", "low", "low"]


def test_the_delivery_that_waited_longest_beyond_the_bound_goes_next() -> None:
    started = Started()
    started.flood(5, HIGH)
    started.lanes.put("old", NORMAL)
    started.lanes.put("older", LOW)
    started.waited |= {"old": 61 * SECOND, "older": 62 * SECOND, "high": 60 * SECOND}
    assert started.next(3) == ["older", "old", "high"]


def test_lanes_compete_while_several_want_slots_that_are_all_taken() -> None:
    started = Started(slots=2)
    assert not started.lanes.are_competing, "normal has them to itself"
    started.flood(1, NORMAL)
    assert not started.lanes.are_competing
    started.flood(1, LOW)
    assert started.lanes.are_competing
    started.next(2)
    assert started.lanes.are_competing, "low runs, and what it waits for next is taken by normal"
    started.next()
    assert not started.lanes.are_competing, "a slot is free"


def test_closing_starts_nothing_more_and_gives_back_what_waits() -> None:
    started = Started()
    for name, lane in (("b", LOW), ("c", HIGH)):
        started.lanes.put(name, lane)
    assert started.lanes.close() == ["c", "b"]
    assert started.next() == []


async def test_a_slot_that_is_lent_goes_to_others_and_comes_back_before_all_that_wait() -> None:
    started = Started()
    started.flood(1, NORMAL, LOW)
    assert started.next() == ["normal"]
    back = asyncio.create_task(started.lanes.take_slot_again(LOW))
    await asyncio.sleep(0)
    assert not back.done()
    assert started.next() == []
    await back
    assert started.lanes.running == 1
    started.lanes.release(LOW)
    assert started.items == ["normal", "low"]


async def test_a_lent_slot_is_given_back_at_once_in_closed_lanes() -> None:
    started = Started()
    started.flood(1, NORMAL)
    started.next()
    back = asyncio.create_task(started.lanes.take_slot_again(NORMAL))
    await asyncio.sleep(0)
    started.lanes.close()
    await back
    await started.lanes.take_slot_again(NORMAL)
    for _ in range(3):
        started.lanes.release(NORMAL)
    assert started.lanes.running == 0
