"""The executor: whatever task code does becomes an outcome."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from operator import methodcaller
from typing import Annotated, Any, cast

import pytest
from pydantic import AfterValidator, BaseModel, SecretStr, computed_field, field_validator

from taskframework import BackgroundTaskExecutable, NonRetryableError, TaskContext, TaskOptions
from taskframework.clock import SystemClock
from taskframework.model.outcome import Failed, Outcome, Released, Succeeded
from taskframework.model.task_fields import CancelRequest, Subtasks
from taskframework.model.transitions import BY_DEADLINE, Fence
from taskframework.moves import TaskMoves
from taskframework.tasks.kinds import read_result
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.factories import new_task
from taskframework.worker import attempt as attempts
from taskframework.worker import executor as executors
from taskframework.worker.attempt import LeaseLostError, RunningAttempt, StopReason
from taskframework.worker.attempt_outcome import BadResultError, outcome_of
from taskframework.worker.executor import TaskExecutorService
from tests.support.families import NO_FAMILIES


class Color(Enum):
    RED = "r"


Code = Callable[[TaskContext[Any]], Any]


@pytest.fixture
async def executor() -> AsyncIterator[TaskExecutorService]:
    service = TaskExecutorService(cast(TaskMoves, None), SystemClock(), NO_FAMILIES, threads=2, processes=1)
    yield service
    await service.close()


async def execute(
    executor: TaskExecutorService,
    code: Code,
    *,
    options: TaskOptions | None = None,
    stop: Callable[[RunningAttempt], None] = lambda _: None,
) -> Outcome:
    """Run `code` as the body of a task; `stop` is called once it runs."""
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
    task = new_task(attempts=1)
    attempt = RunningAttempt(task, Fence(task.task_id, 1, "claim"), 0)
    asyncio.get_running_loop().call_later(0.02, stop, attempt)
    return await executor.execute(registration, attempt)


def failure(outcome: Outcome) -> Failed:
    assert isinstance(outcome, Failed)
    return outcome


async def for_ever(context: TaskContext[Any]) -> None:
    await asyncio.Event().wait()


async def deaf(context: TaskContext[Any]) -> None:
    """Swallows cancellations; not for ever, since the event loop of the test would wait for it at its end."""
    for _ in range(2):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def test_a_result_is_json(executor: TaskExecutorService) -> None:
    async def code(context: TaskContext[Any]) -> Any:
        return {"took": timedelta(seconds=90), "tags": {"a"}}

    assert await execute(executor, code) == Succeeded({"took": "PT1M30S", "tags": ["a"]})


class Login(BaseModel):
    password: SecretStr


def _within_itself() -> Any:
    whole: list[Any] = []
    whole.append(whole)
    return whole


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (lambda: "x" * 2_000_000, "The result cannot be stored: it has 2,000,002 bytes as JSON, "),
        (lambda: float("nan"), "The result cannot be stored: nan is not a JSON number. "),
        (lambda: deque([float("nan")]), "The result cannot be stored: nan is not a JSON number. "),
        (lambda: {True: 1, "true": 2}, "The result cannot be stored: two keys of a dictionary are the same text"),
        (lambda: {Color.RED: 1, "r": 2}, "The result cannot be stored: two keys of a dictionary are"),
        (lambda: Login(password=SecretStr("hunter2")), "The result cannot be stored: a SecretStr becomes asterisks"),
        (lambda: {"login": Login(password=SecretStr("hunter2"))}, "The result cannot be stored: a SecretStr becomes"),
        (_within_itself, "The result cannot be stored: it is nested too deeply, or contains itself."),
    ],
)
async def test_a_result_that_cannot_be_stored_fails_the_task_with_the_reason(
    executor: TaskExecutorService, gives: Callable[[], Any], said: str
) -> None:
    async def code(context: TaskContext[Any]) -> Any:
        return gives()

    assert failure(await execute(executor, code)).error.message.startswith(said)


@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_forgotten_await_is_named_in_the_error(executor: TaskExecutorService, is_plain: bool) -> None:
    async def asked() -> str:
        return "a"

    def plain(context: TaskContext[Any]) -> Any:
        return asked()

    async def in_the_loop(context: TaskContext[Any]) -> Any:
        return asked()

    failed = failure(await execute(executor, plain if is_plain else in_the_loop))
    hint = ", or in a plain def the method of the same name with _blocking or _soon at its end" if is_plain else ""
    assert failed.error.message == f"The code returned a coroutine: `await` is missing before it{hint}."


@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_stop_iteration_error_is_shown_without_frames_of_the_framework(
    executor: TaskExecutorService, is_plain: bool
) -> None:
    def looks_up(context: TaskContext[Any]) -> Any:
        return next(iter(()))

    async def in_the_loop(context: TaskContext[Any]) -> Any:
        return looks_up(context)

    shown = failure(await execute(executor, looks_up if is_plain else in_the_loop)).error.traceback
    assert shown is not None
    assert "in looks_up" in shown
    assert "taskframework/worker" not in shown


async def test_a_forgotten_return_is_named_in_the_error(executor: TaskExecutorService) -> None:
    class Forgets(BackgroundTaskExecutable[Any, int]):
        task_type = "task"

        def execute(self, context: TaskContext[Any]) -> Any:
            len("abc")

    attempt = RunningAttempt(new_task(attempts=1), Fence("task", 1, "claim"), 0)
    failed = failure(await executor.execute(TaskRegistry().register(Forgets), attempt))
    assert failed.error.message == "The code returned None, which is not of the declared type: is a `return` missing?"


@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_wait_that_is_not_returned_fails_the_task(executor: TaskExecutorService, is_plain: bool) -> None:
    def plain(context: TaskContext[Any]) -> Any:
        context.wait_for(signal="approved")
        return "done"

    async def in_the_loop(context: TaskContext[Any]) -> Any:
        return plain(context)

    error = failure(await execute(executor, plain if is_plain else in_the_loop)).error
    assert error.code == "bad_result"
    assert error.message.endswith("did not return its value: write `return context.wait_for(...)`.")


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize(
    ("method", "arguments"),
    [("submit_subtask", ("leaf", 1)), ("submit_subtasks", ("leaf", [1])), ("once", ("charge", list))],
)
async def test_a_call_that_is_not_awaited_fails_the_task(
    executor: TaskExecutorService, method: str, arguments: tuple[Any, ...]
) -> None:
    async def code(context: TaskContext[Any]) -> Any:
        getattr(context, method)(*arguments)
        return "done"

    error = failure(await execute(executor, code)).error
    assert error.code == "bad_result"
    assert error.message.endswith(f"did not await it, so nothing was done: write `await context.{method}(...)`.")


async def test_a_wait_that_is_awaited_says_that_it_is_returned(executor: TaskExecutorService) -> None:
    async def code(context: TaskContext[Any]) -> Any:
        return await context.wait_for(signal="approved")  # type: ignore[misc]  # the mistake under test

    assert "it is returned, not awaited" in failure(await execute(executor, code)).error.message


async def test_a_parent_without_a_result_gets_an_error_that_names_on_subtasks_finished(
    executor: TaskExecutorService,
) -> None:
    class Parent(BackgroundTaskExecutable[Any, int]):
        task_type = "parent"

        async def execute(self, context: TaskContext[Any]) -> None: ...

    with pytest.raises(BadResultError, match="or the method on_subtasks_finished"):
        outcome_of(TaskRegistry().register(Parent), new_task(), None, Subtasks(1, None))


async def test_a_result_of_a_wrong_type_fails_the_task_without_showing_its_value(executor: TaskExecutorService) -> None:
    class Wrong(BackgroundTaskExecutable[Any, dict[str, int]]):
        task_type = "task"

        def execute(self, context: TaskContext[Any]) -> Any:
            return {"words": "a secret"}

    task = new_task(attempts=1)
    attempt = RunningAttempt(task, Fence(task.task_id, 1, "claim"), 0)
    failed = failure(await executor.execute(TaskRegistry().register(Wrong), attempt))
    assert failed.error.message.startswith("The result is not of the declared type: words: Input should be a valid int")
    assert "secret" not in failed.error.message
    assert "pydantic.dev" not in failed.error.message


@dataclass
class Count:
    words: int
    lines: int = 0


@pytest.mark.parametrize("words", ["a secret", None, [1]])
async def test_a_result_whose_field_has_another_type_than_declared_fails_the_task(words: Any) -> None:
    class Counts(BackgroundTaskExecutable[Any, Count]):
        task_type = "task"

        def execute(self, context: TaskContext[Any]) -> Count:
            raise AssertionError("its code runs")

    with pytest.raises(BadResultError, match="not of the declared type: words: ") as raised:
        outcome_of(TaskRegistry().register(Counts), new_task(), Count(words), None)
    assert "secret" not in str(raised.value)


async def test_a_result_whose_field_can_be_read_as_declared_is_stored() -> None:
    class Counts(BackgroundTaskExecutable[Any, Count]):
        task_type = "task"

        def execute(self, context: TaskContext[Any]) -> Count:
            raise AssertionError("its code runs")

    written: Any = "5"
    outcome = outcome_of(TaskRegistry().register(Counts), new_task(), Count(written), None)
    assert outcome == Succeeded({"words": "5", "lines": 0})
    assert read_result(Counts, {"words": "5", "lines": 0}) == Count(5)


class Squared(BaseModel, extra="forbid"):
    side: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.side**2

    @computed_field  # type: ignore[prop-decorator]
    @property
    def note(self) -> str | None:
        return None


class Dated(BaseModel):
    day: date

    @field_validator("day", mode="before")
    @classmethod
    def _reads_no_json(cls, value: date) -> date:
        return date.fromordinal(value.toordinal())  # the text in the JSON has none


async def test_a_result_of_a_type_that_writes_more_than_it_reads_is_stored() -> None:
    class Squares(BackgroundTaskExecutable[Any, Squared]):
        task_type = "task"

        def execute(self, context: TaskContext[Any]) -> Squared:
            raise AssertionError("its code runs")

    outcome = outcome_of(TaskRegistry().register(Squares), new_task(), Squared(side=2), None)
    assert outcome == Succeeded({"side": 2, "area": 4, "note": None})


async def test_a_result_whose_validator_reads_no_json_is_stored() -> None:
    class Dates(BackgroundTaskExecutable[Any, Dated]):
        task_type = "task"

        def execute(self, context: TaskContext[Any]) -> Dated:
            raise AssertionError("its code runs")

    outcome = outcome_of(TaskRegistry().register(Dates), new_task(), Dated(day=date(2026, 1, 1)), None)
    assert outcome == Succeeded({"day": "2026-01-01"})


async def test_parameters_that_its_type_does_not_take_any_more_fail_the_task(executor: TaskExecutorService) -> None:
    class Counts(BackgroundTaskExecutable[int, None]):
        task_type = "task"

        async def execute(self, context: TaskContext[int]) -> None:
            raise AssertionError("its code runs")

    task = new_task(attempts=1, parameters="many")
    attempt = RunningAttempt(task, Fence(task.task_id, 1, "claim"), 0)
    failed = failure(await executor.execute(TaskRegistry().register(Counts), attempt))
    assert (failed.error.code, failed.retryable, failed.error.retryable) == ("invalid_parameters", False, False)


def look_up(value: int) -> int:
    """A validator of the author's that raises what pydantic lets pass."""
    raise {0: KeyError, 1: ConnectionError, 2: SystemExit, 3: KeyboardInterrupt}[value]("no directory")


@pytest.mark.parametrize(("parameters", "retryable"), [(0, False), (1, True), (2, False), (3, False)])
async def test_a_validator_that_breaks_ends_the_attempt(
    executor: TaskExecutorService, parameters: int, retryable: bool
) -> None:
    class LooksUp(BackgroundTaskExecutable[Annotated[int, AfterValidator(look_up)], None]):
        task_type = "task"

        async def execute(self, context: TaskContext[int]) -> None:
            raise AssertionError("its code runs")

    task = new_task(attempts=1, parameters=parameters)
    attempt = RunningAttempt(task, Fence(task.task_id, 1, "claim"), 0)
    failed = failure(await executor.execute(TaskRegistry().register(LooksUp), attempt))
    assert (failed.error.code, failed.retryable) == ("execution_error", retryable)
    assert "in look_up" in (failed.error.traceback or "")


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (OSError("disk"), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (ValueError("input"), False),
        (KeyError("bug"), False),
        (StopIteration(), False),
        (SystemExit(3), False),
        (KeyboardInterrupt(), False),
        (asyncio.CancelledError(), False),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_errors_are_classified(executor: TaskExecutorService, error: BaseException, retryable: bool) -> None:
    def code(context: TaskContext[Any]) -> None:
        raise error

    assert failure(await execute(executor, code)).retryable is retryable


@pytest.mark.parametrize(
    ("error", "name"), [(SystemExit("no config"), "SystemExit"), (KeyboardInterrupt("no config"), "KeyboardInterrupt")]
)
@pytest.mark.parametrize("is_plain", [False, True])
async def test_an_exception_that_would_end_a_program_is_reported_as_it_was_raised(
    executor: TaskExecutorService, error: BaseException, name: str, is_plain: bool
) -> None:
    def plain(context: TaskContext[Any]) -> None:
        raise error

    async def in_the_loop(context: TaskContext[Any]) -> None:
        raise error

    failed = failure(await execute(executor, plain if is_plain else in_the_loop)).error
    assert (failed.type, failed.message) == (name, "no config")
    assert failed.traceback
    assert "taskframework/worker/" not in failed.traceback


@pytest.mark.parametrize("retry_on", [LookupError, [OverflowError, LookupError], (LookupError,)])
async def test_an_error_that_retry_on_names_is_retryable(executor: TaskExecutorService, retry_on: Any) -> None:
    def code(context: TaskContext[Any]) -> None:
        raise KeyError("for now")

    assert failure(await execute(executor, code, options=TaskOptions(retry_on=retry_on))).retryable


@pytest.mark.parametrize(("code", "timeout"), [(for_ever, timedelta(milliseconds=30)), (deaf, 0.03)])
async def test_an_attempt_beyond_its_time_limit_is_a_retryable_failure(
    executor: TaskExecutorService,
    code: Code,
    timeout: timedelta | float,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(executors, "STOP_TIMEOUT_SECONDS", 0.05)
    outcome = failure(await execute(executor, code, options=TaskOptions(timeout=timeout)))
    assert (outcome.error.code, outcome.retryable) == ("timeout", True)
    assert ("ignores its timeout; its code may run beside the next attempt" in caplog.text) == (code is deaf)


@pytest.mark.parametrize("code", [for_ever, deaf])
async def test_each_reason_to_stop_an_attempt_has_its_own_outcome(
    executor: TaskExecutorService, code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "STOP_TIMEOUT_SECONDS", 0.05)
    cancelled = await execute(executor, code, stop=lambda attempt: attempt.stop(StopReason.CANCELLED))
    assert failure(cancelled).error.code == "cancelled"
    released = await execute(executor, code, stop=lambda attempt: attempt.stop(StopReason.RELEASED))
    assert released == Released()
    with pytest.raises(LeaseLostError):
        await execute(executor, code, stop=lambda attempt: attempt.stop(StopReason.LEASE_LOST))


async def _raises_in_place_of_the_cancellation(context: TaskContext[Any]) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise NonRetryableError("the connection was interrupted") from None


async def _fails_to_clean_up(context: TaskContext[Any]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise OSError("no such file")


@pytest.mark.parametrize("code", [_raises_in_place_of_the_cancellation, _fails_to_clean_up])
async def test_an_error_that_a_stop_causes_is_no_failure_of_the_task(executor: TaskExecutorService, code: Code) -> None:
    assert await execute(executor, code, stop=lambda attempt: attempt.stop(StopReason.RELEASED)) == Released()
    late = CancelRequest(BY_DEADLINE, datetime(2026, 1, 1, tzinfo=UTC), None)
    for cancel, expected in ((None, "cancelled"), (late, "deadline")):
        outcome = await execute(executor, code, stop=methodcaller("stop", StopReason.CANCELLED, cancel))
        assert failure(outcome).error.code == expected


async def test_a_stop_after_the_code_has_failed_changes_nothing(executor: TaskExecutorService) -> None:
    task = new_task(attempts=1)
    attempt = RunningAttempt(task, Fence(task.task_id, 1, "claim"), 0)

    async def fails() -> None:
        raise ValueError("wrong")

    code_task = asyncio.create_task(fails())
    attempt.attach(code_task, on_given_up=lambda: None)
    await asyncio.wait([code_task])
    attempt.stop(StopReason.RELEASED)
    assert attempt.stop_reason is None
    attempt.stop(StopReason.LEASE_LOST)
    assert attempt.stop_reason is StopReason.LEASE_LOST


async def test_a_result_that_code_returns_in_spite_of_a_stop_counts(executor: TaskExecutorService) -> None:
    async def code(context: TaskContext[Any]) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished"
        return "never"

    outcome = await execute(executor, code, stop=lambda attempt: attempt.stop(StopReason.CANCELLED))
    assert outcome == Succeeded("finished")


async def test_a_plain_function_runs_in_a_thread_of_its_own(executor: TaskExecutorService) -> None:
    outcome = await execute(executor, lambda context: threading.current_thread() is threading.main_thread())
    assert outcome == Succeeded(False)


async def test_an_error_without_a_text_or_with_a_huge_text_has_a_bounded_message(executor: TaskExecutorService) -> None:
    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    def silent(context: TaskContext[Any]) -> None:
        raise UnspeakableError

    def loud(context: TaskContext[Any]) -> None:
        raise ValueError("x" * 50_000_000)

    assert "UnspeakableError" in failure(await execute(executor, silent)).error.message
    assert len(failure(await execute(executor, loud)).error.message) < 3000


async def test_waiting_for_a_thread_is_not_part_of_an_attempts_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "STOP_TIMEOUT_SECONDS", 0.05)
    service = TaskExecutorService(cast(TaskMoves, None), SystemClock(), NO_FAMILIES, threads=1, processes=1)
    # Each takes a quarter of the time that it has, so that it is over in time on a crowded machine, too; all together
    # take longer.
    brief = TaskOptions(timeout=timedelta(seconds=1.2))
    outcomes = await asyncio.gather(
        *(execute(service, lambda context: threading.Event().wait(0.3), options=brief) for _ in range(5))
    )
    await service.close()
    assert outcomes == [Succeeded(False)] * 5


async def test_code_that_ends_at_its_time_limit_has_one_outcome(executor: TaskExecutorService) -> None:
    async def code(context: TaskContext[Any]) -> str:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, ended.set)
        both_are_due = loop.time() + 0.02
        while loop.time() < both_are_due:
            pass
        await ended.wait()
        return "done"

    for _ in range(20):
        outcome = await execute(executor, code, options=TaskOptions(timeout=timedelta(milliseconds=10)))
        assert outcome == Succeeded("done") or failure(outcome).error.code == "timeout"


async def test_a_time_limit_does_not_tear_the_clean_up_of_code_that_was_stopped(executor: TaskExecutorService) -> None:
    limit_passed, cleaned_up = asyncio.Event(), False

    async def code(context: TaskContext[Any]) -> None:
        nonlocal cleaned_up
        asyncio.get_running_loop().call_later(0.1, limit_passed.set)
        try:
            await asyncio.Event().wait()
        finally:
            await limit_passed.wait()
            cleaned_up = True

    outcome = await execute(
        executor,
        code,
        options=TaskOptions(timeout=timedelta(milliseconds=50)),
        stop=lambda attempt: attempt.stop(StopReason.RELEASED),
    )
    assert outcome == Released()
    assert cleaned_up


async def test_a_stop_in_the_moment_of_the_time_limit_does_not_tear_the_clean_up(
    executor: TaskExecutorService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits: list[Any] = []
    monkeypatch.setattr(executors._TimeLimit, "start", lambda limit: limits.append(limit))
    cleaned_up = False

    async def code(context: TaskContext[Any]) -> None:
        nonlocal cleaned_up
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned_up = True

    def stop(attempt: RunningAttempt) -> None:
        limits[0]._on_over()
        attempt.stop(StopReason.RELEASED)

    outcome = failure(await execute(executor, code, stop=stop))
    assert (outcome.error.code, cleaned_up, caplog.messages) == ("timeout", True, [])


async def test_bytes_in_a_result_that_are_no_text_are_explained(executor: TaskExecutorService) -> None:
    async def code(context: TaskContext[Any]) -> Any:
        return {"content": b"\xff"}

    assert (
        "need a model with ser_json_bytes and val_json_bytes set to base64"
        in failure(await execute(executor, code)).error.message
    )


@pytest.mark.parametrize("is_plain", [True, False])
async def test_an_error_is_the_same_object_from_a_thread_and_from_the_loop(
    executor: TaskExecutorService, is_plain: bool
) -> None:
    """asyncio makes a new TimeoutError of one that comes from a thread, without its notes, its cause and its place."""

    def raise_error(context: TaskContext[Any]) -> None:
        error = TimeoutError("slow")
        error.retryable = False  # type: ignore[attr-defined]
        error.add_note("row 7")
        raise error from KeyError("cause")

    async def raise_later(context: TaskContext[Any]) -> None:
        raise_error(context)

    failed = failure(await execute(executor, raise_error if is_plain else raise_later))
    assert (failed.error.message, failed.retryable) == ("slow\nrow 7", False)
    assert "in raise_error" in (failed.error.traceback or "")
    assert "KeyError: 'cause'" in (failed.error.traceback or "")
