"""`run`: what it hands to task code, and what it tells of it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from taskframework import (
    BackgroundTaskExecutable,
    CallNext,
    ConfigurationError,
    InvalidParametersError,
    InvalidRequestError,
    RetryableError,
    Signal,
    SubtaskSummary,
    TaskContext,
    ValueNotStorableError,
    resource,
    task,
)
from taskframework.testing import run
from taskframework.worker.attempt_outcome import BadResultError


class Words(BaseModel):
    words: int


@task("counts")
async def counts(parameters: str, context: TaskContext[str]) -> Words:
    await context.update_progress({"percent": 50})
    if context.attempt == 1 and parameters == "flaky":
        raise RetryableError("not yet")
    return Words(words=len(parameters.split()))


async def test_an_argument_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match=r"run has no option sginal; did you mean signal\?"):
        await run(counts, "one", sginal="approved")  # type: ignore[call-overload]  # the mistake under test


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"payload": {"by": "ann"}}, "payload describes a signal"),
        ({"timed_out": True}, "timed_out describes a signal"),
        ({"signal": "approved", "outcomes": []}, "give one of them"),
        ({"attempt": 0}, "the number of the attempt, from 1, not 0"),
        ({"attempt": "2"}, "not '2'"),
    ],
)
async def test_an_argument_that_means_nothing_is_refused(about: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        await run(counts, "one", **about)


@task("asks")
async def asks(parameters: dict[str, Any], context: TaskContext[dict[str, Any]]) -> None:
    await context.submit_subtasks(counts, ["one", "two"], policy="first_success")
    await context.submit_subtask(counts, "three", **parameters)


@task("wants-three", subtasks="at_least(3)")
async def wants_three(parameters: int, context: TaskContext[int]) -> None:
    await context.submit_subtasks(counts, ["one"] * parameters)


async def test_a_sub_task_that_a_worker_would_refuse_is_refused() -> None:
    for options, message in (
        ({"priority": "hi"}, "must be high, normal or low"),
        ({"policy": "most"}, "'most' is none"),
        ({"policy": "all_must_succeed"}, "an earlier call gave first_success"),
        ({"deadline": datetime(2020, 1, 1, tzinfo=UTC)}, "it is in the past"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            await run(asks, options)
    with pytest.raises(TypeError, match=r"a sub-task has no option prority; did you mean priority\?"):
        await run(asks, {"prority": "high"})
    with pytest.raises(InvalidRequestError, match=r"at_least\(3\) cannot be met with 2 sub-tasks"):
        await run(wants_three, 2)
    assert len((await run(wants_three, 3)).subtasks) == 3


class Family(BackgroundTaskExecutable[list[str], int]):
    task_type = "family"

    async def execute(self, context: TaskContext[list[str]]) -> None:
        await context.submit_subtasks(counts, context.parameters, policy="allow_failures")
        await context.submit_subtask("elsewhere", {"n": 1}, priority="high")

    async def on_subtasks_finished(self, context: TaskContext[list[str]], summary: SubtaskSummary) -> int:
        found = [outcome.result async for outcome in summary.outcomes(counts)]
        return sum(result.words for result in found if result is not None) + 100 * summary.failed


class InThread(BackgroundTaskExecutable[int, Any]):
    """Does in a thread all that a plain function can."""

    task_type = "in-thread"

    def execute(self, context: TaskContext[int]) -> Any:
        receipt = context.once_blocking("charge", lambda: {"receipt": context.parameters})
        context.update_progress_soon(receipt)
        context.submit_subtask_blocking(counts, "one")
        if context.is_cancel_requested:
            return None
        return context.wait_for(signal="approved", timeout=60)

    def on_signal(self, context: TaskContext[int], signal: Signal) -> str:
        return f"{signal.name}: {signal.payload}"


class Gives(BackgroundTaskExecutable[Any, int]):
    """Gives what it is given, whether or not that is a number."""

    task_type = "gives"

    async def execute(self, context: TaskContext[Any]) -> Any:
        return context.parameters


async def test_a_direct_run_returns_the_result_and_the_progress() -> None:
    ran = await run(counts, "one two")
    assert (ran.result, ran.progress) == (Words(words=2), [{"percent": 50}])


async def test_a_direct_run_raises_the_error_of_the_code() -> None:
    with pytest.raises(RetryableError, match="not yet"):
        await run(counts, "flaky")
    assert (await run(counts, "flaky", attempt=2)).result == Words(words=1)


async def test_a_direct_run_returns_the_planned_sub_tasks_and_continues_with_outcomes() -> None:
    ran = await run(Family, ["one", "two"])
    told = [(each.task_type, each.parameters, each.options, each.policy) for each in ran.subtasks]
    assert told == [
        ("counts", "one", {}, "allow_failures"),
        ("counts", "two", {}, "allow_failures"),
        ("elsewhere", {"n": 1}, {"priority": "high"}, None),
    ]
    assert ran.result is None
    ended = await run(Family(), [], outcomes=[Words(words=3), ValueError("a bug"), Words(words=4)])
    assert ended.result == 107


async def test_a_plain_function_runs_in_a_thread_with_all_that_it_may_call() -> None:
    ran = await run(InThread, 5)
    assert ran.steps == {"charge": {"receipt": 5}}
    assert ran.progress == [{"receipt": 5}]
    assert [each.parameters for each in ran.subtasks] == ["one"]
    assert ran.waits_for is not None
    assert ran.waits_for.signal == "approved"
    later = await run(InThread, 5, steps={"charge": "of before"}, cancelled=True)
    assert (later.progress, later.result, later.waits_for) == (["of before"], None, None)
    heard = await run(InThread, 5, signal="approved", payload="by Ann")
    assert heard.result == "approved: by Ann"


async def test_a_direct_run_refuses_what_a_worker_would_refuse() -> None:
    with pytest.raises(InvalidParametersError):
        await run(counts, 5)  # type: ignore[misc]
    with pytest.raises(InvalidParametersError, match="0"):
        await run(Family, [5])  # type: ignore[misc]
    with pytest.raises(BadResultError, match="not of the declared type"):
        await run(Gives, "text")
    with pytest.raises(ValueNotStorableError):
        await run(Gives, float("nan"))
    with pytest.raises(InvalidRequestError, match="has no on_signal"):
        await run(counts, "one", signal="approved")


class Pool:
    size = 3


class SmallPool(Pool):
    size = 1


@task("sizes")
def sizes(parameters: int, context: TaskContext[int], pool: Pool = resource(Pool)) -> int:
    return parameters * pool.size


async def test_a_direct_run_takes_resources_and_middleware() -> None:
    async def one_more(context: TaskContext[Any], call_next: CallNext) -> Any:
        return 1 + await call_next(context)

    assert (await run(sizes, 5, resources=[SmallPool()], middleware=[one_more])).result == 6
    with pytest.raises(ConfigurationError, match="pool wants one Pool, and none"):
        await run(sizes, 5)


async def test_a_plain_function_that_stops_an_iteration_ends_with_an_error() -> None:
    @task("stops")
    def stops(parameters: None) -> int:
        return next(iter([]))

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        await asyncio.wait_for(run(stops), 30)


class Waits(BackgroundTaskExecutable[None, None]):
    """Waits for a signal, and has no method for it."""

    task_type = "waits"

    async def execute(self, context: TaskContext[None]) -> Any:
        return context.wait_for(signal="approved")


class Hears(BackgroundTaskExecutable[None, Any]):
    """Gives the payload of its signal."""

    task_type = "hears"

    async def execute(self, context: TaskContext[None]) -> Any:
        return context.wait_for(signal="approved")

    async def on_signal(self, context: TaskContext[None], signal: Signal) -> Any:
        return [type(signal.payload).__name__, signal.payload]


async def test_a_signal_for_which_there_is_no_method_is_refused_as_by_a_worker() -> None:
    with pytest.raises(InvalidRequestError, match="'waits' cannot continue when it comes"):
        await run(Waits)


async def test_the_payload_of_a_signal_comes_as_json_within_its_limits() -> None:
    assert (await run(Hears, signal="approved", payload=Words(words=3))).result == ["dict", {"words": 3}]
    for payload, message in ((object(), "object is not a JSON type"), ("x" * 65_536, "the limit is 65,536")):
        with pytest.raises(ValueNotStorableError, match=message):
            await run(Hears, signal="approved", payload=payload)
    with pytest.raises(InvalidRequestError, match="printable ASCII"):
        await run(Hears, signal="ge\u00e4ndert")


class Plans(BackgroundTaskExecutable[int, int]):
    """Submits so many sub-tasks, and returns what a worker ignores, since another method continues."""

    task_type = "plans"

    async def execute(self, context: TaskContext[int]) -> Any:
        await context.submit_subtasks(counts, ["one"] * context.parameters)
        return None if context.parameters == 0 else "no number"

    async def on_subtasks_finished(self, context: TaskContext[int], summary: SubtaskSummary) -> int:
        assert context.parameters == 0
        return summary.total


async def test_a_task_that_goes_on_after_its_sub_tasks_has_no_result_yet() -> None:
    """A round of no sub-tasks continues too, and a value beside sub-tasks is not looked at."""
    for number in (0, 2):
        ran = await run(Plans, number)
        assert (ran.result, len(ran.subtasks)) == (None, number)


class Errors(BackgroundTaskExecutable[None, Any]):
    task_type = "errors"

    async def execute(self, context: TaskContext[None]) -> Any:
        return await context.once("charge", lambda: None)

    async def on_subtasks_finished(self, context: TaskContext[None], summary: SubtaskSummary) -> Any:
        return [outcome.error async for outcome in summary.outcomes()]


async def test_a_failed_outcome_has_the_error_that_a_store_would_have() -> None:
    ran = await run(Errors, outcomes=[RetryableError("busy"), ValueError("boo")])
    assert ran.result is not None
    mine, builtin = ran.result
    assert mine.keys() == {"code", "type", "message", "retryable", "fingerprint"}
    assert (mine["code"], mine["type"]) == ("execution_error", "taskframework.errors.RetryableError")
    assert (mine["message"], mine["retryable"]) == ("busy", True)
    assert (builtin["type"], builtin["message"], builtin["retryable"]) == ("ValueError", "boo", False)


async def test_steps_and_outcomes_must_be_storable() -> None:
    assert (await run(Errors, steps={"charge": Words(words=2)})).result == {"words": 2}
    for about, message in (
        ({"steps": {"charge": object()}}, "step 'charge'"),
        ({"steps": {"charge": "x" * 262_144}}, "the limit is 262,144"),
        ({"outcomes": [object()]}, "outcome 0"),
    ):
        with pytest.raises(ValueNotStorableError, match=message):
            await run(Errors, **about)
