"""Tasks are counted by one process for all, and the rarer the longer it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from taskframework.errors import StoreUnavailableError
from taskframework.model.counts import TaskCounts
from taskframework.model.interventions import Discard
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.observability import counting
from taskframework.observability.counting import TaskCounter
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.factories import new_task

MOMENT = timedelta(milliseconds=1)


class Seconds:
    """In place of the module `time`: a count takes so long."""

    def __init__(self) -> None:
        self.now, self.of_a_count = 0.0, 0.0

    def monotonic(self) -> float:
        self.now += self.of_a_count
        return self.now


class CountedStore(SqliteStore):
    """Knows how often it was counted; counting waits for the gate, and may fail."""

    def __init__(self, file: Path, clock: FakeClock) -> None:
        super().__init__(file, clock=clock)
        self.counted = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_away = False

    async def count_by_status(self) -> dict[TaskStatus, int]:
        self.counted += 1
        await self.gate.wait()
        if self.is_away:
            raise StoreUnavailableError("away")
        return await super().count_by_status()


class Process:
    """One process that is scraped, and what it shows."""

    def __init__(self, store: SqliteStore) -> None:
        self.shown: list[TaskCounts] = []
        self.counter = TaskCounter(store)
        self.counter.on_look.append(self.shown.append)

    async def queued(self) -> int:
        await self.counter.refresh()
        return self.shown[-1].by_status.get("QUEUED", 0)


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[CountedStore]:
    store = CountedStore(tmp_path / "tasks.db", clock)
    await store.open()
    await insert_one(store, new_task(now=store.now()))
    yield store
    await store.close()


async def test_one_process_counts_tasks_and_all_processes_show_the_same_counts(
    store: CountedStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "time", Seconds())  # a busy machine would take long to count
    processes = [Process(store) for _ in range(3)]
    assert await processes[0].queued() == 1
    await insert_one(store, new_task(now=store.now(), next_dispatch_at=None))
    assert [await process.queued() for process in processes] == [1, 1, 1]
    assert store.counted == 1

    clock.advance(5)
    await asyncio.gather(*(process.queued() for process in processes))
    assert store.counted == 2
    assert [(await process.queued(), process.shown[-1].undriven) for process in processes] == [(2, 1)] * 3


async def test_counts_have_the_time_at_which_they_were_made(store: CountedStore, clock: FakeClock) -> None:
    begin, processes = store.now(), [Process(store) for _ in range(2)]
    for process in processes:
        await process.queued()
        clock.advance(MOMENT)
    assert [process.shown[-1].counted_at for process in processes] == [begin, begin]


async def test_a_dead_letter_that_was_discarded_is_none_any_more(store: CountedStore) -> None:
    for _ in range(3):
        failed = new_task(now=store.now(), status=TaskStatus.FAILED, finished_at=store.now(), next_dispatch_at=None)
        await insert_one(store, failed)
    assert await store.apply(Discard(failed.task_id, EVERYONE, "ann", "of a test"))
    process = Process(store)
    await process.queued()
    assert (process.shown[-1].by_status["FAILED"], process.shown[-1].dead_letters) == (3, 2)


async def test_dead_letters_that_are_too_many_are_not_looked_at_each(
    store: CountedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_MAX_COUNTED_DEAD", 1)
    for _ in range(2):
        failed = new_task(now=store.now(), status=TaskStatus.FAILED, finished_at=store.now(), next_dispatch_at=None)
        await insert_one(store, failed)
    process = Process(store)
    await process.queued()
    assert process.shown[-1].dead_letters is None


@pytest.mark.parametrize(("cost", "use"), [(0.001, 5), (0.3, 30), (60, 60)])
async def test_counts_that_cost_much_are_used_for_long(
    store: CountedStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, cost: float, use: float
) -> None:
    seconds = Seconds()
    seconds.of_a_count = cost
    monkeypatch.setattr(counting, "time", seconds)
    process = Process(store)
    await process.queued()
    clock.advance(use - 0.01)
    await process.queued()
    assert store.counted == 1
    clock.advance(0.02)
    await process.queued()
    assert store.counted == 2


async def test_another_process_counts_after_the_counting_process_died(store: CountedStore, clock: FakeClock) -> None:
    dead, other = Process(store), Process(store)
    store.gate.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await dead.queued()
    await dead.counter.close()
    store.gate.set()
    assert await other.queued() == 0, "it believes that somebody counts"
    clock.advance(59)
    assert (await other.queued(), store.counted) == (0, 1)
    clock.advance(2)
    assert (await other.queued(), store.counted) == (1, 2)


async def test_a_caller_that_stops_waiting_does_not_end_the_count(store: CountedStore) -> None:
    process = Process(store)
    store.gate.clear()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await process.queued()
    assert process.shown == []
    store.gate.set()
    assert await process.queued() == 1
    assert store.counted == 1


async def test_counts_that_cannot_be_made_again_keep_their_last_number(store: CountedStore, clock: FakeClock) -> None:
    process = Process(store)
    await process.queued()
    store.is_away = True
    clock.advance(5)
    assert await process.queued() == 1


async def test_a_process_that_cannot_count_shows_the_counts_of_another_process(
    store: CountedStore, clock: FakeClock
) -> None:
    assert await Process(store).queued() == 1
    clock.advance(60)
    store.is_away = True
    counts = await Process(store).counter.refresh()
    assert counts is not None
    assert counts.by_status["QUEUED"] == 1
