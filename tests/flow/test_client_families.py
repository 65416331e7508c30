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
    ParentFinishedError,
    TaskContext,
    TaskNotFoundError,
    TaskStatus,
    TransitionRefusedError,
)
from taskframework.api.server import serving
from taskframework.client.family_readers import ItemResult, TreeEvent
from taskframework.testing.eventually import eventually
from tests.chaos.proxy import Proxy
from tests.flow.conftest import Run
from tests.support.clients import KINDS, client_of
from tests.support.kitchen_sink import Waits

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
    """A parent of so many, or of one that is given a negative number."""

    task_type = "spreads"

    async def execute(self, context: TaskContext[int]) -> None:
        await context.submit_subtasks("doubles", range(context.parameters) or [context.parameters])


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


async def test_a_refused_batch_raises_the_same_errors_as_in_the_framework(opened: Open) -> None:
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


async def with_cuts(proxy: Proxy, values: AsyncIterator[Any]) -> list[Any]:
    """What comes to its end, over connections that are cut behind every ninth value."""
    heard = []
    async for value in values:
        heard.append(value)
        if len(heard) % 9 == 0:
            proxy.cut()
    return heard


async def test_a_stream_of_a_tree_has_each_event_once_and_continues_after_any_event(opened: Open) -> None:
    async with opened() as (client, proxy):
        task = await client.submit("spreads", 30)
        heard: list[TreeEvent] = await with_cuts(proxy, client.stream_tree(task.task_id))
        last: dict[str, int] = {}
        for event in heard:
            assert event.sequence == last.get(event.task_id, 0) + 1, "each once, in its order"
            last[event.task_id] = event.sequence
        everything = {task.task_id, *[one.task_id async for one in client.subtasks(task.task_id)]}
        assert set(last) == everything
        assert [event.type for event in heard if event.task_id == task.task_id][-1] == "task.completed"
        for at in (0, 40, len(heard) - 1):
            rest = client.stream_tree(task.task_id, after=heard[at].place)
            told = {(event.task_id, event.sequence) async for event in rest}
            assert told >= {(event.task_id, event.sequence) for event in heard[at + 1 :]}


async def test_the_items_of_a_batch_come_once_as_they_end(opened: Open) -> None:
    async with opened() as (client, proxy):
        batch = await client.submit_batch("waits", [None] * 25)
        results = client.stream_items(batch.batch_id)
        await eventually(lambda: Waits.started == 25)
        Waits.gate.set()
        heard: list[ItemResult] = await with_cuts(proxy, results)
        assert sorted(one.index for one in heard) == list(range(25))
        assert {one.status for one in heard} == {TaskStatus.COMPLETED}
        rest = [one.index async for one in client.stream_items(batch.batch_id, after=heard[9].place)]
        assert rest == [one.index for one in heard[10:]]


async def test_results_come_in_order_while_the_batch_runs(opened: Open) -> None:
    async with opened() as (client, proxy):
        batch = await client.submit_batch("doubles", [*range(40)])
        heard = await with_cuts(proxy, client.batch_results(batch.batch_id, follow=True))
        assert [(one.index, one.result) for one in heard] == [(n, 2 * n) for n in range(40)]
        rest = [one.index async for one in client.batch_results(batch.batch_id, follow=True, first=38)]
        assert rest == [38, 39]
        assert [one.index async for one in client.batch_results(batch.batch_id, first=38)] == [38, 39]


async def test_a_sub_task_of_a_parent_that_is_over_is_retried_with_it(opened: Open) -> None:
    async with opened() as (client, _):
        task = await client.submit("spreads", -1)
        await client.finished(task.task_id, timeout=20)
        [failed] = [one async for one in client.subtasks(task.task_id, status="FAILED")]
        with pytest.raises(ParentFinishedError, match="reopen") as refused:
            await client.retry(failed.task_id)
        assert (refused.value.task_id, refused.value.parent_id) == (failed.task_id, task.task_id)
        Doubles.is_broken = False
        await client.retry(failed.task_id, reopen=True)
        assert (await client.finished(task.task_id, timeout=20)).status is TaskStatus.COMPLETED


@pytest.mark.parametrize("call", ["stream_tree", "stream_items", "batch_results", "batch_results, followed"])
async def test_following_an_unknown_task_or_batch_raises_an_error(opened: Open, call: str) -> None:
    async with opened() as (client, _):
        name, _, followed = call.partition(", ")
        with pytest.raises(TaskNotFoundError) as told:
            [one async for one in getattr(client, name)("x", **({"follow": True} if followed else {}))]
        assert told.value.task_id == "x"
