"""Lanes: priorities without starvation."""

from __future__ import annotations

from taskframework.model.status import Priority
from taskframework.worker.lanes import PATIENCE, Lanes

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW


class Started:
    """Remembers what was started."""

    def __init__(self, slots: int) -> None:
        self.items: list[str] = []
        self.lanes: Lanes[str] = Lanes(slots, lambda item, lane: self.items.append(item))


def test_high_goes_before_normal_before_low() -> None:
    started = Started(slots=1)
    started.lanes.put("running", NORMAL)
    for lane in (LOW, NORMAL, HIGH):
        started.lanes.put(lane.value, lane)
    started.lanes.release(NORMAL)
    started.lanes.release(HIGH)
    started.lanes.release(NORMAL)
    assert started.items == ["running", "high", "normal", "low"]


def test_never_more_than_the_slots_run() -> None:
    started = Started(slots=3)
    for number in range(10):
        started.lanes.put(str(number), NORMAL)
    assert (started.lanes.running, started.lanes.waiting) == (3, 7)
    started.lanes.release(NORMAL)
    assert (started.items, started.lanes.running, started.lanes.waiting) == (["0", "1", "2", "3"], 3, 6)


def test_a_lane_with_nothing_running_gets_the_next_free_slot() -> None:
    started = Started(slots=3)
    for number in range(9):
        started.lanes.put(f"high-{number}", HIGH)
    started.lanes.put("low", LOW)
    started.lanes.release(HIGH)
    assert started.items[-1] == "low"


def test_with_one_slot_a_lane_is_passed_over_only_so_often() -> None:
    started = Started(slots=1)
    started.lanes.put("low-running", LOW)
    for number in range(3 * PATIENCE):
        started.lanes.put(f"high-{number}", HIGH)
    started.lanes.put("low", LOW)
    started.lanes.release(LOW)
    for _ in range(PATIENCE):
        assert "low" not in started.items
        started.lanes.release(HIGH)
    assert started.items[-1] == "low"


def test_closing_starts_nothing_more_and_gives_back_what_waits() -> None:
    started = Started(slots=1)
    for name, lane in (("a", NORMAL), ("b", LOW), ("c", HIGH)):
        started.lanes.put(name, lane)
    assert started.lanes.close() == ["c", "b"]
    started.lanes.release(NORMAL)
    assert started.items == ["a"]
