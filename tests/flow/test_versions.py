"""Versions of a key, submitted by many at once in any order while a worker executes them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import pytest

from taskframework import BackgroundTaskExecutable, NewerVersionError, TaskContext, TaskStatus, VersionConflictError
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.submission.options import UniqueOption
from taskframework.testing.eventually import eventually
from tests.flow.conftest import BOTH, Run

# The fast path carries the same messages for these as for the tests of the lifecycle, which run without it too.
pytestmark = pytest.mark.parametrize("urls", BOTH, indirect=True)

CLIENTS, VERSIONS = 10, 20


class Renders(BackgroundTaskExecutable[int, int]):
    task_type = "renders"
    begun: ClassVar[list[int]] = []

    async def execute(self, context: TaskContext[int]) -> int:
        self.begun.append(context.parameters)
        return context.parameters


async def test_the_newest_version_runs_and_each_version_at_most_once(run: Run) -> None:
    Renders.begun = []
    refused: dict[int, int] = {}
    async with run(extra=[Renders]) as framework:

        async def client() -> None:
            for version in random.sample(range(1, VERSIONS + 1), VERSIONS):
                try:
                    await framework.submit("renders", version, unique={"key": "page", "version": version})
                except NewerVersionError as error:
                    refused[version] = error.newest

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        await eventually(lambda: VERSIONS in Renders.begun, timeout=20)
        await eventually(lambda: _all_over(framework.services.store), timeout=20)
        assert max(Counter(Renders.begun).values()) == 1
        assert all(newest > version for version, newest in refused.items())
        late = await framework.submit("renders", VERSIONS, unique={"key": "page", "version": VERSIONS})
        assert (late.is_new, await late.result(timeout=60)) == (False, VERSIONS)
        with pytest.raises(NewerVersionError):
            await framework.submit("renders", 1, unique={"key": "page", "version": 1})
        statuses = Counter(task.status for task in await _tasks(framework.services.store))
    assert statuses.keys() <= {TaskStatus.COMPLETED, TaskStatus.CANCELLED}
    assert statuses[TaskStatus.COMPLETED] == len(Renders.begun)


class Prints(Renders):
    task_type = "prints"


async def test_a_version_of_another_type_is_refused(run: Run) -> None:
    version: UniqueOption = {"key": "page", "version": 1}
    async with run(extra=[Renders, Prints]) as framework:
        first = await framework.submit("renders", 1, unique=version)
        with pytest.raises(VersionConflictError, match=f"is task {first.task_id} of the type 'renders'"):
            await framework.submit("prints", 1, unique=version)
        assert (await framework.submit("renders", 1, unique=version)).task_id == first.task_id


async def _tasks(store: TaskStore) -> Sequence[Task]:
    return (await store.list_tasks(EVERYONE, TaskFilter(task_type="renders"), limit=500)).items


async def _all_over(store: TaskStore) -> bool:
    return all(task.status.is_final for task in await _tasks(store))
