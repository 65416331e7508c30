"""Debounced and throttled submissions by many at once while a worker executes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from taskframework import BackgroundTaskExecutable, SubmitRequest, TaskContext, TaskStatus
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.testing.eventually import eventually
from tests.flow.conftest import BOTH, Run

# The fast path carries the same messages for these as for the tests of the lifecycle, which run without it too.
pytestmark = pytest.mark.parametrize("urls", BOTH, indirect=True)

CLIENTS, SUBMISSIONS = 6, 15
DEBOUNCE: Any = {"key": "page", "wait": "100ms", "max_wait": "300ms"}
THROTTLE: Any = {"key": "page", "every": "300d"}


class Renders(BackgroundTaskExecutable[int, int]):
    task_type = "renders"
    begun: ClassVar[dict[str, int]] = {}

    async def execute(self, context: TaskContext[int]) -> int:
        self.begun[context.task_id] = context.parameters
        return context.parameters


async def test_each_debounced_task_runs_once_with_its_newest_accepted_parameters(run: Run) -> None:
    Renders.begun = {}
    newest: dict[str, Task] = {}
    async with run(extra=[Renders]) as framework:

        async def client(number: int) -> None:
            for n in range(SUBMISSIONS):
                request = SubmitRequest(task_type="renders", parameters=100 * number + n, debounce=DEBOUNCE)
                task = (await framework.services.submission.submit(request)).task
                newest[task.task_id] = max(newest.get(task.task_id, task), task, key=lambda seen: seen.sequence)

        await asyncio.gather(*map(client, range(CLIENTS)))
        await eventually(lambda: _all_over(framework.services.store), timeout=20)
        tasks = await _tasks(framework.services.store)
    assert {(task.status, task.attempts) for task in tasks} == {(TaskStatus.COMPLETED, 1)}
    assert {task.task_id: task.parameters for task in tasks} == Renders.begun
    assert {task_id: task.parameters for task_id, task in newest.items()} == Renders.begun
    assert len(tasks) < CLIENTS * SUBMISSIONS


async def test_a_throttled_key_has_one_task_whoever_submits(run: Run) -> None:
    async with run(extra=[Renders]) as framework:
        handles = await asyncio.gather(*(framework.submit("renders", n, throttle=THROTTLE) for n in range(20)))
        assert len({handle.task_id for handle in handles}) == 1
        assert sum(handle.is_new for handle in handles) == 1
        assert await handles[0].result(timeout=60) in range(20)


async def _tasks(store: TaskStore) -> Sequence[Task]:
    return (await store.list_tasks(EVERYONE, TaskFilter(task_type="renders"), limit=500)).items


async def _all_over(store: TaskStore) -> bool:
    return all(task.status.is_final for task in await _tasks(store))
