"""Debounced and throttled submissions by many at once while a worker executes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from taskframework import (
    BackgroundTaskExecutable,
    ConcurrencyLimit,
    SubmitRequest,
    TaskContext,
    TaskOptions,
    TaskStatus,
    failpoint,
)
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.slots import SLOTS
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


class Page(BaseModel):
    site: str


class Builds(BackgroundTaskExecutable[Page, str]):
    """One of each site runs at once."""

    task_type = "builds"
    options = TaskOptions(concurrency_limit=ConcurrencyLimit(1, key="site"))
    running: ClassVar[list[str]] = []
    may_end: ClassVar[asyncio.Event]

    async def execute(self, context: TaskContext[Page]) -> str:
        self.running.append(context.parameters.site)
        await self.may_end.wait()
        return context.parameters.site


async def test_parameters_that_come_between_a_limit_and_the_claim_count_under_their_own_key(run: Run) -> None:
    Builds.running, Builds.may_end = [], asyncio.Event()
    debounce: Any = {"key": "page", "wait": "100ms", "max_wait": "100ms"}
    async with run(extra=[Builds]) as framework:
        first = await framework.submit("builds", {"site": "busy"})
        await eventually(lambda: Builds.running == ["busy"])

        async def replace() -> None:
            failpoint.disarm("deliver.before_claim")
            await framework.submit("builds", {"site": "busy"}, debounce=debounce)

        failpoint.arm("deliver.before_claim", replace)
        handle = await framework.submit("builds", {"site": "free"}, debounce=debounce)

        async def waits_for_the_busy_site() -> bool:
            wait = (await handle.task()).waits_for_limit
            return wait is not None and wait.limit == SLOTS.id_of("builds", "busy")

        await eventually(waits_for_the_busy_site)
        assert Builds.running == ["busy"]
        Builds.may_end.set()
        assert [await each.result(timeout=60) for each in (first, handle)] == ["busy", "busy"]


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
