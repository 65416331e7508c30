"""Ends of tasks that this process claimed: not read back, and the reply is what is stored all the same."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from taskframework.model.interventions import Cancel
from taskframework.model.marks import MarkPublished
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import Complete
from taskframework.stores.mongo import writer
from taskframework.stores.mongo.documents import task_of
from taskframework.testing.conformance.comparison import differences
from tests.integration.test_mongo import claimed, opened


@pytest.mark.parametrize("done", ["marked", "cancelled"])
@pytest.mark.parametrize("is_all", [True, False])
async def test_what_another_process_did_shows_in_the_reply(mongo_url: str, done: str, is_all: bool) -> None:
    async with opened(mongo_url) as store, opened(mongo_url) as other:
        fences = await claimed(store, 12)
        for fence in fences if is_all else fences[::4]:
            if done == "marked":
                await other.mark(MarkPublished(fence.task_id, 2))
            else:
                await other.apply(Cancel(fence.task_id, EVERYONE, "alice", None))

        ended = await asyncio.gather(*(store.apply(Complete(fence, "worker-1", None)) for fence in fences))

        for task in ended:
            assert task is not None
            there = await store.get(task.task_id, EVERYONE)
            assert there is not None
            assert differences(task, there, timedelta(0)) == []


async def test_nothing_is_read_but_the_time(mongo_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []

    def counted(document: Any) -> Task:
        read.append(document)
        return task_of(document)

    monkeypatch.setattr(writer, "task_of", counted)
    async with opened(mongo_url) as store:
        fences = await claimed(store, 12)
        assert len(read) == 12
        ended = await asyncio.gather(*(store.apply(Complete(fence, "worker-1", None)) for fence in fences))
        assert len(read) == 12
        assert [task and task.status for task in ended] == [TaskStatus.COMPLETED] * 12
