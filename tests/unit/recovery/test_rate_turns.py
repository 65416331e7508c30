"""Turns that are later than they need be are brought forward."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from taskframework.errors import TaskUnreadableError
from taskframework.limits.buckets import LimiterUnavailableError, StoreBuckets
from taskframework.model.interventions import Cancel
from taskframework.model.marks import MakeDue, MarkDispatched
from taskframework.model.rate_limits import RATE, AttemptLimit, Bucket, HoldBucket, TakePermits
from taskframework.model.scope import EVERYONE
from taskframework.model.status import Priority
from taskframework.model.task import Task
from taskframework.model.task_fields import LimitWait
from taskframework.recovery.rate_turns import RateTurnRepair
from taskframework.stores.replies import DueTask
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.factories import new_task

BUCKET = RATE.id_of("openai", "busy")
#: An attempt in ten seconds; and what the rate is raised to: two a second, one at once.
SLOW, FAST = AttemptLimit(0.1, 1), AttemptLimit(2.0, 1)


class Line:
    """Tasks of one key that wait for their turns, at the slow rate."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.store = SqliteStore(path, clock=self.clock)
        self.buckets = StoreBuckets(self.store)
        self.paused: set[str] = set()
        self.tasks: list[Task] = []

    async def form(self, length: int, limit: AttemptLimit = SLOW) -> None:
        """Use up the permit, and let so many tasks get their turns behind it."""
        await self.buckets.take(TakePermits(BUCKET, limit, in_line=True))
        for place in range(length):
            priority = Priority.HIGH if place == length - 1 else Priority.NORMAL
            task = new_task(now=self.clock.now() + timedelta(milliseconds=place), priority=priority)
            await self.store.insert([task])
            bucket = await self.buckets.take(TakePermits(BUCKET, limit, in_line=True))
            wait = timedelta(seconds=bucket.first_at - bucket.asked_at)
            await self.store.mark(MakeDue(task.task_id, 1, wait, BUCKET))
            self.tasks.append(task)

    async def look(self, limit: AttemptLimit = FAST, name: str = "openai") -> list[float | None]:
        """Let the repair look with this rate; return in how many seconds each task is due."""
        repair = RateTurnRepair(self.buckets, {name: limit}, self.store, self.paused.__contains__)
        await repair.run_once()
        return self.seconds_until_due(await self.read())

    async def read(self) -> list[Task]:
        found = await self.store.get_many([task.task_id for task in self.tasks], EVERYONE)
        return [found[task.task_id] for task in self.tasks]

    def seconds_until_due(self, tasks: Sequence[Task]) -> list[float | None]:
        now = self.clock.now()
        return [None if it.next_dispatch_at is None else (it.next_dispatch_at - now).total_seconds() for it in tasks]


@pytest.fixture
async def line(tmp_path: Path) -> AsyncIterator[Line]:
    line = Line(tmp_path / "tasks.db")
    await line.store.open()
    yield line
    await line.store.close()


async def test_after_the_rate_was_raised_tasks_get_turns_of_the_new_rate_high_ones_first(line: Line) -> None:
    await line.form(5)
    line.clock.advance(15.5)
    assert await line.look() == [-5.5, 1, 1.5, 2, 0], "the first one has its turn already"
    second = (await line.read())[1]
    assert second.waits_for_limit == LimitWait(BUCKET, 1, line.clock.now() + timedelta(seconds=1))


async def test_only_the_turns_of_the_next_minute_are_moved_forward(line: Line) -> None:
    await line.form(124)
    line.clock.advance(15.5)
    due = [seconds for seconds in await line.look() if seconds is not None]
    # The permit that is there, and those of a minute; the 122nd keeps its turn of the old rate.
    assert [sum(seconds <= 60 for seconds in due), due[121]] == [121, 10 * 122 - 15.5]


async def test_at_the_rate_of_its_turns_nothing_is_moved(line: Line) -> None:
    await line.form(5)
    assert await line.look(SLOW) == [10, 20, 30, 40, 50]
    line.clock.advance(12)  # the first task begins a little late
    assert (await line.buckets.take(TakePermits(BUCKET, SLOW, in_line=True, has_turn=True))).granted
    line.clock.advance(2)
    assert await line.look(SLOW) == [-4, 6, 16, 26, 36]


async def test_the_place_of_a_cancelled_task_is_taken_by_the_next(line: Line) -> None:
    await line.form(4)
    for task in line.tasks[:2]:
        assert await line.store.apply(Cancel(task.task_id, EVERYONE, by="ann", reason=None)) is not None
    line.clock.advance(15.5)
    assert (await line.look(SLOW))[2:] == [10, 0]


async def test_the_places_of_cancelled_tasks_are_taken_although_tasks_go_on_coming(line: Line) -> None:
    await line.form(4)
    for task in line.tasks[:2]:
        assert await line.store.apply(Cancel(task.task_id, EVERYONE, by="ann", reason=None)) is not None
    for _ in range(4):
        line.clock.advance(4)
        assert not (await line.buckets.take(TakePermits(BUCKET, SLOW, in_line=True))).granted
    assert (await line.look(SLOW))[2:] == [10, 0]


async def test_a_task_whose_message_is_there_gets_no_second_one_but_has_its_place(line: Line) -> None:
    await line.form(3)
    line.clock.advance(15.5)
    await line.store.mark(MarkDispatched(line.tasks[0].task_id, 1, timedelta(minutes=5), timedelta(minutes=15)))
    assert await line.look() == [300, 1, 0]


async def test_tasks_of_a_paused_type_keep_their_turns(line: Line) -> None:
    await line.form(3)
    line.clock.advance(15.5)
    line.paused.add(line.tasks[0].task_type)
    assert await line.look() == [-5.5, 4.5, 14.5]


async def test_a_bucket_that_is_held_is_not_idle(line: Line) -> None:
    await line.form(3)
    line.clock.advance(15.5)
    await line.buckets.hold(HoldBucket(BUCKET, FAST, 60))
    assert await line.look() == [-5.5, 4.5, 14.5]


async def test_a_bucket_that_is_in_no_settings_is_left_alone(line: Line) -> None:
    await line.form(3)
    line.clock.advance(15.5)
    assert await line.look(name="other") == [-5.5, 4.5, 14.5]


async def test_while_the_buckets_are_away_turns_stay_as_they_are(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    await line.form(3)
    line.clock.advance(15.5)

    async def is_away(limit: int) -> Sequence[tuple[str, Bucket]]:
        raise LimiterUnavailableError

    with monkeypatch.context() as patched:
        patched.setattr(line.buckets, "list_known", is_away)
        assert await line.look() == [-5.5, 4.5, 14.5]
    assert await line.look() == [-5.5, 1, 0]


async def test_a_task_of_a_newer_release_holds_up_no_other_bucket(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    await line.form(6)
    line.clock.advance(15.5)
    other = RATE.id_of("openai", "a tenant that comes first")
    await line.buckets.take(TakePermits(other, SLOW, in_line=True, most=5))
    await line.buckets.take(TakePermits(other, SLOW, in_line=True, most=5))
    line.clock.advance(16)
    waiting_for = line.store.waiting_for

    async def unreadable_first(limit: str, most: int) -> Sequence[DueTask]:
        if limit == other:
            raise TaskUnreadableError("of-a-newer-release", "version 99", is_newer=True)
        return await waiting_for(limit, most)

    monkeypatch.setattr(line.store, "waiting_for", unreadable_first)
    assert await line.look() == [-21.5, -11.5, -1.5, 2, 2.5, 0]


async def test_a_task_that_is_dispatched_meanwhile_gets_no_second_message(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    await line.form(3)
    line.clock.advance(15.5)
    waiting_for = line.store.waiting_for

    async def then_dispatched(limit: str, most: int) -> Sequence[DueTask]:
        found = await waiting_for(limit, most)
        await line.store.mark(MarkDispatched(line.tasks[1].task_id, 1, timedelta(minutes=5), timedelta(minutes=15)))
        return found

    monkeypatch.setattr(line.store, "waiting_for", then_dispatched)
    assert await line.look() == [-5.5, 300, 0]
