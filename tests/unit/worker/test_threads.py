"""The thread pool: a thread cannot be ended, so it has a grace, and its place is free only when it is done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import cast

import pytest

from taskframework import BackgroundTaskExecutable, TaskContext, TaskOptions
from taskframework.clock import SystemClock
from taskframework.model.outcome import Failed, Outcome, Released, Succeeded
from taskframework.model.transitions import Fence
from taskframework.moves import TaskMoves
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.factories import new_task
from taskframework.worker.attempt import RunningAttempt, StopReason
from taskframework.worker.executor import TaskExecutorService
from taskframework.worker.threads import ThreadPool
from tests.support.families import NO_FAMILIES
from tests.unit.worker.process_tasks import Control, context_of

FOR_EVER = 3600.0


class Gated(BackgroundTaskExecutable[str, str]):
    """Does what the parameters name when it is let go on."""

    task_type = "gated"

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()

    def execute(self, context: TaskContext[str]) -> str:
        self.entered.set()
        if context.parameters == "looks":
            while not context.is_cancel_requested:
                self.go_on.wait(0.001)
            return "given up"
        self.go_on.wait(20)
        if context.parameters == "fails":
            raise ValueError("bad input")
        return "finished"


class Brief(Gated):
    """Runs longer than its timeout."""

    options = TaskOptions(timeout=timedelta(milliseconds=20))


class Quick(Gated):
    """Ends within its timeout, on a busy machine too."""

    options = TaskOptions(timeout=timedelta(seconds=2))


@pytest.fixture
async def executor() -> AsyncIterator[TaskExecutorService]:
    service = TaskExecutorService(cast(TaskMoves, None), SystemClock(), NO_FAMILIES, threads=1, processes=1)
    yield service
    await service.close()


@pytest.fixture
def gated() -> Iterator[Gated]:
    code = Gated()
    yield code
    code.go_on.set()


def with_grace(executor: TaskExecutorService, grace: float) -> None:
    executor._threads._grace = grace


def begin(
    executor: TaskExecutorService, code: Gated, parameters: str = ""
) -> tuple[RunningAttempt, asyncio.Task[Outcome]]:
    registration = TaskRegistry().register(code)
    task = new_task(parameters=parameters, attempts=1)
    attempt = RunningAttempt(task, Fence(task.task_id, 1, "claim"), 0)
    return attempt, asyncio.create_task(executor.execute(registration, attempt))


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.RELEASED])
async def test_thread_code_that_finishes_within_the_grace_has_its_result(
    executor: TaskExecutorService, gated: Gated, reason: StopReason
) -> None:
    with_grace(executor, FOR_EVER)
    attempt, running = begin(executor, gated)
    await asyncio.to_thread(gated.entered.wait, 20)
    attempt.stop(reason)
    asyncio.get_running_loop().call_later(0.05, gated.go_on.set)
    assert await running == Succeeded("finished")


async def test_thread_code_that_fails_within_the_grace_is_a_failure(
    executor: TaskExecutorService, gated: Gated
) -> None:
    with_grace(executor, FOR_EVER)
    attempt, running = begin(executor, gated, "fails")
    await asyncio.to_thread(gated.entered.wait, 20)
    attempt.stop(StopReason.RELEASED)
    asyncio.get_running_loop().call_later(0.05, gated.go_on.set)
    outcome = await running
    assert isinstance(outcome, Failed)
    assert outcome.error.message == "bad input"


async def test_a_value_that_code_returns_because_it_was_asked_to_stop_is_no_result(
    executor: TaskExecutorService, gated: Gated
) -> None:
    with_grace(executor, FOR_EVER)
    attempt, running = begin(executor, gated, "looks")
    await asyncio.to_thread(gated.entered.wait, 20)
    attempt.stop(StopReason.RELEASED)
    assert await running == Released()


async def test_code_sees_that_its_time_is_over(executor: TaskExecutorService) -> None:
    with_grace(executor, FOR_EVER)
    _, running = begin(executor, Brief(), "looks")
    outcome = await running
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "timeout"
    next_one = Gated()
    next_one.go_on.set()
    assert await begin(executor, next_one)[1] == Succeeded("finished"), "the only thread is still at work"


async def test_a_thread_that_is_left_behind_keeps_its_place_until_it_ends(
    executor: TaskExecutorService, gated: Gated, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "taskframework.worker.threads")
    with_grace(executor, 0)
    attempt, running = begin(executor, gated)
    await asyncio.to_thread(gated.entered.wait, 20)
    attempt.stop(StopReason.CANCELLED)
    assert isinstance(await running, Failed)

    next_one = Quick()
    next_one.go_on.set()
    _, running = begin(executor, next_one)
    # Longer than its timeout, which must not run while it waits.
    done, _ = await asyncio.wait([running], timeout=2.1)
    assert not done
    assert not next_one.entered.is_set()
    assert [(record.levelname, record.getMessage()[:27]) for record in caplog.records] == [
        ("INFO", f"task test-task {attempt.task.task_id}"[:27]),
        ("INFO", "no thread is free (worker.m"),
    ]
    gated.go_on.set()
    assert await running == Succeeded("finished")


async def test_a_second_cancellation_leaves_the_thread_behind_at_once(gated: Gated) -> None:
    pool = ThreadPool(1, grace=FOR_EVER)
    started = asyncio.Event()
    run = asyncio.create_task(pool.run(gated.execute, context_of("", Control()), started.set))
    await started.wait()
    run.cancel()
    assert not (await asyncio.wait([run], timeout=0.05))[0]
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    pool.close()
