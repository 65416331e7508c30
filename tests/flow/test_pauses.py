"""Pauses: nothing of a paused type begins in any worker, nothing is lost, and all of it begins when it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest

from taskframework import BackgroundTaskExecutable, RetryableError, TaskContext, TaskFramework, TaskStatus
from taskframework.operations.handle import TaskHandle
from taskframework.submission.producer import TaskMessageProducer
from taskframework.testing.eventually import eventually
from tests.flow.conftest import BOTH, Run
from tests.support.kitchen_sink import Waits

# The fast path carries the same messages for these as for the tests of the lifecycle, which run without it too.
pytestmark = pytest.mark.parametrize("urls", BOTH, indirect=True)

TASKS = 40
SLOTS = 10


class FailsOnce(BackgroundTaskExecutable[None, int]):
    """Fails at its first attempt, once it may."""

    task_type = "fails-once"
    gate: ClassVar[asyncio.Event]
    started: ClassVar[bool]

    async def execute(self, context: TaskContext[None]) -> int:
        type(self).started = True
        await self.gate.wait()
        if context.attempt == 1:
            raise RetryableError("not yet")
        return context.attempt


@pytest.fixture(autouse=True)
def _afresh() -> None:
    FailsOnce.gate, FailsOnce.started = asyncio.Event(), False


@asynccontextmanager
async def paused(framework: TaskFramework, task_type: str) -> AsyncIterator[None]:
    """As long as this lasts, as this process knows it."""
    await framework.services.queues.pause(task_type, by="tests", reason="to see what happens")
    await framework.process.pauses.refresh()  # now, instead of within a second
    yield
    await framework.services.queues.resume(task_type)


async def test_tasks_submitted_during_a_pause_begin_when_the_pause_ends(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    send = TaskMessageProducer._send_message

    async def noting(self: TaskMessageProducer, dispatch: Any) -> bool:
        sent.append(dispatch.message.task_type)
        return await send(self, dispatch)

    monkeypatch.setattr(TaskMessageProducer, "_send_message", noting)
    recovery = {"dispatch_grace": "50ms", "sweep_interval": "50ms"}  # due for the sweeper at once
    async with run(recovery=recovery) as framework:
        async with paused(framework, "count-words"):
            handles = [await framework.submit("count-words", {"text": "one two"}) for _ in range(TASKS)]
            other = await framework.submit("flaky", {"succeed_at": 2})
            assert await other.result(timeout=60) == 2, "another type, with its retry"
            store = framework.services.store
            await eventually(lambda: _are_put_off(handles, store.now()), what="the sweeper has seen them all")
            assert "count-words" not in sent
            assert {(await handle.task()).status for handle in handles} == {TaskStatus.QUEUED}
        for handle in handles:
            await handle.result(timeout=60)
        tasks = [await handle.task() for handle in handles]
        assert {(task.status, task.attempts) for task in tasks} == {(TaskStatus.COMPLETED, 1)}


async def _are_put_off(handles: Sequence[TaskHandle], now: datetime) -> bool:
    """Whether the sweeper has put them off, for the 20 seconds of a message that was sent."""
    due = [(await handle.task()).next_dispatch_at for handle in handles]
    return all(time is not None and time > now + timedelta(seconds=10) for time in due)


async def test_during_a_pause_deliveries_in_hand_do_not_begin_and_running_tasks_continue(run: Run) -> None:
    async with run(concurrency=SLOTS) as framework:
        handles = [await framework.submit("waits") for _ in range(2 * SLOTS)]
        await eventually(lambda: Waits.started == SLOTS)
        worker = framework.process.worker
        assert worker is not None
        async with paused(framework, "waits"):
            await eventually(lambda: "waits" not in worker._intake._consumed)
            assert worker._consumer.lanes.waiting, "nothing is in hand; the test shows nothing"
            Waits.gate.set()
            await (await framework.submit("count-words", {"text": "one"})).result(timeout=60)
            await eventually(lambda: not worker._consumer.lanes.waiting)
            assert (Waits.started, worker.problem) == (SLOTS, None)
            assert b'tasks_paused{task_type="waits"} 1.0' in framework.process.metrics.exposition()
        for handle in handles:
            await handle.result(timeout=60)
        assert {(await handle.task()).attempts for handle in handles} == {1}
        assert b"tasks_paused{" not in framework.process.metrics.exposition()


async def test_a_retry_of_a_paused_task_type_waits_too(run: Run) -> None:
    async with run(extra=[FailsOnce], retry={"initial_delay": "300ms"}) as framework:
        handle = await framework.submit("fails-once")
        await eventually(lambda: FailsOnce.started)
        async with paused(framework, "fails-once"):
            FailsOnce.gate.set()
            await eventually(lambda: _is_due_later(framework, handle.task_id), what="the sweeper has put it off")
            assert (await handle.task()).status is TaskStatus.RETRYING
        assert await handle.result(timeout=60) == 2


async def _is_due_later(framework: TaskFramework, task_id: str) -> bool:
    task, now = await framework.handle(task_id).task(), framework.services.store.now()
    return task.next_dispatch_at is not None and task.not_before < now < task.next_dispatch_at
