"""The sweeper repairs and never floods; messages that come early are not lost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import aiormq
import pytest

from taskframework import Settings, TaskFramework
from taskframework.model.message import TaskMessage
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import Priority
from taskframework.testing.eventually import eventually
from tests.flow.conftest import Run
from tests.support.kitchen_sink import ALL

IMPATIENT = {"redispatch": "50ms", "redispatch_max": "50ms", "sweep_interval": "20ms"}


async def depth(framework: TaskFramework) -> int:
    return await framework.process.broker.queue_depth("counts", Priority.NORMAL) or 0


@pytest.mark.parametrize("urls", ["servers"], indirect=True)
async def test_a_queue_that_holds_its_due_tasks_is_left_alone(run: Run) -> None:
    async with run(worker=False, recovery=IMPATIENT) as framework:
        for _ in range(20):
            await framework.submit("counts")
        await eventually(lambda: each_left_alone(framework, 20, times=3))
        assert await depth(framework) == 20


@pytest.mark.parametrize("urls", ["servers"], indirect=True)
async def test_messages_that_are_lost_are_sent_again(run: Run) -> None:
    async with run(worker=False, recovery=IMPATIENT) as framework:
        handles = [await framework.submit("counts") for _ in range(20)]
        await eventually(lambda: each_left_alone(framework, 20, times=1))
        connection = await aiormq.connect(framework.settings.broker.url)
        await (await connection.channel()).queue_purge("tasks.counts.normal")
        await connection.close()
        async with run(recovery=IMPATIENT) as other:
            for handle in handles:
                assert await other.handle(handle.task_id).result(timeout=60) == 1


async def test_a_task_that_was_only_stored_is_swept(run: Run, settings: Callable[..., Settings]) -> None:
    """A command line that submits opens the store and nothing else."""
    submitter = TaskFramework(settings())
    for executable in ALL:
        submitter.register(executable)
    async with submitter.store_only():
        handle = await submitter.submit("counts")
    async with run() as framework:
        assert await framework.handle(handle.task_id).result(timeout=60) == 1


async def test_a_message_that_comes_a_little_early_waits_for_its_time(run: Run) -> None:
    async with run(broker={"delay_limit": "0s"}, recovery={"sweep_interval": "1h"}) as framework:
        handle = await framework.submit("counts", not_before=datetime.now(UTC) + timedelta(milliseconds=500))
        await framework.process.broker.publish(TaskMessage.for_task(await handle.task()))
        assert await handle.result(timeout=60) == 1
        task = await handle.task()
    assert task.started_at is not None
    assert task.started_at >= task.not_before


async def each_left_alone(framework: TaskFramework, number: int, *, times: int) -> bool:
    """Whether the sweeper looked so often at every task whose message waits."""
    tasks = (await framework.services.store.list_tasks(EVERYONE, TaskFilter(), limit=100)).items
    return len(tasks) == number and min(task.dispatches for task in tasks) > times
