"""What a process that died left running: taken over at once where nobody else can have it, else when its lease ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from taskframework import Settings, TaskFramework, TaskStatus
from taskframework.model.attempts import Claim
from taskframework.model.task import new_claim_id
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.factories import new_task
from tests.flow.conftest import Run
from tests.support.kitchen_sink import CountWords

FOR_LONG = timedelta(hours=1)


async def left_running(settings: Settings, *, crashes: int = 0) -> str:
    """The id of a task whose worker died right after the claim."""
    framework = TaskFramework(settings)
    async with framework.store_only():
        store = framework.services.store
        task = new_task(
            now=store.now(), task_type=CountWords.task_type, parameters={"text": "one two"}, crashes=crashes
        )
        await insert_one(store, task)
        claim = Claim(task.task_id, task.dispatch_epoch, new_claim_id(), "dead", FOR_LONG, task.task_type)
        assert await store.apply(claim)
    return task.task_id


@pytest.mark.parametrize("urls", ["embedded"], indirect=True)
async def test_the_only_process_of_a_file_takes_over_at_once(run: Run, settings: Callable[..., Settings]) -> None:
    task_ids = [await left_running(settings()) for _ in range(3)]
    async with run(retry={"initial_delay": "1h"}) as framework:
        for task_id in task_ids:
            task = await framework.handle(task_id).finished(timeout=60)
            assert (task.status, task.attempts, task.crashes) == (TaskStatus.COMPLETED, 2, 1)
            assert [error.code for error in task.errors] == ["lease_expired"]


@pytest.mark.parametrize("urls", ["embedded"], indirect=True)
async def test_a_task_that_killed_its_worker_too_often_is_not_begun_again(
    run: Run, settings: Callable[..., Settings]
) -> None:
    task_id = await left_running(settings(), crashes=2)
    async with run() as framework:
        task = await framework.get(task_id)
        assert (task.status, task.attempts, task.crashes) == (TaskStatus.DEAD_LETTER, 1, 3)


@pytest.mark.parametrize("urls", ["embedded"], indirect=True)
async def test_a_program_that_only_submits_takes_nothing(run: Run, settings: Callable[..., Settings]) -> None:
    task_id = await left_running(settings())
    framework = TaskFramework(settings())
    async with framework.store_only():
        assert (await framework.get(task_id)).status is TaskStatus.RUNNING


@pytest.mark.parametrize("urls", ["servers"], indirect=True)
async def test_beside_other_processes_a_task_is_taken_over_only_after_its_lease(
    run: Run, settings: Callable[..., Settings]
) -> None:
    task_id = await left_running(settings())
    async with run() as framework:
        assert await (await framework.submit("count-words", {"text": "one"})).result(timeout=60) == {"words": 1}
        assert (await framework.get(task_id)).status is TaskStatus.RUNNING
