"""Parents: when their sub-tasks are counted, and what a replay of them leaves and finds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskframework.aggregation.parents import SubtaskReporter
from taskframework.bus import EventBus
from taskframework.model.interventions import Replay
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import Counts, subtask_id
from taskframework.model.task import ParentLink, Subtasks, Task
from taskframework.model.waiting import CountSubtasks
from taskframework.moves import TaskMoves
from taskframework.operations.tasks import TaskOperations
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
