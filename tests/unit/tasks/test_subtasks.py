"""Sub-tasks and signals on the side of task code: what is refused at once, and calls that are taken in parts."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from taskframework import (
    BackgroundTaskExecutable,
    InvalidParametersError,
    InvalidRequestError,
    TaskContext,
    TaskOptions,
)
from taskframework.errors import IdempotencyConflictError, RegistrationError, TaskframeworkError, ValueNotStorableError
from taskframework.model.subtasks import at_least
from taskframework.model.task_fields import Subtasks
from taskframework.tasks.registry import TaskRegistry
from taskframework.tasks.subtasks import (
    SubtaskOutcome,
    SubtaskSummary,
    WaitForSignal,
    WantedSubtasks,
    plan_in_parts,
    plan_in_parts_blocking,
)
from tests.unit.worker.process_tasks import Relatives

WANTED = WantedSubtasks("child", {}, None)


async def later(*values: int) -> AsyncIterator[int]:
    for value in values:
        yield value


@pytest.mark.parametrize(("count", "parts"), [(0, [0]), (1, [1]), (100, [100]), (101, [100, 1]), (200, [100, 100])])
async def test_many_sub_tasks_are_taken_in_parts(count: int, parts: list[int]) -> None:
    numbers = range(count)
    for how in ("list", "later", "thread"):
        family = Relatives()
        match how:
            case "list":
                ids = await plan_in_parts(family, WANTED, numbers)
            case "later":
                ids = await plan_in_parts(family, WANTED, later(*numbers))
            case _:
                ids = await asyncio.to_thread(plan_in_parts_blocking, family, WANTED, iter(numbers))
        assert ids == [f"id {number}" for number in numbers]
        assert [len(wanted.parameters) for wanted in family.planned] == parts
        assert [wanted.before for wanted in family.planned] == [100 * at for at in range(len(parts))]


async def test_a_caller_that_is_cancelled_leaves_what_it_asked_for_alone() -> None:
    class Slow(Relatives):
        answer: Future[list[str]]

        def plan(self, wanted: WantedSubtasks) -> Future[list[str]]:
            self.answer = Future()
            return self.answer

    family = Slow()
    calling = asyncio.create_task(plan_in_parts(family, WANTED, [1]))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    family.answer.set_result(["too late for the caller, and no error for the worker"])


@pytest.mark.parametrize(
    ("signal", "timeout", "said"),
    [
        ("", None, "signal: must be 1 to 200 printable ASCII characters, not ''"),
        ("ä", None, "signal: must be 1 to 200 printable ASCII characters, not 'ä'"),
        ("x" * 201, None, "must be 1 to 200 printable ASCII characters, not 'xxx"),
        (7, None, "signal: must be 1 to 200 printable ASCII characters, not 7"),
        ("go", 0, "timeout: 0 is no time to wait"),
        ("go", -1.0, "timeout: -1.0 is no time"),
        ("go", "1h", "timeout: '1h' is no time"),
        ("go", timedelta(days=4000), "at most ten years"),
    ],
)
def test_a_wait_that_means_nothing_is_refused(signal: Any, timeout: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        WaitForSignal.new(signal, timeout)


def test_a_wait_is_for_a_time_or_for_ever() -> None:
    assert WaitForSignal.new("go", 90).timeout == WaitForSignal.new("go", timedelta(seconds=90)).timeout
    assert WaitForSignal.new("go", None).timeout is None


@pytest.mark.parametrize("policy", ["all_must_succeed", "allow_failures", "first_success", at_least(3)])
def test_a_policy_is_an_option(policy: str) -> None:
    assert TaskOptions(subtasks=policy).subtasks == policy


@pytest.mark.parametrize("policy", ["most", "at_least(0)", "at_least(n)", 3, None])
def test_a_policy_that_is_none_is_refused_where_it_is_written(policy: Any) -> None:
    with pytest.raises(RegistrationError, match=r"option subtasks is .* Use all_must_succeed, allow_failures, "):
        TaskOptions(subtasks=policy)


class Yields(BackgroundTaskExecutable[int, int]):
    task_type = "yields"

    def execute(self, context: TaskContext[int]) -> int:
        return 0

    def on_subtasks_finished(self, context: Any, summary: Any) -> Any:
        yield 1


class WithoutSummary(BackgroundTaskExecutable[int, int]):
    task_type = "without-summary"

    def execute(self, context: TaskContext[int]) -> int:
        return 0

    def on_subtasks_finished(self, context: Any) -> Any:  # type: ignore[override]  # the mistake under test
        return 1


class AsyncInProcess(BackgroundTaskExecutable[int, int]):
    task_type = "async-in-process"
    options = TaskOptions(run_in="process")

    def execute(self, context: TaskContext[int]) -> int:
        return 0

    async def on_signal(self, context: Any, signal: Any) -> Any:
        return 1


@pytest.mark.parametrize(
    ("executable", "said"),
    [
        (Yields, "on_subtasks_finished of .*Yields .* is a generator. Return the result"),
        (WithoutSummary, r"cannot be called with a context and a summary.*def on_subtasks_finished\(self, context, su"),
        (AsyncInProcess, "has run_in='process' and an async on_signal. Make it a plain def"),
    ],
)
def test_a_method_that_could_not_be_called_is_refused_when_it_is_registered(
    executable: type[BackgroundTaskExecutable[int, int]], said: str
) -> None:
    with pytest.raises(RegistrationError, match=said):
        TaskRegistry().register(executable)


@pytest.mark.parametrize(
    "error",
    [
        InvalidParametersError("child", [{"field": "n", "message": "too large"}]),
        ValueNotStorableError("parameters", "it is a secret"),
        InvalidRequestError("policy", "it is none", "Use one."),
        IdempotencyConflictError("key", "task"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_reaches_task_code_in_another_process_whole(error: TaskframeworkError) -> None:
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), str(there), vars(there)) == (type(error), str(error), vars(error))


async def test_outcomes_are_for_a_thread_or_for_a_loop() -> None:
    summary = SubtaskSummary.of(Subtasks(3, None, 3, 3), Relatives())
    with pytest.raises(RuntimeError, match=r"async for ... in summary.outcomes\(\)"):
        list(summary.outcomes_blocking())
    seen: list[SubtaskOutcome] = [outcome async for outcome in summary.outcomes()]
    assert [outcome.slot for outcome in seen] == [0, 1, 2]
    assert await asyncio.to_thread(lambda: list(summary.outcomes_blocking())) == seen
