"""Marks that wait for company: the newest of each task, all of them, and none lost when it ends."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from datetime import timedelta

from taskframework.model.marks import MarkPublished
from taskframework.stores import marking as module
from taskframework.stores.marking import Marking
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


def mark(number: int, sequence: int = 1) -> MarkPublished:
    return MarkPublished(f"t{number}", sequence)


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_marks_wait_and_travel_together_the_newest_of_each_task() -> None:
    writes = Writes()
    marking = Marking(MarkPublished, writes, LONG)
    marking.add("t1", 1)
    marking.add("t2", 1)
    marking.add("t1", 2)
    await _settled()
    assert writes.groups == [], "they wait"
    await marking.drain()
    assert writes.groups == [[mark(1, 2), mark(2, 1)]]


async def test_a_mark_is_written_after_its_moment() -> None:
    writes = Writes()
    marking = Marking(MarkPublished, writes, timedelta(milliseconds=1))
    marking.add("t1", 1)
    await eventually(lambda: writes.groups)
    assert writes.groups == [[mark(1)]]


async def test_a_crowd_leaves_in_small_writes_each_mark_once_and_in_order() -> None:
    writes = Writes()
    marking = Marking(MarkPublished, writes, timedelta(milliseconds=10))
    marks = [mark(number) for number in range(3 * module._FEW)]
    for one in marks:
        marking.add(one.task_id, one.sequence)
    await eventually(lambda: sum(map(len, writes.groups)) == len(marks))
    assert [one for group in writes.groups for one in group] == marks
    assert max(map(len, writes.groups)) <= module._FEW


async def test_what_comes_while_a_crowd_leaves_waits_for_its_own_moment() -> None:
    writes = Writes()
    writes.gate.clear()
    marking = Marking(MarkPublished, writes, timedelta(milliseconds=10))
    for number in range(3):
        marking.add(f"t{number}", 1)
    await eventually(lambda: writes.groups)
    marking.add("t1", 2)
    marking.add("t7", 1)
    writes.gate.set()
    await eventually(lambda: len(writes.groups) > 1)
    assert writes.groups == [[mark(0), mark(1), mark(2)], [mark(1, 2), mark(7)]]
    await marking.drain()


async def test_many_do_not_wait() -> None:
    writes = Writes()
    marking = Marking(MarkPublished, writes, LONG)
    for number in range(module._MANY):
        marking.add(f"t{number}", 1)
    await _settled()
    written = [len(group) for group in writes.groups]
    assert sum(written) == module._MANY
    assert max(written) <= module._TOGETHER
    marking.add("t0", 2)
    await _settled()
    assert len(writes.groups) == len(written), "the next ones wait again"
    await marking.drain()


async def test_what_comes_during_a_write_is_drained_too() -> None:
    writes = Writes()
    writes.gate.clear()
    marking = Marking(MarkPublished, writes, timedelta(milliseconds=20))
    marking.add("t1", 1)
    draining = asyncio.create_task(marking.drain())
    await _settled()
    marking.add("t1", 2)
    marking.add("t2", 1)
    assert not draining.done()
    writes.gate.set()
    await draining
    assert writes.groups == [[mark(1)], [mark(1, 2), mark(2)]]


async def test_draining_nothing_ends_at_once_and_it_works_again_afterwards() -> None:
    writes = Writes()
    marking = Marking(MarkPublished, writes, LONG)
    await marking.drain()
    for sequence in (1, 2):
        marking.add("t1", sequence)
        await marking.drain()
    assert writes.groups == [[mark(1, 1)], [mark(1, 2)]]


async def test_a_write_runs_in_no_context_of_who_gave_the_first_mark() -> None:
    writes = Writes()
    marking = Marking(MarkPublished, writes, LONG)
    token = _somebody.set("a task")
    marking.add("t1", 1)
    _somebody.reset(token)
    await marking.drain()
    assert writes.contexts == ["nobody"]
