"""Parents: when their sub-tasks are counted, what a replay of them leaves and finds, and what a dead process left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskframework.aggregation.cascade import Cascade
from taskframework.aggregation.parents import SubtaskReporter
from taskframework.aggregation.spawner import Spawner
from taskframework.bus import EventBus
from taskframework.model.interventions import Replay
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import Counts, subtask_id
from taskframework.model.task import ParentLink, Subtasks, Task
from taskframework.model.waiting import LOOK_AGAIN, SPAWN_AFTER, CountSubtasks
from taskframework.moves import TaskMoves
from taskframework.operations.tasks import TaskOperations
from taskframework.recovery.parents import ParentRepair
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task

SECOND = timedelta(seconds=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "tasks.db", clock=clock)
    await store.open()
    yield store
    await store.close()


def family(store: SqliteStore, statuses: list[TaskStatus], **parent: Any) -> list[Task]:
    """A parent with sub-tasks in these statuses; the parent comes first."""
    now = store.now()
    usual = {"status": TaskStatus.WAITING, "next_dispatch_at": None, "check_at": now + SECOND}
    top = new_task(task_id="parent", now=now, **{**usual, "subtasks": Subtasks(len(statuses), None), **parent})
    below = [
        new_task(
            task_id=subtask_id("parent", 0, 1, slot),
            now=now,
            parent=ParentLink("parent", 0, slot),
            status=status,
            finished_at=now if status.is_final else None,
        )
        for slot, status in enumerate(statuses)
    ]
    return [top, *below]


async def test_nobody_waits_for_the_pause_after_the_last_sub_task(store: SqliteStore, clock: FakeClock) -> None:
    parent, first, second = family(store, [TaskStatus.COMPLETED, TaskStatus.COMPLETED])
    await store.insert([parent, first])
    reporter = SubtaskReporter(store, TaskMoves(store, EventBus()), clock)
    reporter.take(first)
    await eventually(lambda: clock.sleeping == 1)  # counted, and in the pause
    await store.insert([second])
    reporter.take(second)

    async def is_over() -> bool:
        task = await store.get("parent", EVERYONE)
        return task is not None and task.status is TaskStatus.COMPLETED

    await eventually(is_over)  # although the clock stands still


async def test_a_late_count_between_reopening_and_replay_is_made_good(store: SqliteStore) -> None:
    class Late(TaskMoves):
        """Somebody counts the failure once more, just before the replay."""

        async def make(self, move: Any) -> Task | None:
            if isinstance(move, Replay) and (parent := await store.get("parent", EVERYONE)) is not None:
                assert await super().make(CountSubtasks.of(parent, Counts(failed=1))) is not None
            return await super().make(move)

    failed = {"status": TaskStatus.FAILED, "check_at": None, "finished_at": store.now()}
    parent, child = family(store, [TaskStatus.FAILED], **failed, subtasks=Subtasks(1, None, done=1, failed=1))
    await store.insert([parent, child])
    operations = TaskOperations(store, Late(store, EventBus()), SECOND)
    await operations.retry(child.task_id, EVERYONE, by="operator", reopen=True)
    present = await store.get("parent", EVERYONE)
    assert present is not None
    assert present.status is TaskStatus.WAITING


async def test_a_parent_is_not_replayed_while_its_sub_tasks_are_being_cancelled(store: SqliteStore) -> None:
    failed = {"status": TaskStatus.FAILED, "check_at": None, "finished_at": store.now()}
    [parent, *_] = family(store, [], **failed, cascade_at=store.now())
    assert Replay("parent", EVERYONE, "operator", SECOND).apply(parent, store.now()) is None
    assert Replay("parent", EVERYONE, "operator", SECOND).apply(parent.evolve(cascade_at=None), store.now()) is not None


@pytest.fixture
def repair(store: SqliteStore, clock: FakeClock) -> Callable[[], Awaitable[None]]:
    """What the repair of another process finds, done to its end."""
    bus = EventBus()
    moves = TaskMoves(store, bus)
    spawner, cascade = Spawner(store, bus, SECOND), Cascade(store, moves)
    reporter = SubtaskReporter(store, moves, clock)
    parents = ParentRepair(store, moves, spawner, reporter, cascade, 10)

    async def look() -> None:
        await parents.look()
        for work in (spawner, cascade, reporter):
            await work.finished()

    return look


async def test_a_plan_that_a_dead_process_left_half_stored_is_stored(
    store: SqliteStore, clock: FakeClock, repair: Callable[[], Awaitable[None]]
) -> None:
    items = [[n, "hash"] for n in range(3)]
    plan = [{"task_type": "part", "priority": "normal", "max_attempts": 1, "items": items}]
    left = {"subtasks": Subtasks(3, plan), "spawn_at": store.now() + SPAWN_AFTER, "check_at": store.now() + LOOK_AGAIN}
    parent, first = family(store, [TaskStatus.COMPLETED], **left)
    await store.insert([parent, first])
    await repair()
    assert await below(store) == [first], "the process that planned them has its time"
    clock.advance(SPAWN_AFTER)
    await repair()
    found = await below(store)
    assert [task.parent and task.parent.slot for task in found] == [0, 1, 2]
    assert found[0] == first, "what was there is passed over"
    assert [task.parameters for task in found[1:]] == [1, 2]
    present = await store.get("parent", EVERYONE)
    assert present is not None
    assert present.subtasks is not None
    assert (present.spawn_at, present.subtasks.plan) == (None, None)


async def test_a_cascade_that_nobody_began_is_begun(store: SqliteStore, repair: Callable[[], Awaitable[None]]) -> None:
    over = {"status": TaskStatus.CANCELLED, "check_at": None, "finished_at": store.now(), "cascade_at": store.now()}
    await store.insert(family(store, [TaskStatus.QUEUED, TaskStatus.COMPLETED, TaskStatus.RETRYING], **over))
    await repair()
    found = await below(store)
    assert [task.status for task in found] == [TaskStatus.CANCELLED, TaskStatus.COMPLETED, TaskStatus.CANCELLED]
    present = await store.get("parent", EVERYONE)
    assert present is not None
    assert present.cascade_at is None


async def test_a_parent_of_which_nobody_heard_is_counted_when_it_is_looked_at(
    store: SqliteStore, repair: Callable[[], Awaitable[None]]
) -> None:
    await store.insert(family(store, [TaskStatus.COMPLETED, TaskStatus.COMPLETED], check_at=store.now()))
    await repair()
    present = await store.get("parent", EVERYONE)
    assert present is not None
    assert present.status is TaskStatus.COMPLETED


async def below(store: SqliteStore) -> list[Task]:
    return list(await store.list_subtasks(RoundOfSubtasks("parent", 0, 1), limit=10))
