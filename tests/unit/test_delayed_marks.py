"""Marks that wait for company: the newest of each task, all of them, and none lost when it ends."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Sequence
from datetime import timedelta

import pytest

from taskframework.clock import SystemClock
from taskframework.errors import StoreUnavailableError
from taskframework.model.marks import MarkPublished
from taskframework.stores import delayed_marks as module
from taskframework.stores.delayed_marks import DelayedMarks
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually

LONG = timedelta(hours=1)
_somebody: contextvars.ContextVar[str] = contextvars.ContextVar("somebody", default="nobody")


class Writes:
    """Takes marks; while its gate is closed the write hangs."""

    def __init__(self) -> None:
        self.groups: list[list[MarkPublished]] = []
        self.contexts: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def __call__(self, marks: Sequence[MarkPublished]) -> None:
        self.groups.append(list(marks))
        self.contexts.append(_somebody.get())
        await self.gate.wait()
        if self.error is not None:
            raise self.error


class QuickClock(FakeClock):
    """Its time passes by sleeping, and by whatever a write adds."""

    async def sleep(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))
        await asyncio.sleep(0)


def mark(number: int, sequence: int = 1) -> MarkPublished:
    return MarkPublished(f"t{number}", sequence)


def _slow_marks() -> tuple[DelayedMarks[MarkPublished], QuickClock, list[int]]:
    """Marks whose writes take half a second each, with the clock and the sizes of the writes."""
    clock, sizes = QuickClock(), list[int]()

    async def write(marks: Sequence[MarkPublished]) -> None:
        sizes.append(len(marks))
        clock.advance(0.5)

    return DelayedMarks(MarkPublished, write, clock, timedelta(seconds=2)), clock, sizes


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_marks_wait_and_travel_together_the_newest_of_each_task() -> None:
    writes = Writes()
    marking = DelayedMarks(MarkPublished, writes, SystemClock(), LONG)
    marking.add("t1", 1)
    marking.add("t2", 1)
    marking.add("t1", 2)
    await _settled()
    assert writes.groups == [], "they wait"
    await marking.drain()
    assert writes.groups == [[mark(1, 2), mark(2, 1)]]


async def test_a_mark_is_written_after_its_moment() -> None:
    writes = Writes()
    marking = DelayedMarks(MarkPublished, writes, SystemClock(), timedelta(milliseconds=1))
    marking.add("t1", 1)
    await eventually(lambda: writes.groups)
    assert writes.groups == [[mark(1)]]


async def test_a_crowd_leaves_in_small_writes_each_mark_once_and_in_order() -> None:
    writes = Writes()
    marking = DelayedMarks(MarkPublished, writes, QuickClock(), timedelta(seconds=2))
    marks = [mark(number) for number in range(3 * module._MAX_MARKS_PER_WRITE)]
    for one in marks:
        marking.add(one.task_id, one.sequence)
    await eventually(lambda: sum(map(len, writes.groups)) == len(marks))
    assert [one for group in writes.groups for one in group] == marks
    assert max(map(len, writes.groups)) <= module._MAX_MARKS_PER_WRITE


async def test_marks_that_are_late_leave_in_large_writes() -> None:
    marking, _, sizes = _slow_marks()
    small, large = module._MAX_MARKS_PER_WRITE, module._MAX_LATE_MARKS_PER_WRITE
    for number in range(3 * small + large + 1):
        marking.add(f"t{number}", 1)
    await eventually(lambda: sum(sizes) == 3 * small + large + 1)
    assert sizes == [small, small, small, large, 1]


async def test_who_causes_thousands_of_marks_waits_until_no_mark_is_late() -> None:
    marking, clock, sizes = _slow_marks()
    small, large = module._MAX_MARKS_PER_WRITE, module._MAX_LATE_MARKS_PER_WRITE
    for number in range(4 * small):
        marking.add(f"t{number}", 1)
    await asyncio.wait_for(marking.wait_while_late(), 10)
    assert sizes == [], "they wait, but none is late"
    clock.advance(4)
    for number in range(large):
        marking.add(f"later{number}", 1)
    await asyncio.wait_for(marking.wait_while_late(), 10)
    assert sum(sizes) == 4 * small
    await marking.drain()


async def test_nobody_waits_for_late_marks_when_their_writer_was_cancelled() -> None:
    writes, clock = Writes(), FakeClock()
    writes.gate.clear()
    marking = DelayedMarks(MarkPublished, writes, clock, timedelta(0))
    marking.add("t1", 1)
    await eventually(lambda: writes.groups)
    marking.add("t2", 1)
    clock.advance(1)
    waiting = asyncio.create_task(marking.wait_while_late())
    await _settled()
    assert not waiting.done()
    assert marking._pump is not None
    marking._pump.cancel()
    await asyncio.wait_for(waiting, 10)


async def test_a_mark_that_comes_during_a_write_waits_for_its_own_moment() -> None:
    writes = Writes()
    writes.gate.clear()
    marking = DelayedMarks(MarkPublished, writes, SystemClock(), timedelta(milliseconds=10))
    for number in range(3):
        marking.add(f"t{number}", 1)
    await eventually(lambda: writes.groups)
    marking.add("t1", 2)
    marking.add("t7", 1)
    writes.gate.set()
    await eventually(lambda: len(writes.groups) > 1)
    assert writes.groups == [[mark(0), mark(1), mark(2)], [mark(1, 2), mark(7)]]
    await marking.drain()


async def test_a_slow_write_makes_no_other_mark_wait_for_longer() -> None:
    moment, written, clock = 2.0, list[tuple[float, str]](), QuickClock()

    async def write(marks: Sequence[MarkPublished]) -> None:
        written.extend((clock.monotonic(), one.task_id) for one in marks)
        if marks[0].task_id == "slow":
            marking.add("meanwhile", 1)
            clock.advance(10 * moment)

    marking = DelayedMarks(MarkPublished, write, clock, timedelta(seconds=moment))
    marking.add("slow", 1)
    await eventually(lambda: len(written) == 2)
    (first, _), (second, task_id) = written
    assert task_id == "meanwhile"
    assert first <= moment
    assert second <= first + 10 * moment, "it had waited for long when the write ended"


async def test_a_mark_waits_for_its_moment_by_the_clock() -> None:
    written, clock = list[tuple[float, str]](), QuickClock()

    async def write(marks: Sequence[MarkPublished]) -> None:
        written.extend((clock.monotonic(), one.task_id) for one in marks)

    marking = DelayedMarks(MarkPublished, write, clock, timedelta(seconds=2))
    for number in range(20):
        marking.add(f"t{number}", 1)
        before = clock.monotonic()
        await eventually(functools.partial(lambda earlier: clock.monotonic() > earlier, before))
    await eventually(lambda: len(written) == 20)
    assert written[0][0] >= 1.8, "it waits for company"
    assert len({time for time, _ in written}) > 5, "they leave as they came"


async def test_a_mark_that_comes_during_the_drain_is_drained_too() -> None:
    writes = Writes()
    writes.gate.clear()
    marking = DelayedMarks(MarkPublished, writes, SystemClock(), timedelta(milliseconds=20))
    marking.add("t1", 1)
    draining = asyncio.create_task(marking.drain())
    await _settled()
    marking.add("t1", 2)
    marking.add("t2", 1)
    assert not draining.done()
    writes.gate.set()
    await draining
    assert writes.groups == [[mark(1)], [mark(1, 2), mark(2)]]


@pytest.mark.parametrize(("error", "level"), [(StoreUnavailableError(), "DEBUG"), (ValueError("a bug"), "ERROR")])
async def test_marks_that_could_not_be_written_are_left_to_the_repairs_and_hold_up_no_others(
    caplog: pytest.LogCaptureFixture, error: Exception, level: str
) -> None:
    caplog.set_level("DEBUG", "taskframework.stores.delayed_marks")
    writes = Writes()
    writes.error = error
    marking = DelayedMarks(MarkPublished, writes, SystemClock(), LONG)
    for number in range(2 * module._MAX_MARKS_PER_WRITE):
        marking.add(f"t{number}", 1)
    await marking.drain()
    assert sum(map(len, writes.groups)) == 2 * module._MAX_MARKS_PER_WRITE
    assert {record.levelname for record in caplog.records} == {level}
    writes.error = None
    marking.add("t1", 2)
    await marking.drain()
    assert writes.groups[-1] == [mark(1, 2)], "what failed is not tried here again"


async def test_draining_nothing_ends_at_once_and_it_works_again_afterwards() -> None:
    writes = Writes()
    marking = DelayedMarks(MarkPublished, writes, SystemClock(), LONG)
    await marking.drain()
    for sequence in (1, 2):
        marking.add("t1", sequence)
        await marking.drain()
    assert writes.groups == [[mark(1, 1)], [mark(1, 2)]]


async def test_a_write_runs_in_no_context_of_who_gave_the_first_mark() -> None:
    writes = Writes()
    marking = DelayedMarks(MarkPublished, writes, SystemClock(), LONG)
    token = _somebody.set("a task")
    marking.add("t1", 1)
    _somebody.reset(token)
    await marking.drain()
    assert writes.contexts == ["nobody"]
