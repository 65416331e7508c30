"""Batches that a process left half done: an upload that does not go on, a retry that broke off, a plan half stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest

from taskframework import failpoint
from taskframework.aggregation import cascade as cascading
from taskframework.aggregation import retrier as retrying
from taskframework.aggregation import spawner as spawning
from taskframework.aggregation.cascade import Cascade
from taskframework.aggregation.parent_work import ParentWork
from taskframework.aggregation.retrier import BatchRetrier
from taskframework.aggregation.spawner import Spawner
from taskframework.bus import EventBus
from taskframework.model.batches import ReopenBatch, parts_of
from taskframework.model.drivers import CASCADE, RETRY, SPAWN
from taskframework.model.events import TaskSubmittedEvent
from taskframework.model.interventions import Cancel
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import subtask_of
from taskframework.model.task import Task
from taskframework.model.task_fields import Batch, Subtasks
from taskframework.moves import TaskMoves
from taskframework.recovery.batches import BatchRepair
from taskframework.stores.replies import Inserted
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.refusals import BatchClosedError, BatchConflictError
from taskframework.submission.uploads import Item, Upload
from taskframework.testing.clock import FakeClock
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.factories import new_task

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
GROUP = {"task_type": "part", "priority": "normal", "max_attempts": 1}


class Stage:
    """A store, and what a process does for batches."""

    def __init__(self, store: SqliteStore, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        bus = EventBus()
        self.moves = TaskMoves(store, bus)
        self.retrier = BatchRetrier(store, self.moves, 5 * SECOND)
        self.repair = BatchRepair(store, self.moves, self.retrier, 10)
        self.cascade = Cascade(store, self.moves)
        self.spawner = Spawner(store, bus, 5 * SECOND, AsyncMock())

    async def run_once(self) -> None:
        """What the repair finds, done to its end."""
        await self.repair.run_once()
        await self.retrier.finished()

    async def batch(self, items: int, *, last: Any = None, **fields: Any) -> Task:
        """A batch of which all items have failed; with more fields of the last one."""
        subtasks = Subtasks(items, None, done=items, failed=items, policy="allow_failures")
        usual = {"status": TaskStatus.COMPLETED_WITH_ERRORS, "batch": Batch(items=items), "subtasks": subtasks}
        ended = {"finished_at": self.store.now(), "next_dispatch_at": None}
        batch = (await insert_one(self.store, new_task(now=self.store.now(), **{**usual, **ended, **fields}))).task
        for slot in range(items):
            task = subtask_of(batch, slot, GROUP, {"n": slot}, "hash", self.store.now(), SECOND)
            failed = {"status": TaskStatus.FAILED, "finished_at": self.store.now(), "next_dispatch_at": None}
            await insert_one(self.store, task.evolve(**failed | (last or {} if slot == items - 1 else {})))
        return batch

    async def reopened(self, batch: Task) -> Task:
        reopened = await self.moves.make(ReopenBatch(batch.task_id, EVERYONE, "alice"))
        assert reopened is not None
        return reopened

    async def planned(self, items: int) -> Task:
        """A batch with its items as the plan, none of which is stored."""
        plan = [{**GROUP, "items": [[{"n": n}, "hash"] for n in range(items)]}]
        subtasks, later = Subtasks(items, plan, policy="allow_failures"), self.store.now() + DAY
        waiting = {"status": TaskStatus.WAITING, "finished_at": None, "check_at": later}
        spawn_at = self.store.now() + SECOND
        return await self.batch(0, **waiting, batch=Batch(items=items), subtasks=subtasks, spawn_at=spawn_at)

    async def stopped_in(self, work: ParentWork, at: str, batch: Task) -> None:
        """The process is stopped while it is in the middle of this work."""
        stopping: list[asyncio.Task[None]] = []

        async def stop() -> None:
            stopping.append(asyncio.create_task(work.stop()))
            await asyncio.sleep(0)

        failpoint.arm(at, stop)
        try:
            work.start(batch)
            await work.finished()
            await asyncio.gather(*stopping)
        finally:
            failpoint.disarm(at)

    async def cancelled(self, batch: Task) -> None:
        """The batch is cancelled with all that there is of it, and long over."""
        await self.moves.make(Cancel(batch.task_id, EVERYONE, "alice", None))
        self.clock.advance(2 * MINUTE)
        await self.cascade.work_on(await self.present(batch))
        assert (await self.present(batch)).cascade_at is None

    async def statuses_after_cascade(self, batch: Task) -> set[TaskStatus]:
        """Of its sub-tasks, after the cascade has done what it is asked for."""
        if CASCADE.is_due(present := await self.present(batch), self.store.now()):
            await self.cascade.work_on(present)
        found = await self.store.list_subtasks(RoundOfSubtasks(batch.task_id, 0, 1), limit=100)
        return {task.status for task in found}

    async def present(self, batch: Task) -> Task:
        found = await self.store.get(batch.task_id, EVERYONE)
        assert found is not None
        return found

    async def generations(self, batch: Task) -> list[int]:
        found = await self.store.list_subtasks(RoundOfSubtasks(batch.task_id, 0, 1), limit=100)
        return [task.generation for task in found]


@pytest.fixture
def stage(store: SqliteStore, clock: FakeClock) -> Stage:
    return Stage(store, clock)


async def test_a_retry_that_nobody_began_is_begun(stage: Stage) -> None:
    batch = await stage.reopened(await stage.batch(3))
    await stage.run_once()
    assert await stage.generations(batch) == [0, 0, 0], "the process that was asked has its time"
    stage.clock.advance(6 * SECOND)
    await stage.run_once()
    assert await stage.generations(batch) == [1, 1, 1]
    after = await stage.present(batch)
    assert (after.retry_at, parts_of(after)[0].retry_until) == (None, None)
    assert after.check_at == stage.store.now(), "it is counted now"


async def test_a_retry_that_broke_off_is_finished_and_replays_nothing_twice(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "BATCH_SIZE", 2)
    batch = await stage.reopened(await stage.batch(3))

    async def die() -> None:
        raise failpoint.FailpointError

    failpoint.arm("retry.after_replay", die)
    try:
        with pytest.raises(failpoint.FailpointError):
            await stage.retrier.work_on(batch)
    finally:
        failpoint.disarm("retry.after_replay")
    assert await stage.generations(batch) == [1, 1, 0]
    stage.clock.advance(MINUTE)
    [first, *_] = await stage.store.list_subtasks(RoundOfSubtasks(batch.task_id, 0, 1), limit=1)
    await stage.moves.make(Cancel(first.task_id, EVERYONE, "alice", None))
    await stage.run_once()
    assert await stage.generations(batch) == [1, 1, 1], "what ended anew meanwhile is not meant"


async def test_an_item_whose_own_sub_tasks_are_still_being_cancelled_is_replayed_when_that_is_over(
    stage: Stage,
) -> None:
    """As when a program retries a batch as soon as it has ended: its last item has just failed."""
    left = Subtasks(5, None, failed=1, done=1)
    batch = await stage.batch(3, last={"cascade_at": stage.store.now() + SECOND, "subtasks": left})
    [last] = await stage.store.list_subtasks(RoundOfSubtasks(batch.task_id, 0, 1), limit=1, after_slot=1)
    stage.retrier.start(await stage.reopened(batch))
    await stage.retrier.finished()
    assert await stage.generations(batch) == [1, 1, 0]
    assert (await stage.present(batch)).retry_at is not None
    stage.clock.advance(2)
    await stage.cascade.work_on(await stage.present(last))
    await stage.run_once()
    assert await stage.generations(batch) == [1, 1, 1]
    stage.clock.advance(MINUTE)
    await stage.run_once()
    assert (await stage.present(batch)).retry_at is None


async def test_a_retry_ends_when_the_batch_is_cancelled(stage: Stage) -> None:
    batch = await stage.reopened(await stage.batch(3))
    await stage.moves.make(Cancel(batch.task_id, EVERYONE, "alice", None))
    await stage.retrier.work_on(batch)
    stage.clock.advance(MINUTE)
    await stage.run_once()
    assert await stage.generations(batch) == [0, 0, 0]


async def test_an_upload_that_does_not_go_on_is_abandoned(stage: Stage) -> None:
    fields = {"status": TaskStatus.WAITING, "subtasks": Subtasks(None, None), "finished_at": None}
    open_until = stage.store.now() + MINUTE
    batch = await stage.batch(1, **fields, seal_by=open_until, check_at=open_until + MINUTE)
    await stage.run_once()
    assert (await stage.present(batch)).status is TaskStatus.WAITING
    stage.clock.advance(MINUTE)
    await stage.run_once()
    abandoned = await stage.present(batch)
    assert (abandoned.status, abandoned.cascade_at) == (TaskStatus.CANCELLED, stage.store.now())


async def test_an_upload_is_not_abandoned_while_the_items_of_a_chunk_come(stage: Stage) -> None:
    fields = {"status": TaskStatus.WAITING, "subtasks": Subtasks(None, None), "finished_at": None}
    soon = stage.store.now() + 6 * SECOND
    batch = await stage.batch(0, **fields, batch=Batch(chunk_size=50), seal_by=soon, check_at=soon + DAY)
    times = {"dispatch_after": SECOND, "timeout": 6 * SECOND}
    upload = Upload(stage.store, EventBus(), stage.moves, batch, is_new=True, **times)
    apply = stage.store.apply = AsyncMock(side_effect=stage.store.apply)  # type: ignore[method-assign]
    for n in range(80):
        await upload.add([Item(n, b"%d" % n)])
        stage.clock.advance(SECOND / 4)
        await stage.run_once()
    assert apply.await_count < 40, "it does not write for each item"
    assert await upload.end()
    assert parts_of(await stage.present(batch))[0].items == 80


async def test_sub_tasks_that_a_cancel_left_in_the_plan_are_stored_by_a_retry(stage: Stage) -> None:
    batch = await stage.planned(3)
    cancelled = await stage.moves.make(Cancel(batch.task_id, EVERYONE, "alice", None))
    assert cancelled is not None
    stage.clock.advance(2 * MINUTE)
    await stage.cascade.work_on(cancelled)
    reopened = await stage.reopened(await stage.present(batch))
    assert reopened.spawn_at is not None
    await stage.spawner.work_on(reopened)
    assert await stage.generations(batch) == [0, 0, 0]


async def test_items_that_an_upload_stores_long_after_the_cancel_are_cancelled(stage: Stage) -> None:
    now = stage.store.now()
    fields = {"status": TaskStatus.WAITING, "subtasks": Subtasks(None, None), "finished_at": None, "seal_by": now + DAY}
    batch = await stage.batch(0, **fields, check_at=now + DAY)
    times = {"dispatch_after": 5 * SECOND, "timeout": DAY}
    upload = Upload(stage.store, EventBus(), stage.moves, batch, is_new=True, **times)

    async def sleep() -> None:
        failpoint.disarm("batch.after_announce")
        await stage.cancelled(batch)

    failpoint.arm("batch.after_announce", sleep)
    await upload.add([Item({"n": n}, b"") for n in range(2)])
    with pytest.raises(BatchClosedError):
        await upload.end()
    assert await stage.statuses_after_cascade(batch) == {TaskStatus.CANCELLED}


@pytest.mark.parametrize("together", [2, 3, 4])
async def test_sub_tasks_spawned_long_after_the_parent_ended_are_cancelled(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(spawning, "BATCH_SIZE", together)
    batch = await stage.planned(3)
    insert = stage.store.insert

    async def sleepy(tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        stage.store.insert = insert  # type: ignore[method-assign]
        await stage.cancelled(batch)
        return await insert(tasks)

    stage.store.insert = sleepy  # type: ignore[method-assign]
    await stage.spawner.work_on(batch)
    assert await stage.statuses_after_cascade(batch) == {TaskStatus.CANCELLED}
    assert len(await stage.generations(batch)) == min(3, together), "it ends as soon as nobody waits"


async def test_items_that_a_retrier_replays_long_after_the_cancel_are_cancelled(stage: Stage) -> None:
    batch = await stage.reopened(await stage.batch(3))
    list_subtasks = stage.store.list_subtasks

    async def sleepy(*arguments: Any, **options: Any) -> Sequence[Task]:
        stage.store.list_subtasks = list_subtasks  # type: ignore[method-assign]
        found = await list_subtasks(*arguments, **options)
        await stage.cancelled(batch)
        return found

    stage.store.list_subtasks = sleepy  # type: ignore[method-assign]
    await stage.retrier.work_on(batch)
    assert await stage.statuses_after_cascade(batch) == {TaskStatus.CANCELLED}


async def test_a_stop_leaves_the_rest_of_a_large_plan_to_others_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawning, "BATCH_SIZE", 2)
    batch = await stage.planned(5)
    await stage.stopped_in(stage.spawner, "spawn.after_insert", batch)
    assert await stage.generations(batch) == [0, 0]
    assert SPAWN.is_due(await stage.present(batch), stage.store.now())


async def test_a_stop_leaves_the_rest_of_a_retry_to_others_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "BATCH_SIZE", 2)
    batch = await stage.reopened(await stage.batch(5))
    await stage.stopped_in(stage.retrier, "retry.after_replay", batch)
    assert await stage.generations(batch) == [1, 1, 0, 0, 0]
    assert RETRY.is_due(await stage.present(batch), stage.store.now())


async def test_a_stop_leaves_the_rest_of_a_cascade_to_others_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascading, "BATCH_SIZE", 2)
    batch = await stage.planned(5)
    await stage.spawner.work_on(batch)
    await stage.moves.make(Cancel(batch.task_id, EVERYONE, "alice", None))
    await stage.stopped_in(stage.cascade, "cascade.after_cancel", await stage.present(batch))
    found = await stage.store.list_subtasks(RoundOfSubtasks(batch.task_id, 0, 1), limit=100)
    assert [task.status.is_final for task in found] == [False, False, False, True, True]
    assert CASCADE.is_due(await stage.present(batch), stage.store.now())


async def test_a_stopped_spawner_begins_no_batch(stage: Stage) -> None:
    batch = await stage.planned(1)
    await stage.spawner.stop()
    stage.spawner.start(batch)
    await stage.spawner.finished()
    assert await stage.generations(batch) == []
    assert (await stage.present(batch)).spawn_at is not None


async def test_the_slower_one_of_two_retriers_replays_nothing_again(stage: Stage) -> None:
    batch = await stage.reopened(await stage.batch(2))
    list_subtasks = stage.store.list_subtasks

    async def slow(*arguments: Any, **options: Any) -> Sequence[Task]:
        stage.store.list_subtasks = list_subtasks  # type: ignore[method-assign]
        found = await list_subtasks(*arguments, **options)
        await stage.retrier.work_on(await stage.present(batch))
        for task in found:
            await stage.moves.make(Cancel(task.task_id, EVERYONE, "alice", None))
        return found

    stage.store.list_subtasks = slow  # type: ignore[method-assign]
    await stage.retrier.work_on(batch)
    assert await stage.generations(batch) == [1, 1]


async def test_an_upload_beside_another_finds_its_items_and_refuses_a_different_one(stage: Stage) -> None:
    now, bus, submitted = stage.store.now(), EventBus(), list[Task]()
    bus.listen(TaskSubmittedEvent, lambda event: submitted.append(event.task), name="test")
    fields = {"status": TaskStatus.WAITING, "subtasks": Subtasks(None, None), "finished_at": None, "seal_by": now + DAY}
    batch = await stage.batch(0, **fields, check_at=now + DAY)
    first, same, other = (
        Upload(stage.store, bus, stage.moves, batch, is_new=True, dispatch_after=SECOND, timeout=DAY) for _ in range(3)
    )
    for upload in (first, same):
        await upload.add([Item({"n": n}, b"%d" % n) for n in range(2)])
    assert [task.parameters for task in submitted] == [{"n": 0}, {"n": 1}], "each is told of once"
    with pytest.raises(BatchConflictError) as refused:
        await other.add([Item({"n": n}, b"%d" % n) for n in (0, 5)])
    assert refused.value.index == 1


async def test_a_chunk_that_differs_is_refused_with_the_index_of_the_item(stage: Stage) -> None:
    fields = {"status": TaskStatus.WAITING, "subtasks": Subtasks(None, None), "seal_by": stage.store.now() + DAY}
    batch = await stage.batch(
        0, **fields, batch=Batch(chunk_size=3), finished_at=None, check_at=stage.store.now() + DAY
    )
    one, other = (
        Upload(stage.store, EventBus(), stage.moves, batch, is_new=True, dispatch_after=SECOND, timeout=DAY)
        for _ in range(2)
    )
    await one.add([Item(n, b"%d" % n) for n in range(6)])
    with pytest.raises(BatchConflictError) as refused:
        await other.add([Item(n, b"%d" % n) for n in (0, 1, 2, 3, 9, 5)])
    assert refused.value.index == 4
