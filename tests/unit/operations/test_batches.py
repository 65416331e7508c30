"""Results of a batch: each item once and in order, also while tasks of the batch are still being stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from taskframework.bus import EventBus
from taskframework.errors import TransitionRefusedError
from taskframework.model.batches import ReopenBatch
from taskframework.model.interventions import Cancel
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import subtask_id
from taskframework.model.task_fields import Batch, ParentLink, Subtasks
from taskframework.moves import TaskMoves
from taskframework.operations.batches import BatchNotRetriedError, BatchOperations
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


def operations_on(store: SqliteStore) -> BatchOperations:
    moves = TaskMoves(store, EventBus())
    return BatchOperations(store, moves, TaskOperations(store, moves, SECOND))


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
    batches = operations_on(store)
    page = await batches.results("batch", EVERYONE, limit=9)
    assert ([result.index for result in page.items], page.next_cursor) == (expected, cursor)


async def test_a_batch_retry_that_comes_too_early_is_refused_with_what_to_wait_for(store: SqliteStore) -> None:
    """A process may be about to replay a task when the batch is cancelled, so the cascade looks for it for a minute."""
    batches, subtasks = operations_on(store), Subtasks(2, None, policy="allow_failures")
    live = new_task(task_id=subtask_id("batch", 0, 1, 1), parent=ParentLink("batch", 0, 1), now=store.now())
    batch = new_task(
        task_id="batch", batch=Batch(items=2), subtasks=subtasks, status=TaskStatus.FAILED, finished_at=store.now()
    )
    done = new_task(
        task_id=subtask_id("batch", 0, 1, 0),
        parent=ParentLink("batch", 0, 0),
        now=store.now(),
        status=TaskStatus.COMPLETED,
        finished_at=store.now(),
    )
    await store.insert([batch, live])
    with pytest.raises(BatchNotRetriedError) as refused:
        await batches.retry_failed("batch", EVERYONE, by="alice")
    assert refused.value.hint == "Its tasks are still being cancelled; try again when they have ended (1 task left)."

    assert await store.apply(Cancel(live.task_id, EVERYONE, "alice", None)) is not None
    with pytest.raises(BatchNotRetriedError) as refused:
        await batches.retry_failed("batch", EVERYONE, by="alice")
    lost = "The retention has deleted 1 sub-task of task batch."
    assert refused.value.hint == f"{lost} Submit the items again, in a new batch."

    await store.insert([done])
    assert await store.apply(ReopenBatch("batch", EVERYONE, "alice")) is not None
    await batches.cancel("batch", EVERYONE, by="alice")
    with pytest.raises(BatchNotRetriedError) as refused:
        await batches.retry_failed("batch", EVERYONE, by="alice")
    assert refused.value.hint.startswith("It was cancelled during a retry, and")
    assert refused.value.hint.endswith(("try again in 1 min 4 s.", "try again in 1 min 5 s."))


async def test_a_batch_takes_no_signal_because_it_has_no_code(store: SqliteStore) -> None:
    batch = new_task(task_id="batch", batch=Batch(items=2), subtasks=Subtasks(2, None), status=TaskStatus.WAITING)
    await store.insert([batch])
    tasks = TaskOperations(store, TaskMoves(store, EventBus()), timedelta(minutes=1))
    with pytest.raises(TransitionRefusedError, match="is a batch, which executes no code itself") as refused:
        await tasks.signal("batch", EVERYONE, "go")
    assert refused.value.hint == "Send the signal to one of its tasks."
    assert (await tasks.get("batch", EVERYONE)).signals == ()
