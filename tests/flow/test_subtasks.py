"""Sub-tasks and signals as an author has them, from the submission to the result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from taskframework import (
    BackgroundTaskExecutable,
    NonRetryableError,
    RetryableError,
    Signal,
    SubtaskSummary,
    TaskContext,
    TaskFramework,
    TaskHandle,
    TaskOptions,
    TaskStatus,
    at_least,
)
from taskframework.model.scope import EVERYONE
from taskframework.testing.eventually import eventually
from taskframework.worker import plan
from tests.flow.conftest import BOTH, Run

# The fast path carries the same messages for these as for the tests of the lifecycle, which run without it too.
pytestmark = pytest.mark.parametrize("urls", BOTH, indirect=True)

AGAIN = timedelta(0)


class Square(BackgroundTaskExecutable[int, int]):
    """Fails for a negative number, and never ends for a thousand."""

    task_type = "square"

    async def execute(self, context: TaskContext[int]) -> int:
        if context.parameters < 0:
            raise NonRetryableError("negative")
        if context.parameters == 1000:
            await asyncio.Event().wait()
        return context.parameters**2


class SumOfSquares(BackgroundTaskExecutable[list[int], dict[str, Any]]):
    """Adds up what succeeded."""

    task_type = "sum-of-squares"
    options = TaskOptions(subtasks="allow_failures")

    async def execute(self, context: TaskContext[list[int]]) -> None:
        await context.submit_subtasks(Square, context.parameters)

    async def on_subtasks_finished(self, context: TaskContext[list[int]], summary: SubtaskSummary) -> Any:
        outcomes = [outcome async for outcome in summary.outcomes()]
        assert [outcome.slot for outcome in outcomes] == list(range(summary.total))
        counts = [summary.total, summary.succeeded, summary.failed, summary.cancelled]
        errors = [outcome.error["message"] for outcome in outcomes if outcome.error]
        return {"sum": sum(outcome.result or 0 for outcome in outcomes), "counts": counts, "errors": errors}


class SumInThread(BackgroundTaskExecutable[list[int], int]):
    """The same with plain functions."""

    task_type = "sum-in-thread"

    def execute(self, context: TaskContext[list[int]]) -> None:
        context.submit_subtasks_blocking("square", context.parameters)

    def on_subtasks_finished(self, context: TaskContext[list[int]], summary: SubtaskSummary) -> int:
        return sum(outcome.result for outcome in summary.outcomes_blocking())


class SumInProcess(SumInThread):
    """The same in a process."""

    task_type = "sum-in-process"
    options = TaskOptions(run_in="process")


class Sends(BackgroundTaskExecutable[list[int], str]):
    """Does not go on: what it returned is its result."""

    task_type = "sends"

    async def execute(self, context: TaskContext[list[int]]) -> str:
        await context.submit_subtasks("square", context.parameters)
        return "sent"


class Fastest(BackgroundTaskExecutable[list[int], list[int]]):
    """Goes on with two results; the rest is not needed."""

    task_type = "fastest"
    options = TaskOptions(subtasks=at_least(2))

    async def execute(self, context: TaskContext[list[int]]) -> None:
        await context.submit_subtasks("square", context.parameters)

    async def on_subtasks_finished(self, context: TaskContext[list[int]], summary: SubtaskSummary) -> Any:
        return [outcome.result async for outcome in summary.outcomes() if outcome.status == "COMPLETED"]


class Halving(BackgroundTaskExecutable[list[int], list[int]]):
    """Adds up in pairs, round after round. The first attempt at each round fails."""

    task_type = "halving"
    options = TaskOptions(initial_delay=AGAIN)

    async def execute(self, context: TaskContext[list[int]]) -> None:
        if context.attempt == 1:
            await context.submit_subtasks("adds", [[1000]] * 5)
            raise RetryableError("after it had planned something else")
        await context.submit_subtasks("adds", _pairs(context.parameters))

    async def on_subtasks_finished(self, context: TaskContext[list[int]], summary: SubtaskSummary) -> Any:
        sums = [outcome.result async for outcome in summary.outcomes()]
        if context.attempt == 1:
            raise RetryableError("once more")
        if len(sums) > 1:
            await context.submit_subtasks("adds", _pairs(sums))
        return sums


def _pairs(numbers: list[int]) -> list[list[int]]:
    return [numbers[at : at + 2] for at in range(0, len(numbers), 2)]


class Adds(BackgroundTaskExecutable[list[int], int]):
    """Adds up."""

    task_type = "adds"

    async def execute(self, context: TaskContext[list[int]]) -> int:
        return sum(context.parameters)


class Person(BaseModel):
    """The payload of a signal as a model."""

    by: str


class Approval(BackgroundTaskExecutable[Any, Any]):
    """Does sub-tasks if there are any, and then waits for an approval."""

    task_type = "approval"
    heard: ClassVar[list[str]] = []

    async def execute(self, context: TaskContext[Any]) -> Any:
        parameters = context.parameters
        if "numbers" in parameters:
            await context.submit_subtasks("square", parameters["numbers"])
            if not parameters.get("at once"):
                return None
        return context.wait_for(signal="approved", timeout=parameters.get("timeout"))

    async def on_subtasks_finished(self, context: TaskContext[Any], summary: SubtaskSummary) -> Any:
        self.heard.append("sub-tasks")
        return context.wait_for(signal="approved")

    async def on_signal(self, context: TaskContext[Any], signal: Signal) -> Any:
        self.heard.append(signal.name)
        if signal.name == "approved" and context.parameters.get("twice"):
            return context.wait_for(signal="approved again")
        return {"payload": signal.payload, "timed_out": signal.timed_out}


class Measures(BackgroundTaskExecutable[str, int]):
    """Tells how long its parameters are."""

    task_type = "measures"

    async def execute(self, context: TaskContext[str]) -> int:
        return len(context.parameters)


class Large(BackgroundTaskExecutable[None, int]):
    """Plans more than its own document can hold."""

    task_type = "large"

    async def execute(self, context: TaskContext[None]) -> None:
        await context.submit_subtasks(Measures, ("x" * 150_000 for _ in range(8)))

    async def on_subtasks_finished(self, context: TaskContext[None], summary: SubtaskSummary) -> int:
        return sum([outcome.result async for outcome in summary.outcomes()])


class Idles(BackgroundTaskExecutable[Any, None]):
    """Submits nothing, round after round, for ever; but once it had a sub-task."""

    task_type = "idles"

    async def execute(self, context: TaskContext[Any]) -> None:
        await context.submit_subtasks(Square, [])

    async def on_subtasks_finished(self, context: TaskContext[Any], summary: SubtaskSummary) -> None:
        await context.submit_subtasks(Square, [1] if summary.round == 2 else [])


ALL = (Measures, Idles, Large, Square, SumOfSquares, SumInThread, SumInProcess, Sends, Fastest, Halving, Adds, Approval)


@pytest.fixture
async def framework(run: Run) -> AsyncIterator[TaskFramework]:
    Approval.heard.clear()
    async with run(extra=ALL) as framework:
        yield framework


async def test_a_parent_goes_on_when_its_sub_tasks_are_over(framework: TaskFramework) -> None:
    handle = await framework.submit(SumOfSquares, [1, -1, 2, 3])
    assert await handle.result(timeout=60) == {"sum": 14, "counts": [4, 3, 1, 0], "errors": ["negative"]}
    task = await handle.task()
    assert [entry.type for entry in task.history if entry.type not in ("submitted", "completed")] == [
        "started",
        "waiting",
        "resumed",
        "started",
    ]


@pytest.mark.parametrize("executable", [SumInThread, SumInProcess])
async def test_a_plain_function_has_sub_tasks_too(
    framework: TaskFramework, executable: type[BackgroundTaskExecutable[Any, Any]]
) -> None:
    assert await (await framework.submit(executable, [1, 2, 3])).result(timeout=60) == 14


async def test_a_parent_with_an_empty_round_continues(framework: TaskFramework) -> None:
    handle = await framework.submit(SumOfSquares, [])
    assert (await handle.result(timeout=60))["counts"] == [0, 0, 0, 0]


async def test_a_parent_that_plans_only_empty_rounds_fails_in_the_end(
    framework: TaskFramework, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MAX_EMPTY_ROUNDS", 3)
    task = await (await framework.submit(Idles, None)).finished(timeout=60)
    assert (task.status, task.subtasks and task.subtasks.round) == (TaskStatus.FAILED, 6)
    assert task.error is not None
    assert "submit sub-tasks or return the result" in task.error.message
    await framework.services.tasks.retry(task.task_id, EVERYONE, by="ann")
    again = await framework.handle(task.task_id).finished(timeout=60)
    assert (again.generation, again.subtasks and again.subtasks.round) == (1, 6), "counted from the beginning"


async def test_a_failure_under_the_usual_policy_ends_the_parent_and_the_rest(framework: TaskFramework) -> None:
    handle = await framework.submit(SumInThread, [1000, -1, 1000])
    ended = await handle.finished(timeout=60)
    assert ended.status is TaskStatus.FAILED
    assert ended.error is not None
    assert ended.error.code == "subtasks_failed"
    [_, negative, _] = (await framework.services.tasks.subtasks(handle.task_id, EVERYONE, limit=9)).items
    assert f"Sub-task {negative.task_id}, slot 1, failed: NonRetryableError: negative." in ended.error.message

    async def statuses() -> list[str]:
        page = await framework.services.tasks.subtasks(handle.task_id, EVERYONE, limit=9)
        return [task.status for task in page.items]

    async def are_over() -> bool:
        return await statuses() == ["CANCELLED", "FAILED", "CANCELLED"]

    await eventually(are_over)
    await eventually(lambda: _counts_of(handle, [0, 1, 2]))


async def _counts_of(handle: TaskHandle[Any], expected: list[int]) -> bool:
    """Whether the parent shows these counts: succeeded, failed and cancelled."""
    counted = (await handle.task()).subtasks
    return counted is not None and [counted.succeeded, counted.failed, counted.cancelled] == expected


async def test_sub_tasks_that_are_not_needed_any_more_are_cancelled(framework: TaskFramework) -> None:
    handle = await framework.submit(Fastest, [2, 1000, 3])
    assert await handle.result(timeout=60) == [4, 9]

    async def is_cancelled() -> bool:
        page = await framework.services.tasks.subtasks(handle.task_id, EVERYONE, limit=9)
        return page.items[1].status is TaskStatus.CANCELLED

    await eventually(is_cancelled)
    await eventually(lambda: _counts_of(handle, [2, 0, 1]))


async def test_a_parent_that_does_not_go_on_has_the_result_of_execute(framework: TaskFramework) -> None:
    handle = await framework.submit(Sends, [1, 2])
    assert await handle.result(timeout=60) == "sent"
    task = await handle.task()
    assert task.subtasks is not None
    assert (task.subtasks.planned, task.subtasks.succeeded) == (2, 2)


async def test_each_round_has_only_the_sub_tasks_of_the_settled_attempt(framework: TaskFramework) -> None:
    handle = await framework.submit(Halving, [1, 2, 3, 4, 5, 6, 7])
    assert await handle.result(timeout=60) == [28]
    task = await handle.task()
    assert task.subtasks is not None
    assert task.subtasks.round == 3
    for number, sums in enumerate(([3, 7, 11, 7], [10, 18], [28]), 1):
        page = await framework.services.tasks.subtasks(handle.task_id, EVERYONE, limit=9, round=number)
        assert [subtask.result for subtask in page.items] == sums


async def test_a_task_with_a_large_plan_gets_its_result(framework: TaskFramework) -> None:
    handle = await framework.submit(Large)
    assert await handle.result(timeout=60) == 8 * 150_000

    async def is_deleted() -> bool:
        return await framework.services.store.list_records("plan", limit=9) == []

    await eventually(is_deleted)


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_task_waits_for_a_signal(framework: TaskFramework, is_early: bool) -> None:
    handle = await framework.submit(Approval, {"twice": True})
    if not is_early:
        await _waits(framework, handle.task_id)
    await handle.signal("approved", {"by": "ann"})
    if not is_early:
        await eventually(lambda: Approval.heard == ["approved"])
    await handle.signal("approved again", Person(by="bob"))
    assert await handle.result(timeout=60) == {"payload": {"by": "bob"}, "timed_out": False}
    assert Approval.heard == ["approved", "approved again"]


async def test_a_signal_that_does_not_come_in_time_is_heard_as_late(framework: TaskFramework) -> None:
    handle = await framework.submit(Approval, {"timeout": 0.2})
    assert await handle.result(timeout=60) == {"payload": None, "timed_out": True}


@pytest.mark.parametrize("is_signal_first", [True, False])
async def test_a_parent_continues_with_its_sub_tasks_or_the_signal_that_comes_first(
    framework: TaskFramework, is_signal_first: bool
) -> None:
    numbers = [1, 1000] if is_signal_first else [1, 2]
    handle = await framework.submit(Approval, {"numbers": numbers, "at once": True})
    await (
        _waits(framework, handle.task_id) if is_signal_first else eventually(lambda: Approval.heard == ["sub-tasks"])
    )
    await handle.signal("approved", 1)
    assert await handle.result(timeout=60) == {"payload": 1, "timed_out": False}
    assert Approval.heard == (["approved"] if is_signal_first else ["sub-tasks", "approved"])


async def _waits(framework: TaskFramework, task_id: str) -> None:
    async def waits() -> bool:
        return (await framework.services.tasks.get(task_id, EVERYONE)).status is TaskStatus.WAITING

    await eventually(waits)
