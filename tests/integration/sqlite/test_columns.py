"""The columns of a row repeat its document after each write, also those that most writes leave out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskframework.model.interventions import Cancel
from taskframework.model.marks import MarkPublished
from taskframework.model.scope import EVERYONE
from taskframework.model.task import Task
from taskframework.model.task_fields import Batch, ParentLink
from taskframework.model.waiting import Wait
from taskframework.stores.sqlite import SqliteStore
from taskframework.stores.sqlite.rows import FIXED, MOVING, UNUSUAL_FIXED, UNUSUAL_MOVING, new_row
from taskframework.testing.conformance.store_suite import HOUR, claim_task, insert_one, make_mark, make_move
from taskframework.testing.factories import new_task

_NOTHING = dict.fromkeys((*UNUSUAL_FIXED, *UNUSUAL_MOVING)) | {"is_batch": 0}


async def check(store: SqliteStore, *tasks: Task) -> None:
    """Compare all that the file has of these tasks with what it should have."""
    for task in tasks:
        row = new_row(task)
        names = (*FIXED, *(() if row.is_usual else (*UNUSUAL_FIXED, *UNUSUAL_MOVING)), *MOVING)
        wanted = {**_NOTHING, **dict(zip(names, row.inserted(), strict=True))}
        del wanted["document"]
        query = f"SELECT {', '.join(wanted)} FROM tasks WHERE task_id = ?"
        [there] = await store._database.fetch(query, (task.task_id,))
        assert dict(zip(wanted, there, strict=True)) == wanted


@pytest.fixture
def tasks(store: SqliteStore) -> list[Task]:
    now = store.now()
    unusual: list[dict[str, Any]] = [
        {},
        {"idempotency_key": "key"},
        {"parent": ParentLink("parent", 2, 0)},
        {"batch": Batch()},
        {"deadline": now + HOUR},
        {"cascade_at": now},
        {},
    ]
    return [new_task(now=now, **fields) for fields in unusual]


async def test_tasks_of_all_kinds_are_inserted_and_changed_together(store: SqliteStore, tasks: list[Task]) -> None:
    assert [new_row(task).is_usual for task in tasks] == [True, False, False, False, False, False, True]
    for reply in await store.insert(tasks):
        assert not isinstance(reply, Exception)
    await check(store, *tasks)
    await store.mark(*(MarkPublished(task.task_id, 1) for task in tasks))
    await check(store, *[published for task in tasks if (published := await store.get(task.task_id, EVERYONE))])


@pytest.mark.parametrize("deadline", [None, timedelta(hours=1)])
async def test_a_time_that_is_over_is_gone_from_its_column(store: SqliteStore, deadline: timedelta | None) -> None:
    now = store.now()
    task = (await insert_one(store, new_task(now=now, deadline=deadline and now + deadline))).task
    running, fence = await claim_task(store, task)
    await check(store, running)
    waiting = await make_move(store, Wait(fence, "worker-1", None, "approved", None, None))
    assert waiting.check_at is not None
    await check(store, waiting)
    await check(store, await make_mark(store, MarkPublished(task.task_id, 1)))
    over = await make_move(store, Cancel(task.task_id, EVERYONE, "alice", None))
    assert over.check_at is None
    await check(store, over)
