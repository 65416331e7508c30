"""The look for tasks that wait for too long: what it ends, and what a limit or a pause holds back meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskframework import BackgroundTaskExecutable, QueueTimeout, RateLimit, TaskContext, TaskOptions
from taskframework.bus import EventBus
from taskframework.limits.buckets import LimiterUnavailableError, MemoryBuckets
from taskframework.limits.pauses import Pauses
from taskframework.model.batches import subtask_group
from taskframework.model.options import StartLimit
from taskframework.model.pauses import PAUSE, Pause
from taskframework.model.rate_limits import RATE, Bucket, BucketLimit, HoldBucket
from taskframework.model.scope import EVERYONE
from taskframework.model.slots import SLOTS, GiveSlotBack, TakeSlot
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import planned_tasks, subtask_of
from taskframework.model.task import Task
from taskframework.model.task_fields import Batch, Subtasks
from taskframework.moves import TaskMoves
from taskframework.operations.queues import QueueOperations
from taskframework.recovery.pauses import PauseRepair
from taskframework.recovery.queue_timeouts import QueueTimeouts
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.requests import SubmitRequest
from taskframework.submission.subtasks import SubtaskKinds
from taskframework.submission.types import TaskTypes
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.clock import FakeClock
from taskframework.testing.factories import new_task
from tests.support.submission import submission_into
from tests.unit.model.scenes import NOW

BATCH = 2
WAIT = timedelta(minutes=5)


class Plain(BackgroundTaskExecutable[None, None]):
    task_type = "plain"
    options = TaskOptions(queue_timeout=WAIT)

    async def execute(self, context: TaskContext[None]) -> None: ...


class Free(Plain):
    task_type = "free"
    options = TaskOptions()


class Limited(Plain):
    task_type = "limited"
    options = TaskOptions(queue_timeout=WAIT, rate_limit="openai")


class Keyed(Plain):
    task_type = "keyed"
    options = TaskOptions(queue_timeout=WAIT, rate_limit=RateLimit("openai", key="user"))


class Strict(Plain):
    task_type = "strict"
    options = TaskOptions(queue_timeout=QueueTimeout(WAIT, counts_limits=True), rate_limit="openai")


class Buckets(MemoryBuckets):
    """Buckets that may be away."""

    is_away = False

    async def read(self, record_id: str) -> Bucket | None:
        if self.is_away:
            raise LimiterUnavailableError("It is away.")
        return await super().read(record_id)


class Stage:
    """A store with its way in, and the look."""

    def __init__(self, store: SqliteStore, clock: FakeClock, *, knows_types: bool) -> None:
        self.store = store
        self.clock = clock
        self.buckets = Buckets(clock)
        registry = TaskRegistry()
        for executable in (Plain, Free, Limited, Keyed, Strict):
            registry.register(executable)
        self.types = TaskTypes(registry, store)
        moves = TaskMoves(store, EventBus())
        #: An api knows a type by what a worker declared.
        seen = self.types if knows_types else TaskTypes(TaskRegistry(), store)
        self.run_once = QueueTimeouts(store, moves, seen, self.buckets, BATCH).run_once
        self.service = submission_into(store, seen, EventBus())

    async def submit(self, task_type: str = "plain", **options: Any) -> Task:
        return (await self.service.submit(SubmitRequest(task_type=task_type, **options))).task

    async def present(self, task: Task) -> Task:
        there = await self.store.get(task.task_id, EVERYONE)
        assert there is not None
        return there

    async def status(self, task: Task) -> TaskStatus:
        return (await self.present(task)).status

    async def hold(self, seconds: float) -> None:
        """Keep the bucket of the limited types empty."""
        await self.buckets.hold(HoldBucket(RATE.id_of("openai"), BucketLimit(1, 1), seconds))


@pytest.fixture(params=[True, False], ids=["registered", "declared"])
async def stage(request: pytest.FixtureRequest, store: SqliteStore, clock: FakeClock) -> Stage:
    stage = Stage(store, clock, knows_types=request.param)
    await stage.types.declare("worker-1")
    return stage


async def test_a_task_that_nobody_began_within_its_queue_timeout_is_ended(stage: Stage) -> None:
    tasks = [await stage.submit() for _ in range(BATCH + 1)]
    later = await stage.submit(not_before=stage.clock.now() + WAIT)
    stage.clock.advance(WAIT - timedelta(milliseconds=1))
    assert not await stage.run_once()
    assert {await stage.status(task) for task in tasks} == {TaskStatus.QUEUED}
    stage.clock.advance(timedelta(milliseconds=1))
    assert await stage.run_once(), "a full batch"
    assert not await stage.run_once()
    ended = [await stage.present(task) for task in tasks]
    assert {task.status for task in ended} == {TaskStatus.DEAD_LETTER}
    assert {task.error.code for task in ended if task.error is not None} == {"queue_timeout"}
    assert await stage.status(later) is TaskStatus.QUEUED
    stage.clock.advance(WAIT)
    await stage.run_once()
    assert await stage.status(later) is TaskStatus.DEAD_LETTER


async def test_a_pause_of_the_type_does_not_count(stage: Stage) -> None:
    task, other = await stage.submit(), await stage.submit("limited")
    await stage.store.write_records([PAUSE.new("plain", content=Pause("plain", "tests", stage.clock.now()))])
    stage.clock.advance(WAIT)
    await stage.run_once()
    assert (await stage.status(task), await stage.status(other)) == (TaskStatus.QUEUED, TaskStatus.DEAD_LETTER)
    stage.clock.advance(WAIT)
    await stage.run_once()
    assert await stage.status(task) is TaskStatus.QUEUED, "it waits anew from each look on"


async def test_time_in_which_all_slots_of_the_type_are_held_does_not_count(stage: Stage) -> None:
    task = await stage.submit()
    await stage.store.change_record(TakeSlot(SLOTS.id_of("plain"), 1, "other", "claim", "w", 1, 0.0, 15.0))
    stage.clock.advance(WAIT.total_seconds())
    await stage.run_once()
    assert await stage.status(task) is TaskStatus.QUEUED
    await stage.store.change_record(GiveSlotBack(SLOTS.id_of("plain"), "claim"))
    stage.clock.advance(WAIT.total_seconds())
    await stage.run_once()
    assert await stage.status(task) is TaskStatus.DEAD_LETTER


async def test_a_slot_that_is_given_back_late_holds_back_nothing(stage: Stage) -> None:
    task = await stage.submit()
    await stage.store.change_record(GiveSlotBack(SLOTS.id_of("plain"), "a claim of long ago"))
    stage.clock.advance(WAIT.total_seconds())
    await stage.run_once()
    assert await stage.status(task) is TaskStatus.DEAD_LETTER


async def test_the_queue_timeout_starts_again_at_the_end_of_a_pause(stage: Stage) -> None:
    pauses = Pauses(stage.store)
    repair = PauseRepair(stage.store, pauses, timedelta(minutes=15))
    tasks = [await stage.submit() for _ in range(3)]
    [pause] = await stage.store.write_records([PAUSE.new("plain", content=Pause("plain", "a", stage.clock.now()))])
    await repair.run_once()
    stage.clock.advance(WAIT - timedelta(seconds=1))
    assert pause is not None
    await stage.store.delete_records([pause])
    await repair.run_once()
    stage.clock.advance(WAIT - timedelta(milliseconds=1))
    await stage.run_once()
    assert {await stage.status(task) for task in tasks} == {TaskStatus.QUEUED}
    stage.clock.advance(timedelta(milliseconds=1))
    while await stage.run_once():
        pass
    assert {await stage.status(task) for task in tasks} == {TaskStatus.DEAD_LETTER}


async def test_a_task_is_not_late_because_of_a_pause_that_has_just_ended(stage: Stage) -> None:
    queues = QueueOperations(stage.store, stage.types)
    await queues.pause("plain", by="ann")
    before = await stage.submit()
    stage.clock.advance(WAIT)
    await queues.resume("plain")
    after = await stage.submit()
    await stage.run_once()
    assert await stage.status(before) is TaskStatus.QUEUED, "its time begins when the pause ends"
    stage.clock.advance(WAIT)
    while await stage.run_once():
        pass
    assert {await stage.status(task) for task in (before, after)} == {TaskStatus.DEAD_LETTER}
    await queues.pause("plain", by="ann")
    await queues.resume("plain")  # the end of the earlier pause is replaced
    late = await stage.submit()
    stage.clock.advance(WAIT)
    await stage.run_once()
    assert await stage.status(late) is TaskStatus.DEAD_LETTER


async def test_while_the_bucket_of_the_type_is_not_full_a_task_waits_for_no_worker(stage: Stage) -> None:
    limited, keyed = await stage.submit("limited"), await stage.submit("keyed")
    await stage.hold(WAIT.total_seconds() + 1)
    stage.clock.advance(WAIT)
    await stage.run_once()
    assert await stage.status(limited) is TaskStatus.QUEUED
    assert await stage.status(keyed) is TaskStatus.DEAD_LETTER, "another key may be free, and it was not put off"
    stage.clock.advance(WAIT)
    await stage.run_once()
    assert await stage.status(limited) is TaskStatus.DEAD_LETTER


async def test_time_held_back_by_limits_counts_if_the_task_type_declares_it(stage: Stage) -> None:
    strict, limited = await stage.submit("strict"), await stage.submit("limited")
    await stage.hold(3600)
    stage.clock.advance(WAIT)
    await stage.run_once()
    assert (await stage.status(strict), await stage.status(limited)) == (TaskStatus.DEAD_LETTER, TaskStatus.QUEUED)


async def test_while_nobody_knows_how_full_the_bucket_is_nothing_of_the_type_is_ended(stage: Stage) -> None:
    limited, plain = await stage.submit("limited"), await stage.submit()
    stage.buckets.is_away = True
    stage.clock.advance(WAIT)
    await stage.run_once()
    assert (await stage.status(limited), await stage.status(plain)) == (TaskStatus.QUEUED, TaskStatus.DEAD_LETTER)


async def test_sub_tasks_and_the_tasks_of_a_batch_have_the_limit_of_their_type(stage: Stage) -> None:
    kind = await SubtaskKinds(stage.types, stage.store.now, 3).find("plain", {})
    plan = [{**kind.header, "items": [[None, "hash"]]}]
    parent = new_task(now=NOW, subtasks=Subtasks(1, None))
    [subtask] = planned_tasks(parent, plan, lambda: NOW, timedelta(0))
    assert (subtask.start_limit, subtask.start_by) == (StartLimit(300_000), NOW + WAIT)
    batch = new_task(now=NOW, batch=Batch(), subtasks=Subtasks(1, None), start_limit=StartLimit(300_000))
    item = subtask_of(batch, 0, subtask_group(batch), None, "hash", NOW, timedelta(0))
    assert (item.start_limit, item.start_by) == (StartLimit(300_000), NOW + WAIT)
    assert "start_limit" not in (await SubtaskKinds(stage.types, stage.store.now, 3).find("free", {})).header
