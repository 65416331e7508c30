"""Rate limits from submission to execution: how many begin, what waits meanwhile, and what does not."""

from __future__ import annotations

import asyncio
import itertools
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from taskframework import (
    BackgroundTaskExecutable,
    RateLimit,
    RetryableError,
    TaskContext,
    TaskHandle,
    TaskOptions,
    TaskStatus,
)
from taskframework.testing.eventually import eventually
from tests.flow.conftest import BOTH, Run

#: As good as never another one while a test runs.
NEVER = 0.0001
#: How long a bucket is held.
HELD = timedelta(seconds=1.5)


class Limited(BackgroundTaskExecutable[None, int]):
    """Begins as its bucket allows."""

    task_type = "limited"
    options = TaskOptions(rate_limit="openai")
    began: ClassVar[list[float]] = []

    async def execute(self, context: TaskContext[None]) -> int:
        self.began.append(asyncio.get_running_loop().time())
        return context.attempt


class Parameters(BaseModel):
    tenant: str


class Keyed(BackgroundTaskExecutable[Parameters, int]):
    """Begins as the bucket of its tenant allows."""

    task_type = "keyed"
    options = TaskOptions(rate_limit=RateLimit("openai", key="tenant"))

    async def execute(self, context: TaskContext[Parameters]) -> int:
        return context.attempt


class Told(BackgroundTaskExecutable[None, int]):
    """Is told at its first attempt to come later."""

    task_type = "told"
    options = TaskOptions(rate_limit="openai")

    async def execute(self, context: TaskContext[None]) -> int:
        if context.attempt == 1:
            raise RetryableError("429", delay=HELD, pause_limit=True)
        return context.attempt


def limiter(rate: float, burst: int) -> dict[str, Any]:
    return {"providers": {"openai": {"rate": rate, "burst_capacity": burst}}}


@pytest.fixture(autouse=True)
def _nothing_began() -> None:
    Limited.began.clear()


async def test_no_more_begin_than_the_bucket_allows_and_no_attempt_is_counted(run: Run) -> None:
    async with run(extra=[Limited], rate_limiter=limiter(20, 5)) as framework:
        submitted_at = asyncio.get_running_loop().time()
        handles = [await framework.submit("limited") for _ in range(30)]
        for handle in handles:
            assert await handle.result(timeout=60) == 1
    assert len(Limited.began) == 30
    # The bucket was full then. Each may begin late, so nothing is said of the times between them.
    assert Limited.began[-1] - submitted_at > 0.95 * 25 / 20


async def test_a_task_that_waits_for_a_permit_holds_up_no_other_type(run: Run) -> None:
    sections: dict[str, Any] = {"rate_limiter": limiter(NEVER, 1), "worker": {"concurrency": 2}}
    async with run(extra=[Limited], **sections) as framework:
        limited = [await framework.submit("limited") for _ in range(20)]
        await eventually(lambda: len(Limited.began) == 1)
        others = [await framework.submit("counts") for _ in range(20)]
        for handle in others:
            assert await handle.result(timeout=60) == 1
        assert len(Limited.began) == 1
        tasks = [await handle.task() for handle in limited]
    assert sorted((task.status, task.attempts) for task in tasks) == [
        (TaskStatus.COMPLETED, 1),
        *[(TaskStatus.QUEUED, 0)] * 19,
    ]


async def test_an_empty_bucket_of_one_key_holds_up_no_other_key(run: Run) -> None:
    async with run(extra=[Keyed], rate_limiter=limiter(NEVER, 2)) as framework:
        busy = [await framework.submit("keyed", {"tenant": "busy"}) for _ in range(10)]
        others = [await framework.submit("keyed", {"tenant": f"tenant {at}"}) for at in range(10)]
        for handle in others:
            assert await handle.result(timeout=60) == 1

        async def is_put_off() -> bool:
            tasks = [await handle.task() for handle in busy]
            return sum(task.waits_for_limit is not None for task in tasks) == 8

        await eventually(is_put_off)
        waiting = [task for task in [await handle.task() for handle in busy] if task.status is TaskStatus.QUEUED]
    assert {task.attempts for task in waiting} == {0}
    turns = sorted(task.waits_for_limit.until for task in waiting if task.waits_for_limit is not None)
    gaps = {(later - earlier).total_seconds() for earlier, later in itertools.pairwise(turns)}
    assert all(gap == pytest.approx(1 / NEVER, abs=30) for gap in gaps), "one turn behind the other"


async def test_a_task_runs_when_its_turn_has_come(run: Run) -> None:
    async with run(extra=[Keyed], rate_limiter=limiter(4, 1)) as framework:
        handles = [await framework.submit("keyed", {"tenant": "busy"}) for _ in range(12)]
        for handle in handles:
            assert await handle.result(timeout=60) == 1
        tasks = [await handle.task() for handle in handles]
    # A message each to begin with, and one at its turn for most of them.
    assert sum(task.waits_for_limit is not None for task in tasks) >= 5


async def test_a_task_that_its_provider_refuses_for_now_holds_the_bucket(run: Run) -> None:
    async with run(extra=[Told, Limited], rate_limiter=limiter(1_000, 100)) as framework:
        told = await framework.submit("told")
        held_at = await eventually(lambda: _held_at(told))
        limited = await framework.submit("limited")
        await limited.result(timeout=60)
        began_at = (await limited.task()).started_at
        assert began_at is not None
        assert began_at - held_at > 0.95 * HELD
        assert await told.result(timeout=60) == 2


async def _held_at(handle: TaskHandle) -> datetime | None:
    """When the first attempt said that all are to come later."""
    return next((entry.at for entry in (await handle.task()).history if entry.type == "retrying"), None)


async def test_a_stop_sends_back_what_waits_for_a_permit(run: Run) -> None:
    async with run(extra=[Limited], rate_limiter=limiter(NEVER, 1)) as framework:
        handles = [await framework.submit("limited") for _ in range(3)]
        await eventually(lambda: len(Limited.began) == 1)
        assert framework.process.worker is not None
        async with asyncio.timeout(20):
            await framework.process.worker.stop()
        tasks = [await handle.task() for handle in handles]
    assert sorted(task.attempts for task in tasks) == [0, 0, 1]


@pytest.mark.parametrize("urls", BOTH, indirect=True)
async def test_after_the_rate_was_raised_nobody_waits_as_long_as_the_old_one_says(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskframework.model.rate_limits.IDLE_SECONDS", 0.2)
    monkeypatch.setattr("taskframework.wiring.repairs._TURNS_INTERVAL", timedelta(seconds=0.2))
    async with run(extra=[Keyed], rate_limiter=limiter(0.5, 1)) as framework:
        handles = [await framework.submit("keyed", {"tenant": "busy"}) for _ in range(100)]
        await handles[0].result(timeout=60)
        await eventually(lambda: _has_turn(handles[-1]))
    async with run(extra=[Keyed], rate_limiter=limiter(100, 1)) as framework:
        # At the old rate the last one begins after 200 s.
        assert await framework.handle(handles[-1].task_id).result(timeout=60) == 1


async def _has_turn(handle: TaskHandle[int]) -> bool:
    return (await handle.task()).waits_for_limit is not None
