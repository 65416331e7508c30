"""Steps on their way into the task: the executor with a store that is late, away, or says that the lease is lost."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest

from taskframework import BackgroundTaskExecutable, TaskContext, TaskOptions
from taskframework.bus import EventBus
from taskframework.clock import SystemClock
from taskframework.errors import StoreUnavailableError
from taskframework.model.outcome import Failed, Outcome, Succeeded
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import Lease, StepOutcome
from taskframework.model.transitions import Fence, Transition
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from taskframework.worker import attempt as attempts
from taskframework.worker.attempt import LeaseLostError, RunningAttempt, StopReason
from taskframework.worker.executor import TaskExecutorService
from taskframework.worker.reports import AttemptReports
from tests.support.families import NO_FAMILIES

Code = Callable[[TaskContext[Any]], Any]
CLOCK = SystemClock()
HOUR = timedelta(hours=1)


class Store:
    """One running task in memory, and a gate before it."""

    def __init__(self) -> None:
        lease = Lease("worker-1", "claim", CLOCK.now() + HOUR)
        running: dict[str, Any] = {
            "status": TaskStatus.RUNNING,
            "fencing_token": 1,
            "attempts": 1,
            "next_dispatch_at": None,
        }
        self.task: Task = new_task(lease=lease, **running)
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0
        self.failures = 0

    async def apply(self, transition: Transition) -> Task | None:
        self.asked += 1
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError
        after = transition.apply(self.task, CLOCK.now())
        self.task = after or self.task
        return after

    def take_away(self) -> None:
        """Another worker has the task now."""
        self.task = self.task.evolve(fencing_token=2)


def moves_of(store: Store) -> TaskMoves:
    return TaskMoves(cast(TaskStore, store), EventBus())


class Running:
    """An attempt, and what runs it."""

    def __init__(self, executor: TaskExecutorService, store: Store) -> None:
        self._executor = executor
        self._store = store
        task = store.task
        self.attempt = RunningAttempt(task, Fence(task.task_id, 1, "claim"), CLOCK.monotonic() + 3600)

    async def __call__(self, code: Code, options: TaskOptions | None = None) -> Outcome:
        chosen = options or TaskOptions()

        class Plain(BackgroundTaskExecutable[Any, Any]):
            task_type = "task"
            options = chosen

            def execute(self, context: TaskContext[Any]) -> Any:
                return code(context)

        class Asynchronous(BackgroundTaskExecutable[Any, Any]):
            task_type = "task"
            options = chosen

            async def execute(self, context: TaskContext[Any]) -> Any:
                return await code(context)

        registration = TaskRegistry().register(Asynchronous if inspect.iscoroutinefunction(code) else Plain)
        return await self._executor.execute(registration, self.attempt)


@pytest.fixture
async def store() -> Store:
    return Store()


@pytest.fixture
async def run(store: Store) -> AsyncIterator[Running]:
    executor = TaskExecutorService(moves_of(store), CLOCK, NO_FAMILIES, threads=4, processes=1)
    yield Running(executor, store)
    await executor.close()


class Effects:
    """Code that does steps, in both colours, and goes on through everything that an `except Exception` catches."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.went_on: list[str] = []

    def do(self, step: str) -> str:
        self.done.append(step)
        return step

    async def asynchronous(self, context: TaskContext[Any]) -> str:
        for step in ("a", "b"):
            with contextlib.suppress(Exception):
                await context.once(step, partial(self.do, step))
            self.went_on.append(step)
        return "finished"

    def plain(self, context: TaskContext[Any]) -> str:
        for step in ("a", "b"):
            with contextlib.suppress(Exception):
                context.once_blocking(step, partial(self.do, step))
            self.went_on.append(step)
        return "finished"

    def code(self, colour: str) -> Code:
        return self.asynchronous if colour == "async" else self.plain


both_colours = pytest.mark.parametrize("colour", ["async", "plain"])


@both_colours
async def test_steps_are_in_the_task_when_the_code_goes_on(run: Running, store: Store, colour: str) -> None:
    effects = Effects()
    assert await run(effects.code(colour)) == Succeeded("finished")
    assert store.task.steps == (StepOutcome("a", "a"), StepOutcome("b", "b"))


@both_colours
async def test_a_lost_lease_stops_the_code_at_the_step(run: Running, store: Store, colour: str) -> None:
    effects = Effects()
    store.take_away()
    with pytest.raises(LeaseLostError):
        await run(effects.code(colour))
    assert (effects.done, effects.went_on) == (["a"], [])
    assert run.attempt.stop_reason is StopReason.LEASE_LOST
    assert store.task.steps == ()


@both_colours
async def test_a_store_that_is_away_is_waited_for(run: Running, store: Store, colour: str) -> None:
    effects = Effects()
    store.failures = 2
    assert await run(effects.code(colour)) == Succeeded("finished")
    assert store.asked == 4
    assert effects.done == ["a", "b"]


@both_colours
async def test_a_store_that_is_away_is_waited_for_until_the_lease_has_ended(
    run: Running, store: Store, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    effects = Effects()
    store.failures = 1_000
    run.attempt.lease_ends = CLOCK.monotonic() + 0.2
    with pytest.raises(LeaseLostError):
        await run(effects.code(colour))
    assert (effects.done, effects.went_on) == (["a"], [])
    assert CLOCK.monotonic() > run.attempt.lease_ends
    assert "step 'a' is done but not recorded" in caplog.text


async def test_an_outcome_is_settled_after_the_steps_are_written(run: Running, store: Store) -> None:
    """The function is done, the code is cancelled while the record waits for the store: it is written all the same."""
    effects = Effects()
    store.gate.clear()
    running = asyncio.create_task(run(effects.asynchronous))
    await eventually(lambda: store.asked == 1)
    run.attempt.stop(StopReason.CANCELLED)
    done, _ = await asyncio.wait([running], timeout=0.05)
    assert not done, "an outcome that is settled first would close the task to the step"
    store.gate.set()
    outcome = await running
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "cancelled"
    assert store.task.steps == (StepOutcome("a", "a"),)


async def test_the_function_of_a_step_can_be_cancelled(run: Running, store: Store) -> None:
    started = asyncio.Event()

    async def code(context: TaskContext[Any]) -> None:
        async def function() -> None:
            started.set()
            await asyncio.Event().wait()

        await context.once("a", function)

    running = asyncio.create_task(run(code))
    await started.wait()
    run.attempt.stop(StopReason.CANCELLED)
    assert isinstance(await running, Failed)
    assert store.asked == 0


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.RELEASED])
async def test_a_step_in_a_thread_that_ends_soon_after_a_stop_is_recorded(
    run: Running, store: Store, reason: StopReason
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def function() -> str:
        entered.set()
        go_on.wait(20)
        return "receipt"

    running = asyncio.create_task(run(lambda context: context.once_blocking("charge", function)))
    await asyncio.to_thread(entered.wait, 20)
    run.attempt.stop(reason)
    asyncio.get_running_loop().call_later(0.05, go_on.set)
    assert await running == Succeeded("receipt")
    assert store.task.steps == (StepOutcome("charge", "receipt"),)


async def test_code_that_was_left_behind_begins_no_step_and_records_none(
    run: Running, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "STOP_TIMEOUT_SECONDS", 0.05)
    entered, go_on = threading.Event(), threading.Event()
    told: list[str] = []

    def code(context: TaskContext[Any]) -> None:
        def function() -> None:
            entered.set()
            go_on.wait(20)

        for step in ("under way", "next"):
            try:
                context.once_blocking(step, function)
            except BaseException as error:
                told.append(f"{type(error).__name__}: {error}")

    running = asyncio.create_task(run(code))
    await asyncio.to_thread(entered.wait, 20)
    run.attempt.stop(StopReason.CANCELLED)
    await running
    go_on.set()
    await eventually(lambda: len(told) == 2)
    assert "'under way'" in told[0]
    assert "'next' is not started" in told[1]
    assert all(line.startswith("CancelledError") for line in told)
    assert store.asked == 0


async def test_the_steps_of_earlier_attempts_come_with_the_claimed_task(run: Running, store: Store) -> None:
    run.attempt.task = store.task.evolve(steps=(StepOutcome("a", "before"),))
    effects = Effects()
    assert await run(effects.asynchronous) == Succeeded("finished")
    assert effects.done == ["b"]


async def test_a_record_that_nobody_waits_for_any_more_is_written(run: Running, store: Store) -> None:
    """A plain function that starts a thread and returns: what the thread handed over by then is written."""
    store.gate.clear()

    def code(context: TaskContext[Any]) -> None:
        threading.Thread(target=context.once_blocking, args=("a", lambda: 1)).start()
        while store.asked == 0:
            time.sleep(0.001)

    running = asyncio.create_task(run(code))
    await eventually(lambda: store.asked == 1)
    store.gate.set()
    await running
    assert store.task.steps == (StepOutcome("a", 1),)


def test_code_that_was_left_behind_gets_the_error_without_an_event_loop() -> None:
    """The process ends: a thread that records now would wait for a loop that does not run again."""

    async def closed() -> AttemptReports:
        store = Store()
        fence = Fence(store.task.task_id, 1, "claim")
        recorder = AttemptReports(RunningAttempt(store.task, fence, 1), moves_of(store), CLOCK, NO_FAMILIES)
        await recorder.close()
        return recorder

    with asyncio.Runner() as runner:
        recorder = runner.run(closed())
        assert recorder.record(StepOutcome("a", 1)).result(timeout=0) is None
    assert recorder.record(StepOutcome("b", 1)).result(timeout=0) is None
    recorder.report_progress_soon(50)


async def test_progress_of_code_that_was_left_behind_is_not_written(run: Running, store: Store) -> None:
    reports = AttemptReports(run.attempt, moves_of(store), CLOCK, NO_FAMILIES)
    reports.report_progress_soon(50)
    await reports.close()
    assert (store.task.progress, store.asked) == (50, 1)
    reports.report_progress_soon(60)
    await asyncio.sleep(0)
    await reports.close()
    assert (store.task.progress, store.asked) == (50, 1)


async def test_a_newer_value_is_written_even_if_the_one_before_it_was_not(run: Running, store: Store) -> None:
    reports = AttemptReports(run.attempt, moves_of(store), CLOCK, NO_FAMILIES)
    store.gate.clear()
    reports.report_progress_soon(50)
    await eventually(lambda: store.asked == 1)
    reports.report_progress_soon(60)
    store.failures = 1
    await asyncio.sleep(0)
    store.gate.set()
    await reports.close()
    assert (store.task.progress, store.asked) == (60, 2)


async def test_progress_whose_writing_was_cancelled_before_it_began_does_not_hold_up_the_end(
    run: Running, store: Store
) -> None:
    reports = AttemptReports(run.attempt, moves_of(store), CLOCK, NO_FAMILIES)
    reports._set_progress(50)
    assert reports._writing_progress is not None
    reports._writing_progress.cancel()
    await asyncio.sleep(0)
    closing = asyncio.create_task(reports.close())
    try:
        await eventually(closing.done, timeout=5)
    finally:
        closing.cancel()


async def test_a_step_that_was_recorded_before_the_end_is_written(run: Running, store: Store) -> None:
    recorder = AttemptReports(run.attempt, moves_of(store), CLOCK, NO_FAMILIES)
    recorded = recorder.record(StepOutcome("a", 1))
    await recorder.close()
    assert recorded.result(timeout=0) == StepOutcome("a", 1)
