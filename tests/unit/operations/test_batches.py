"""Results of a batch: each item once and in order, also while tasks of the batch are still being stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from taskframework.bus import EventBus
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import subtask_id
from taskframework.model.task import Batch, ParentLink, Subtasks
from taskframework.moves import TaskMoves
from taskframework.operations.batches import BatchOperations
from taskframework.operations.tasks import TaskOperations
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.factories import new_task

SECOND = timedelta(seconds=1)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open()
    yield store
    await store.close()


async def put_items(store: SqliteStore, *slots: int, status: TaskStatus = TaskStatus.WAITING) -> None:
    subtasks = Subtasks(5, None, policy="allow_failures")
    below = [
        new_task(
            task_id=subtask_id("batch", 0, 1, slot), parent=ParentLink("batch", 0, slot), status=TaskStatus.COMPLETED
        )
        for slot in slots
    ]
    await store.insert([new_task(task_id="batch", batch=Batch(items=5), subtasks=subtasks, status=status), *below])


@pytest.mark.parametrize(
    ("status", "expected", "cursor"),
    [(TaskStatus.WAITING, [0, 1], "2"), (TaskStatus.COMPLETED_WITH_ERRORS, [0, 1, 3, 4], None)],
)
async def test_an_item_that_is_still_to_be_stored_is_not_passed_over(
    store: SqliteStore, status: TaskStatus, expected: list[int], cursor: str | None
) -> None:
    await put_items(store, 0, 1, 3, 4, status=status)
    moves = TaskMoves(store, EventBus())
    batches = BatchOperations(store, moves, TaskOperations(store, moves, SECOND))
    page = await batches.results("batch", EVERYONE, limit=9)
    assert ([result.index for result in page.items], page.next_cursor) == (expected, cursor)
