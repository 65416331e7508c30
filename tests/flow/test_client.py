"""Both clients against a running interface, over connections that break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskframework import (
    ApiUnavailableError,
    BatchItemError,
    IdempotencyConflictError,
    InvalidParametersError,
    InvalidRequestError,
    ResultTimeoutError,
    TaskFailedError,
    TaskFramework,
    TaskNotFoundError,
    TaskStatus,
    TransitionRefusedError,
    UnknownTaskTypeError,
)
from taskframework.api import task_follower
from taskframework.api.server import serving
from taskframework.client import TaskClient
from taskframework.client.answers import RemoteTask
from taskframework.client.refusals import with_item
from taskframework.model.batch_status import BatchStatus
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.testing.eventually import eventually
from tests.chaos.proxy import Proxy
from tests.flow.conftest import Run
from tests.support.clients import KINDS, client_of
from tests.support.kitchen_sink import Counts, Text, Waits

pytestmark = pytest.mark.parametrize("urls", ["embedded"], indirect=True)

TEXT = {"text": "one two three"}


@dataclass
class Stage:
    """A client of an interface behind a proxy."""

    client: Any
    proxy: Proxy
    framework: TaskFramework


Open = Callable[..., AbstractAsyncContextManager[Stage]]


@pytest.fixture(params=KINDS)
def opened(run: Run, request: pytest.FixtureRequest) -> Open:
    @asynccontextmanager
    async def stage(**options: Any) -> AsyncIterator[Stage]:
        async with run() as framework, serving(framework) as server, Proxy(*server.address) as proxy:
            client = client_of(request.param, f"http://127.0.0.1:{proxy.port}", **options)
            yield Stage(client, proxy, framework)
            await client.close()

    return stage


async def test_a_task_from_its_submission_to_its_result(opened: Open) -> None:
    async with opened() as stage:
        deadline = datetime.now(UTC) + timedelta(minutes=5)
        task = await stage.client.submit("count-words", Text(**TEXT), priority="high", deadline=deadline)
        assert (task.status, task.parameters, task.priority) == (TaskStatus.QUEUED, TEXT, "high")
        assert abs(task.deadline - deadline) < timedelta(milliseconds=1)
        assert await stage.client.wait(task.task_id, timeout=20) == {"words": 3}
        done = await stage.client.get(task.task_id)
        assert (done.status, done.attempt, done.history[-1]["type"]) == (TaskStatus.COMPLETED, 1, "completed")
        assert done == await stage.client.finished(task.task_id)


async def test_waiting_hears_the_end_of_a_running_task(opened: Open) -> None:
    async with opened() as stage:
        task = await stage.client.submit("waits")
        waiting = asyncio.create_task(stage.client.wait(task.task_id, timeout=20))
        await eventually(lambda: Waits.started)
        Waits.gate.set()
        assert await waiting == "done"


async def test_waiting_ends_when_its_time_is_over(opened: Open) -> None:
    async with opened() as stage:
        task = await stage.client.submit("waits")
        with pytest.raises(ResultTimeoutError):
            await stage.client.wait(task.task_id, timeout=0.05)
        cancelled = await stage.client.cancel(task.task_id, reason="not needed")
        with pytest.raises(TaskFailedError, match="CANCELLED"):
            await stage.client.wait(cancelled.task_id, timeout=20)
        asked = [entry["data"] for entry in (await stage.client.get(task.task_id)).history if "cancel" in entry["type"]]
        assert asked[0]["reason"] == "not needed"


async def test_a_failed_task_is_queued_again_by_a_retry(opened: Open) -> None:
    async with opened() as stage:
        task = await stage.client.submit("broken")
        with pytest.raises(TaskFailedError, match="ValueError: a bug") as failed:
            await stage.client.wait(task.task_id, timeout=20)
        assert failed.value.error is not None
        assert failed.value.error["retryable"] is False
        error = (await stage.client.get(task.task_id)).error
        assert error is not None
        assert (error.code, error.type, error.message) == ("execution_error", "ValueError", "a bug")
        assert (error.retryable, error.fingerprint) == (False, error["fingerprint"])
        assert error == failed.value.error == json.loads(json.dumps(error)), "it is a dictionary still"
        assert (await stage.client.retry(task.task_id)).generation == 1
        assert (await stage.client.finished(task.task_id, timeout=20)).status is TaskStatus.FAILED


async def test_lists_go_on_over_their_pages(opened: Open) -> None:
    async with opened() as stage:
        wanted = [{"task_type": "count-words", "parameters": TEXT} for _ in range(60)]
        ids = [task.task_id for task in await stage.client.submit_many([*wanted, {"task_type": "refuses"}])]
        for task_id in ids:
            await stage.client.finished(task_id, timeout=20)
        listed = [task.task_id async for task in stage.client.list_tasks(status="COMPLETED", task_type="count-words")]
        assert sorted(listed) == sorted(ids[:-1])
        assert len([task async for task in stage.client.list_tasks()]) == 61
        found = await stage.client.get(listed[0])
        sought = stage.client.list_tasks(created_after=found.created_at, correlation_id=found.correlation_id)
        assert [task.task_id async for task in sought] == [found.task_id]
        assert found.finished_at is not None
        ended = stage.client.list_tasks(finished_after=found.finished_at, correlation_id=found.correlation_id)
        assert [task.task_id async for task in ended] == [found.task_id]
        assert [task async for task in stage.client.list_tasks(finished_before=found.created_at)] == []
        assert [task async for task in stage.client.list_tasks(user_id="nobody")] == []
        with pytest.raises(InvalidRequestError, match="status"):
            [task async for task in stage.client.list_tasks(status="DONE")]


async def test_an_error_of_the_interface_is_raised_by_the_client(opened: Open) -> None:
    async with opened() as stage:
        with pytest.raises(UnknownTaskTypeError, match="Did you mean 'count-words'") as unknown:
            await stage.client.submit("count-word")
        assert unknown.value.task_type == "count-word"
        with pytest.raises(InvalidParametersError) as wrong:
            await stage.client.submit("count-words", {"text": []})
        assert wrong.value.problems[0]["field"] == "text"
        with pytest.raises(InvalidRequestError) as option:
            await stage.client.submit("count-words", TEXT, max_attempts=0)
        assert option.value.field == "max_attempts"
        task = await stage.client.submit("count-words", TEXT, idempotency_key="mine")
        with pytest.raises(IdempotencyConflictError) as conflict:
            await stage.client.submit("count-words", {"text": "other"}, idempotency_key="mine")
        assert (conflict.value.key, conflict.value.task_id) == ("mine", task.task_id)
        with pytest.raises(TaskNotFoundError):
            await stage.client.get("nothing")
        await stage.client.wait(task.task_id, timeout=20)
        with pytest.raises(TransitionRefusedError) as refused:
            await stage.client.cancel(task.task_id)
        assert (refused.value.task_id, refused.value.status) == (task.task_id, "COMPLETED")
        outcomes = await stage.client.submit_many([{"task_type": "nothing"}, {"task_type": "counts"}])
        assert [type(outcome) for outcome in outcomes] == [UnknownTaskTypeError, RemoteTask]


async def test_a_submission_whose_answer_is_lost_is_stored_once(opened: Open) -> None:
    async with opened() as stage:
        stage.proxy.cut_after("down", 0)
        task = await stage.client.submit("counts")
        stage.proxy.cut_after("down", 0)
        many = await stage.client.submit_many([{"task_type": "counts"}] * 3)
        stored = {task.task_id, *(one.task_id for one in many)}
        assert {task.task_id async for task in stage.client.list_tasks()} == stored
        assert len(stored) == 4
        for task_id in stored:
            assert await stage.client.wait(task_id, timeout=20) == 1
            assert Counts.executions[task_id] == 1


async def test_events_come_once_and_in_order_over_connections_that_break(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_follower, "HEARTBEAT_SECONDS", 0.05)
    async with opened() as stage:
        task = await stage.client.submit("flaky", {"succeed_at": 4, "delay": 0.01})
        heard = []
        async for event in stage.client.stream(task.task_id):
            heard.append((event.sequence, event.type))
            stage.proxy.cut()
        attempts = ["task.started", "task.retrying"] * 3
        assert heard == list(enumerate(["task.submitted", *attempts, "task.started", "task.completed"], 1))
        rest = [event.sequence async for event in stage.client.stream(task.task_id, after=7)]
        assert rest == [8, 9]
        assert [event async for event in stage.client.stream(task.task_id, after=9)] == []


async def test_a_wait_goes_on_over_connections_that_break(opened: Open) -> None:
    async with opened() as stage:
        task = await stage.client.submit("waits")
        waiting = asyncio.create_task(stage.client.wait(task.task_id))
        await eventually(lambda: stage.proxy.connections)
        await eventually(lambda: Waits.started)
        stage.proxy.cut(refuse=True)
        Waits.gate.set()
        await stage.framework.handle(task.task_id).finished(timeout=60)
        stage.proxy.release()
        assert await waiting == "done"


async def test_a_client_without_patience_raises_that_nobody_answers(opened: Open) -> None:
    async with opened(patience=0) as stage:
        stage.proxy.cut(refuse=True)
        with pytest.raises(ApiUnavailableError):
            await stage.client.submit("counts")
        with pytest.raises(ApiUnavailableError):
            [event async for event in stage.client.stream("t-1")]


async def test_an_interface_that_does_not_answer_in_time_is_an_error(opened: Open) -> None:
    async with opened(timeout=0.05, patience=0) as stage:
        stage.proxy.hold("down")
        with pytest.raises(ApiUnavailableError, match="No answer from"):
            await stage.client.get("t-1")
        stage.proxy.release()


async def test_the_stored_part_of_a_refused_upload_is_cancelled_if_nobody_can_continue_it(opened: Open) -> None:
    items: list[Any] = [{"text": "x"}] * 1_500 + [{"text": 5}]
    async with opened() as stage:
        with pytest.raises(InvalidParametersError, match=r"^Item 1500: ") as told:
            await stage.client.submit_batch("count-words", items)
        assert [wrong["field"] for wrong in told.value.problems] == ["items.1500.text"]
        named = with_item(told.value)
        assert isinstance(named, BatchItemError)
        assert named.index == 1_500
        assert named.cause.message.startswith("The parameters are not valid for task type")

        with pytest.raises(InvalidParametersError):
            await stage.client.submit_batch("count-words", items, idempotency_key="mine")
        listed = (await stage.framework.services.batches.list_batches(EVERYONE, TaskFilter(), limit=9)).items
        assert [one.status for one in listed] == [TaskStatus.WAITING, TaskStatus.CANCELLED]
        assert listed[0].batch.idempotency_key == "mine"


async def test_an_interrupted_upload_is_cancelled_if_nobody_can_continue_it(run: Run) -> None:
    async def items() -> AsyncIterator[dict[str, str]]:
        for _ in range(5_000):
            yield TEXT
        await asyncio.Event().wait()

    async with (
        run() as framework,
        serving(framework) as server,
        TaskClient("http://{}:{}".format(*server.address)) as client,
    ):
        uploading = asyncio.create_task(client.submit_batch("count-words", items()))

        async def batches() -> Sequence[BatchStatus]:
            return (await framework.services.batches.list_batches(EVERYONE, TaskFilter(), limit=9)).items

        await eventually(batches)
        uploading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await uploading
        assert [one.status for one in await batches()] == [TaskStatus.CANCELLED]
