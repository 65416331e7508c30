"""Why a task cannot be queued again: each refusal has its own sentence and its own next step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from taskframework.bus import EventBus
from taskframework.errors import ParentFinishedError, TransitionRefusedError
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task_fields import Batch, ParentLink, Subtasks
from taskframework.moves import TaskMoves
from taskframework.operations.handle import TaskHandle
from taskframework.operations.tasks import TaskOperations
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.conformance.store_suite import SECOND, put, put_final


@pytest.mark.parametrize(
    ("status", "cascades", "message", "hint"),
    [
        (TaskStatus.QUEUED, False, "is already queued; nothing was changed", "Only a task that is RETRYING or"),
        (TaskStatus.COMPLETED, False, "is COMPLETED; it cannot be retried", "Only a task that is RETRYING or"),
        (TaskStatus.FAILED, True, "is FAILED; it cannot be retried", "Its sub-tasks are still being cancelled"),
    ],
    ids=lambda value: str(value),
)
async def test_a_refused_retry_says_why_and_what_to_do(
    store: SqliteStore, status: TaskStatus, cascades: bool, message: str, hint: str
) -> None:
    fields: dict[str, Any] = {"cascade_at": store.now()} if cascades else {}
    task = await (put_final(store, status, **fields) if status.is_final else put(store))
    operations = TaskOperations(store, TaskMoves(store, EventBus()), SECOND)
    with pytest.raises(TransitionRefusedError) as refused:
        await operations.retry(task.task_id, EVERYONE, by="ada")
    assert message in refused.value.message
    assert refused.value.hint.startswith(hint)
    assert (refused.value.action, refused.value.status) == ("retried", status)


_ALONE = "etry this one with `reopen` (--reopen), so that the parent waits for it again."
_BATCH_RETRY = "Retry all failed tasks of the batch: `taskframework batch retry-failed parent`"
_ONE_FAILED = Subtasks(2, None, done=2, succeeded=1, failed=1)
_ALLOWED = replace(_ONE_FAILED, policy="allow_failures")
_ANOTHER_ROUND = replace(_ONE_FAILED, round=2)


@pytest.mark.parametrize(
    ("status", "fields", "hint"),
    [
        (TaskStatus.FAILED, {}, f"Retry the parent; or r{_ALONE}"),
        (TaskStatus.COMPLETED, {}, f"R{_ALONE}"),
        (TaskStatus.COMPLETED_WITH_ERRORS, {}, f"R{_ALONE}"),
        (
            TaskStatus.COMPLETED,
            {"subtasks": _ANOTHER_ROUND},
            "The parent has had another round of sub-tasks since then. "
            "The parent is COMPLETED, so it cannot be retried; submit a new task.",
        ),
        (TaskStatus.FAILED, {"batch": Batch(items=2)}, f"{_BATCH_RETRY}; or r{_ALONE}"),
        (TaskStatus.COMPLETED_WITH_ERRORS, {"batch": Batch(items=2)}, f"{_BATCH_RETRY}; or r{_ALONE}"),
        (TaskStatus.COMPLETED, {"batch": Batch(items=2)}, f"R{_ALONE}"),
        (TaskStatus.COMPLETED, {"batch": Batch(items=2), "subtasks": _ALLOWED}, f"{_BATCH_RETRY}; or r{_ALONE}"),
        (
            TaskStatus.CANCELLED,
            {"batch": Batch(items=2), "subtasks": replace(_ONE_FAILED, plan_records=1)},
            f"The parent ended before all of its sub-tasks were stored. {_BATCH_RETRY}.",
        ),
    ],
)
async def test_a_sub_task_of_an_ended_parent_names_only_steps_that_are_possible(
    store: SqliteStore, status: TaskStatus, fields: dict[str, Any], hint: str
) -> None:
    parent = await put_final(store, status, task_id="parent", **{"subtasks": _ONE_FAILED, **fields})
    failed = await put_final(store, TaskStatus.FAILED, parent=ParentLink(parent.task_id, 0, 0))
    operations = TaskOperations(store, TaskMoves(store, EventBus()), SECOND)
    with pytest.raises(ParentFinishedError) as refused:
        await operations.retry(failed.task_id, EVERYONE, by="ada")
    assert refused.value.hint == hint


@pytest.mark.parametrize(
    ("subtasks", "purpose"),
    [
        (replace(_ONE_FAILED, resumes=True), "retry its failed tasks"),
        (Subtasks(2, None, done=2, succeeded=2, resumes=True), "call on_batch_finished again"),
    ],
)
async def test_a_batch_that_is_retried_as_a_task_is_refused_with_what_its_own_retry_does(
    store: SqliteStore, subtasks: Subtasks, purpose: str
) -> None:
    batch = await put_final(store, TaskStatus.FAILED, batch=Batch(items=2), subtasks=subtasks)
    with pytest.raises(TransitionRefusedError, match="is a batch, which is not retried as a task") as refused:
        await TaskOperations(store, TaskMoves(store, EventBus()), SECOND).retry(batch.task_id, EVERYONE, by="ada")
    command = f"taskframework batch retry-failed {batch.task_id}"
    assert refused.value.hint.startswith(f"To {purpose}: `{command}`, or over HTTP POST ")


async def test_a_handle_queues_its_task_again(store: SqliteStore) -> None:
    task = await put_final(store, TaskStatus.FAILED)
    handle: TaskHandle[Any] = TaskHandle(
        task.task_id, False, TaskOperations(store, TaskMoves(store, EventBus()), SECOND)
    )
    retried = await handle.retry()
    assert (retried.status, retried.generation) == (TaskStatus.QUEUED, 1)
    assert retried.history[-1].data == {"by": "program"}
