"""Signals, sub-tasks and batches from both clients, against a running interface."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from taskframework import (
    ApiUnavailableError,
    BackgroundTaskExecutable,
    BatchConflictError,
    InvalidParametersError,
    NonRetryableError,
    TaskContext,
    TaskStatus,
    TransitionRefusedError,
)
from taskframework.api.server import serving
from tests.chaos.proxy import Proxy
from tests.flow.conftest import Run
from tests.support.clients import KINDS, client_of
from tests.support.eventually import eventually

pytestmark = pytest.mark.parametrize("urls", ["embedded"], indirect=True)


class Doubles(BackgroundTaskExecutable[int, int]):
    """Fails for negative numbers as long as `is_broken`."""

    task_type = "doubles"
    is_broken = True

    async def execute(self, context: TaskContext[int]) -> int:
        if context.parameters < 0 and self.is_broken:
            raise NonRetryableError("negative")
        return 2 * context.parameters


class Spreads(BackgroundTaskExecutable[int, None]):
    """A parent of so many."""

    task_type = "spreads"

    async def execute(self, context: TaskContext[int]) -> None:
        await context.submit_subtasks("doubles", range(context.parameters))


class Asks(BackgroundTaskExecutable[None, Any]):
    """Waits for a word."""

    task_type = "asks"

    async def execute(self, context: TaskContext[None]) -> Any:
        return context.wait_for(signal="approved", timeout=timedelta(minutes=1))

    async def on_signal(self, context: TaskContext[None], signal: Any) -> Any:
        return signal.payload


Open = Callable[[], AbstractAsyncContextManager[tuple[Any, Proxy]]]


@pytest.fixture(params=KINDS)
def opened(run: Run, request: pytest.FixtureRequest) -> Open:
    @asynccontextmanager
    async def stage() -> AsyncIterator[tuple[Any, Proxy]]:
        Doubles.is_broken = True
        async with (
            run(extra=[Doubles, Spreads, Asks]) as framework,
            serving(framework) as server,
            Proxy(*server.address) as proxy,
        ):
            client = client_of(request.param, f"http://127.0.0.1:{proxy.port}")
            yield client, proxy
            await client.close()

    return stage


async def test_a_signal_is_heard_once_even_if_its_answer_is_lost(opened: Open) -> None:
    async with opened() as (client, proxy):
        task = await client.submit("asks")

        async def waits() -> bool:
            return bool((await client.get(task.task_id)).status is TaskStatus.WAITING)

        await eventually(waits)
        proxy.cut_after("down", 0)
        await client.signal(task.task_id, "approved", {"by": "ada"})
        assert await client.wait(task.task_id, timeout=20) == {"by": "ada"}
        types = [entry["type"] for entry in (await client.get(task.task_id)).history]
        assert types.count("started") == 2, types
        with pytest.raises(TransitionRefusedError) as refused:
            await client.signal(task.task_id, "approved")
        assert refused.value.status == "COMPLETED"


async def test_sub_tasks_are_listed_in_their_order(opened: Open) -> None:
    async with opened() as (client, _):
        task = await client.submit("spreads", 60)
        await client.wait(task.task_id, timeout=20)
        subtasks = [one async for one in client.subtasks(task.task_id)]
        assert [one.result for one in subtasks] == [2 * n for n in range(60)]
        assert {one.parent_task_id for one in subtasks} == {task.task_id}
        assert [one async for one in client.subtasks(task.task_id, status="FAILED")] == []


@pytest.mark.parametrize("kind", [list, iter])
async def test_a_batch_from_its_submission_to_its_results(opened: Open, kind: Any) -> None:
    async with opened() as (client, proxy):
        proxy.cut_after("down", 0)
        items = list(range(-2, 100))
        if kind is iter:  # what was lost on the way and cannot be made again is submitted once more
            with pytest.raises(ApiUnavailableError):
                await client.submit_batch("doubles", iter(items), idempotency_key="b", priority="low")
        batch = await client.submit_batch("doubles", kind(items), idempotency_key="b", priority="low")
        assert (batch.total, batch.is_sealed) == (102, True)
        await client.finished(batch.batch_id, timeout=30)
        done = await client.batch(batch.batch_id)
        assert (done.succeeded, done.failed, done.percent) == (100, 2, 100)
        assert done.counts == {"COMPLETED": 100, "FAILED": 2}
        assert [one.batch_id async for one in client.batches()] == [batch.batch_id]
        results = [one async for one in client.batch_results(batch.batch_id)]
        assert [one.index for one in results] == list(range(102))
        assert [one.result for one in results[2:]] == [2 * n for n in items[2:]]
        assert results[0].error["message"] == "negative"
        Doubles.is_broken = False
        assert (await client.retry_failed(batch.batch_id)).status is TaskStatus.WAITING


async def test_what_is_refused_is_raised_as_inside(opened: Open) -> None:
    async with opened() as (client, _):
        with pytest.raises(InvalidParametersError, match="Item 1"):
            await client.submit_batch("doubles", [1, "two"])
        await client.submit_batch("doubles", iter([1, 2]), idempotency_key="b")
        with pytest.raises(BatchConflictError) as other:
            await client.submit_batch("doubles", iter([1, 3]), idempotency_key="b")
        [batch] = [one async for one in client.batches()]
        assert (other.value.index, other.value.batch_id) == (1, batch.batch_id)


async def test_a_batch_is_cancelled_and_followed(opened: Open) -> None:
    async with opened() as (client, _):
        batch = await client.submit_batch("waits", [None] * 5)
        assert (await client.cancel_batch(batch.batch_id, reason="late")).status is TaskStatus.CANCELLED
        events = [event.type async for event in client.stream(batch.batch_id)]
        assert events[-1] == "task.cancelled"
