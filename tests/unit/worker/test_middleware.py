"""Middleware and resources in the executor: on the loop, in threads and in processes, with results, errors and time."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import threading
from typing import Any, cast

import pytest

from taskframework import BackgroundTaskExecutable, CallNext, NonRetryableError, TaskContext, resource, task
from taskframework.clock import SystemClock
from taskframework.model.outcome import Failed, Outcome, Succeeded
from taskframework.model.task_fields import ParentLink
from taskframework.model.transitions import Fence
from taskframework.moves import TaskMoves
from taskframework.tasks.extensions import Middleware, WorkerExtensions
from taskframework.tasks.registry import TaskRegistry
from taskframework.tasks.resources import Resources
from taskframework.testing import eventually
from taskframework.testing.factories import new_task
from taskframework.worker import executor as executors
from taskframework.worker.attempt import RunningAttempt
from taskframework.worker.executor import TaskExecutorService
from taskframework.worker.pooled_process import ExecutionFailedError
from tests.support.families import NO_FAMILIES
from tests.unit.worker import process_tasks

tenant = contextvars.ContextVar("tenant", default="nobody")


class Pool:
    size = 3


@task("on-loop")
async def on_loop(parameters: Any, pool: Pool = resource(Pool)) -> str:
    return f"{tenant.get()} {pool.size}"


@task("hung", timeout=0.05)
async def hung(parameters: Any) -> None: ...


@task("in-thread")
def in_thread(parameters: Any, context: TaskContext[Any], pool: Pool = resource(Pool)) -> str:
    assert threading.current_thread() is not threading.main_thread()
    return f"{tenant.get()} {pool.size}"


@task("fails")
async def fails(parameters: Any) -> None:
    raise ValueError("no such account")


def new_executor(*middleware: Middleware) -> TaskExecutorService:
    around = WorkerExtensions(middleware, Resources([Pool()]))
    moves = cast(TaskMoves, None)
    return TaskExecutorService(moves, SystemClock(), NO_FAMILIES, threads=1, processes=1, extensions=around)


async def attempt(executor: TaskExecutorService, kind: type[BackgroundTaskExecutable[Any, Any]]) -> Outcome:
    given = new_task(attempts=1, task_type=kind.task_type, parameters="value")
    running = RunningAttempt(given, Fence(given.task_id, 1, "claim"), 0)
    return await executor.execute(TaskRegistry().register(kind), running)


async def execute(kind: type[BackgroundTaskExecutable[Any, Any]], *middleware: Middleware) -> Outcome:
    executor = new_executor(*middleware)
    try:
        return await attempt(executor, kind)
    finally:
        await executor.close()


async def for_tenant(context: TaskContext[Any], call_next: CallNext) -> Any:
    tenant.set("ann")
    return await call_next(context)


@pytest.mark.parametrize("kind", [on_loop, in_thread])
async def test_code_has_its_resources_and_what_middleware_set_around_it(kind: Any) -> None:
    assert await execute(kind, for_tenant) == Succeeded("ann 3")
    assert await execute(kind) == Succeeded("nobody 3")
    assert tenant.get() == "nobody"


async def test_middleware_sees_an_error_and_may_let_another_count() -> None:
    seen: list[BaseException] = []

    async def tell(context: TaskContext[Any], call_next: CallNext) -> Any:
        try:
            return await call_next(context)
        except ValueError as error:
            seen.append(error)
            raise TimeoutError("the bank is busy") from error

    outcome = await execute(fails, tell)
    assert [str(error) for error in seen] == ["no such account"]
    assert isinstance(outcome, Failed)
    assert outcome.retryable
    assert outcome.error.message == "the bank is busy"


async def test_middleware_may_give_another_context_and_another_result() -> None:
    async def twice(context: TaskContext[Any], call_next: CallNext) -> Any:
        return 2 * await call_next(dataclasses.replace(context, parameters="twice"))

    class Echo(BackgroundTaskExecutable[Any, Any]):
        task_type = "echo"

        def execute(self, context: TaskContext[Any]) -> Any:
            return context.parameters

    assert await execute(Echo, twice) == Succeeded("twicetwice")


async def test_middleware_that_does_not_go_on_ends_the_attempt() -> None:
    async def refuse(context: TaskContext[Any], call_next: CallNext) -> Any:
        raise NonRetryableError("this tenant has left")

    outcome = await execute(fails, refuse)
    assert isinstance(outcome, Failed)
    assert outcome.error.message == "this tenant has left"


async def test_middleware_around_code_in_a_process_sees_what_came_back() -> None:
    seen: list[BaseException] = []

    async def tell(context: TaskContext[Any], call_next: CallNext) -> Any:
        try:
            return await call_next(context)
        except Exception as error:
            seen.append(error)
            raise

    outcome = await execute(process_tasks.Fail, tell)
    assert isinstance(outcome, Failed)
    [error] = seen
    assert isinstance(error, ExecutionFailedError)
    assert error.outcome == outcome


async def test_middleware_that_hangs_is_ended_by_the_timeout() -> None:
    ended = asyncio.Event()

    async def hang(context: TaskContext[Any], call_next: CallNext) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    outcome = await execute(hung, hang)
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "timeout"
    assert ended.is_set()


async def test_the_wait_for_a_thread_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[Any] = []

    class Seen(executors._TimeLimit):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            limits.append(self)

    class Long(BackgroundTaskExecutable[Any, Any]):
        task_type = "long"

        def execute(self, context: TaskContext[Any]) -> None:
            free.wait(60)

    monkeypatch.setattr(executors, "_TimeLimit", Seen)
    free, executor = threading.Event(), new_executor(for_tenant)
    running = [asyncio.create_task(attempt(executor, kind)) for kind in (Long, in_thread)]
    try:
        await eventually(executor._threads._slots.locked)
        await eventually(lambda: limits[1:] and limits[1]._timer is None)
        free.set()
        assert await asyncio.gather(*running) == [Succeeded(None), Succeeded("ann 3")]
    finally:
        free.set()
        await executor.close()


@pytest.mark.parametrize(("given", "told"), [([7], "2 results, not 1"), ([1, 2, 3], "not 3"), (None, "not a NoneType")])
async def test_middleware_gives_a_result_for_each_item_of_a_chunk(given: Any, told: str) -> None:
    async def replace(context: TaskContext[Any], call_next: CallNext) -> Any:
        await call_next(context)
        return given

    executor = new_executor(replace)
    chunk = new_task(parameters=[1, 2], attempts=1, parent=ParentLink("batch", 0, 0, 1, is_chunk=True))
    attempt = RunningAttempt(chunk, Fence(chunk.task_id, 1, "claim"), 0)
    outcome = await executor.execute(TaskRegistry().register(on_loop), attempt)
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, told in outcome.error.message) == ("bad_result", True)
    await executor.close()
