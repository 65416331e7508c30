"""Tasks that releases before and after this one wrote: the steps in them, and what this release does not know."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from taskframework.model.attempts import Claim, Fail, RecordStep, Release, ReportProgress
from taskframework.model.interventions import Cancel, Replay
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import SHAPE, Task
from taskframework.model.task_fields import SignalWait, StepOutcome
from taskframework.model.transitions import Fence
from taskframework.model.waiting import Wait
from taskframework.stores.base import TaskStore
from taskframework.stores.mongo.store import MongoStore
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.conformance.store_suite import MINUTE, SECOND, make_error, put_running

Document = dict[str, Any]
#: Change a stored document behind the store's back, and return it as it is then.
Edit = Callable[[str, Callable[[Document], object]], Document]


@pytest.fixture(params=["sqlite", "mongo"])
async def stored(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[TaskStore, Edit]]:
    store: TaskStore
    if request.param == "sqlite":
        path = tmp_path / "tasks.db"
        store, edit = SqliteStore(path), lambda *how: _edit_row(path, *how)
    else:
        url = request.getfixturevalue("mongo_url")
        store, edit = MongoStore(url), lambda *how: _edit_document(url, *how)
    await store.open()
    yield store, edit
    await store.close()


def _edit_row(path: Path, task_id: str, change: Callable[[Document], object]) -> Document:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        [(text,)] = connection.execute("SELECT document FROM tasks WHERE task_id = ?", (task_id,))
        document: Document = json.loads(text)
        change(document)
        connection.execute("UPDATE tasks SET document = ? WHERE task_id = ?", (json.dumps(document), task_id))
    return document


def _edit_document(url: str, task_id: str, change: Callable[[Document], object]) -> Document:
    with MongoClient[Document](url) as client:
        tasks = client.get_default_database()["tasks"]
        document = tasks.find_one({"_id": task_id})
        assert document is not None
        change(document)
        tasks.replace_one({"_id": task_id}, document)
    return document


async def test_a_task_of_a_release_without_steps_gets_its_first_one(stored: tuple[TaskStore, Edit]) -> None:
    store, edit = stored
    task, fence = await put_running(store)
    await asyncio.to_thread(edit, task.task_id, lambda document: document.pop("steps", None))

    read = await store.get(task.task_id, EVERYONE)
    assert read is not None
    assert read.steps == ()
    assert await store.apply(ReportProgress(fence, 1)) is not None
    recorded = await store.apply(RecordStep(fence, "charge", 7))

    assert recorded is not None
    assert recorded.steps == (StepOutcome("charge", 7),)


async def test_no_other_write_touches_the_steps_nor_what_is_unknown_in_them(stored: tuple[TaskStore, Edit]) -> None:
    store, edit = stored
    task, fence = await put_running(store)
    await store.apply(RecordStep(fence, "charge", {"receipt": 7}))
    await asyncio.to_thread(edit, task.task_id, lambda document: document["steps"][0].update(novel=1))

    for write in (
        RecordStep(fence, "mail", None),
        RecordStep(fence, "charge", "another outcome"),
        ReportProgress(fence, 1),
        Fail(fence, "worker-1", make_error(), False, MINUTE),
        Replay(task.task_id, EVERYONE, "operator", SECOND),
        Cancel(task.task_id, EVERYONE, "alice", None),
    ):
        assert await store.apply(write) is not None

    document = await asyncio.to_thread(edit, task.task_id, lambda _: None)
    assert document["steps"] == [
        {"step": "charge", "outcome": {"receipt": 7}, "novel": 1},
        {"step": "mail", "outcome": None},
    ]


async def test_a_task_of_a_release_that_stored_rare_fields_for_every_task_goes_on(
    stored: tuple[TaskStore, Edit],
) -> None:
    store, edit = stored
    task, fence = await put_running(store)
    everything = {field.name: field.default for field in dataclasses.fields(Task) if field.name in SHAPE.rare}
    plain = {name: list(value) if value == () else value for name, value in everything.items()}
    await asyncio.to_thread(edit, task.task_id, lambda document: document.update(plain))

    assert await store.get(task.task_id, EVERYONE) == task
    assert await store.apply(Release(fence, "worker-1")) is not None
    assert await store.apply(Claim(task.task_id, 2, "claim-2", "worker-1", MINUTE)) is not None
    waiting = await store.apply(Wait(Fence(task.task_id, 2, "claim-2"), "worker-1", None, "approved", None, None))
    assert waiting is not None
    assert waiting.waits_for == SignalWait("approved", None)
    cancelled = await store.apply(Cancel(task.task_id, EVERYONE, "alice", None))
    assert cancelled is not None
    assert (cancelled.status, cancelled.waits_for, cancelled.check_at) == (TaskStatus.CANCELLED, None, None)
