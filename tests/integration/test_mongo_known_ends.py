"""Ends of tasks that this process claimed: not read back, and the reply is what is stored all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from taskframework.model.attempts import Complete, RecordStep, ReportProgress
from taskframework.model.drivers import CASCADE
from taskframework.model.interventions import Cancel
from taskframework.model.marks import MarkPublished, MarkSpawned, MoveDriver
from taskframework.model.scope import EVERYONE
from taskframework.model.signals import SendSignal
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import Subtasks
from taskframework.model.transitions import Fence, Transition
from taskframework.model.waiting import Wait
from taskframework.stores.mongo import writer
from taskframework.stores.mongo.documents import task_of
from taskframework.stores.mongo.store import MongoStore
from taskframework.testing.conformance.comparison import differences
from tests.integration.test_mongo import claimed, opened

#: The last two are made by the same process in truth; their reply may be what was lost.
_MOVES: dict[str, Callable[[Fence], Transition]] = {
    "cancelled": lambda fence: Cancel(fence.task_id, EVERYONE, "alice", None),
    "progressed": lambda fence: ReportProgress(fence, 50),
    "stepped": lambda fence: RecordStep(fence, "charge", 7),
    "signalled": lambda fence: SendSignal(fence.task_id, EVERYONE, "key", "approved", {"by": "alice"}),
}
_ENDS: dict[str, Callable[[Fence], Transition]] = {
    "complete": lambda fence: Complete(fence, "worker-1", None),
    "wait": lambda fence: Wait(fence, "worker-1", Subtasks(2, [1]), "approved", timedelta(hours=1), {"n": 1}),
}


@pytest.mark.parametrize("done", ["marked", "cancelled", "progressed", "stepped", "signalled"])
@pytest.mark.parametrize("is_all", [True, False])
@pytest.mark.parametrize("end", _ENDS)
async def test_a_change_by_another_process_is_in_the_reply(mongo_url: str, end: str, done: str, is_all: bool) -> None:
    async with opened(mongo_url) as store, opened(mongo_url) as other:
        fences = await claimed(store, 12)
        for fence in fences if is_all else fences[1::4]:
            if done == "marked":
                await other.mark(MarkPublished(fence.task_id, 2))
            else:
                await other.apply(_MOVES[done](fence))

        await _end_all(store, [_ENDS[end](fence) for fence in fences])


async def test_a_task_with_sub_tasks_is_not_remembered(mongo_url: str) -> None:
    """Its cascade and its plan are moved by marks, which raise no revision."""
    async with opened(mongo_url) as store, opened(mongo_url) as other:
        due = store.now() - timedelta(hours=1)
        fences = await claimed(store, 12, cascade_at=due, subtasks=Subtasks(2, [1], done=2, succeeded=2))
        for fence in fences[1::4]:
            await other.apply(MoveDriver(fence.task_id, CASCADE, due, None))
            await other.mark(MarkSpawned(fence.task_id, 0, 1))

        await _end_all(store, [_ENDS["complete"](fence) for fence in fences])


async def _end_all(store: MongoStore, ends: Sequence[Transition]) -> None:
    """End attempts in one group: each reply must be what is stored."""
    for task in await asyncio.gather(*(store.apply(end) for end in ends)):
        assert task is not None
        there = await store.get(task.task_id, EVERYONE)
        assert there is not None
        assert differences(task, there, timedelta(0)) == []


@pytest.mark.parametrize(("options", "ends_read"), [({}, 0), ({"remembered": 0}, 12)])
async def test_only_the_time_is_read_of_a_remembered_task(
    mongo_url: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], ends_read: int
) -> None:
    read: list[Any] = []

    def counted(document: Any) -> Task:
        read.append(document)
        return task_of(document)

    monkeypatch.setattr(writer, "task_of", counted)
    async with opened(mongo_url, **options) as store:
        fences = await claimed(store, 12)
        read.clear()
        ended = await asyncio.gather(*(store.apply(Complete(fence, "worker-1", None)) for fence in fences))
        assert len(read) == ends_read
        assert [task and task.status for task in ended] == [TaskStatus.COMPLETED] * 12
