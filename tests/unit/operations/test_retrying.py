"""Why a task cannot be queued again: each refusal has its own sentence and its own next step."""

from __future__ import annotations

from typing import Any

import pytest

from taskframework.bus import EventBus
from taskframework.errors import TransitionRefusedError
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
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


async def test_a_handle_queues_its_task_again(store: SqliteStore) -> None:
    task = await put_final(store, TaskStatus.FAILED)
    handle: TaskHandle[Any] = TaskHandle(
        task.task_id, False, TaskOperations(store, TaskMoves(store, EventBus()), SECOND)
    )
    retried = await handle.retry()
    assert (retried.status, retried.generation) == (TaskStatus.QUEUED, 1)
    assert retried.history[-1].data == {"by": "program"}
