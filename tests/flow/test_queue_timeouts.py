"""Queue timeouts: what no worker begins in time is a dead letter; what a limit holds back is not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskframework import BackgroundTaskExecutable, TaskContext, TaskOptions, TaskStatus
from taskframework.model.scope import EVERYONE
from taskframework.operations.handle import TaskHandle
from taskframework.testing.eventually import eventually
from tests.flow.conftest import BOTH, Run
from tests.support.kitchen_sink import Waits

# The fast path carries the same messages for these as for the tests of the lifecycle, which run without it too.
pytestmark = pytest.mark.parametrize("urls", BOTH, indirect=True)

SOON = timedelta(milliseconds=300)
#: As good as never another one while a test runs.
NEVER = {"providers": {"openai": {"rate": 0.0001, "burst_capacity": 1}}}
SWEEPS = {"sweep_interval": "50ms"}


class Impatient(BackgroundTaskExecutable[None, int]):
    task_type = "impatient"
    #: Long enough for a busy machine to begin the task once it is replayed.
    options = TaskOptions(queue_timeout=timedelta(seconds=3))

    async def execute(self, context: TaskContext[None]) -> int:
        return context.attempt


class Limited(Impatient):
    task_type = "limited"
    options = TaskOptions(queue_timeout=SOON, rate_limit="openai")


class Takes(Impatient):
    """Takes the only permit. It may begin late: a busy machine is slower than `SOON`."""

    task_type = "takes"
    options = TaskOptions(rate_limit="openai")


async def _is_dead(handle: TaskHandle) -> bool:
    return (await handle.task()).status is TaskStatus.DEAD_LETTER


async def test_a_task_that_no_worker_begins_in_time_is_a_dead_letter_until_its_replay(run: Run) -> None:
    async with run(extra=[Impatient], concurrency=1, recovery=SWEEPS) as framework:
        await framework.submit("waits")
        await eventually(lambda: Waits.started == 1, what="the only slot is taken")
        handle = await framework.submit("impatient")
        await eventually(lambda: _is_dead(handle), timeout=20)
        task = await handle.task()
        assert (task.error and task.error.code, task.attempts) == ("queue_timeout", 0)
        Waits.gate.set()
        await framework.services.tasks.retry(task.task_id, EVERYONE, by="tests")
        assert await handle.result(timeout=60) == 1


async def test_a_task_that_waits_for_a_permit_does_not_reach_its_queue_timeout(run: Run) -> None:
    async with run(extra=[Limited, Takes], recovery=SWEEPS, rate_limiter=NEVER) as framework:
        first = await framework.submit("takes")
        assert await first.result(timeout=60) == 1
        waiting = [await framework.submit("limited") for _ in range(20)]
        since = [(await handle.task()).start_by for handle in waiting]

        async def waits_anew() -> bool:
            times = [(await handle.task()).start_by for handle in waiting]
            return all(later and before and later > before for later, before in zip(times, since, strict=True))

        await eventually(waits_anew, timeout=20)
        assert {(await handle.task()).status for handle in waiting} == {TaskStatus.QUEUED}
