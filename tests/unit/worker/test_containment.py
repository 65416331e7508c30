"""What task code may end: the asyncio tasks that it started, and nothing of the worker or of other attempts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from types import FunctionType
from typing import Any

import pytest
import uvloop

from taskframework.background import end
from taskframework.clock import SystemClock
from taskframework.telemetry import AttemptCode, running_as
from taskframework.worker.containment import cancel_own, contain_loop, contained_tasks

Start = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]


@pytest.fixture(autouse=True)
async def contained() -> AsyncIterator[None]:
    with contained_tasks():
        yield


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start asyncio tasks that are ended after the test."""
    started = []

    def start(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        started.append(asyncio.create_task(coroutine))
        return started[-1]

    yield start
    await end(*started)


def attempt(name: str = "guilty") -> AttemptCode:
    return AttemptCode(name, f"id of {name}")


async def waits() -> None:
    """Task code."""
    await asyncio.Event().wait()


def of_the_worker() -> Coroutine[Any, Any, None]:
    return SystemClock().sleep(600)


async def cancelled(task: asyncio.Task[Any]) -> bool:
    """Whether a cancellation reached it."""
    await asyncio.wait([task], timeout=0.01)
    return task.cancelled()


async def test_code_that_cancels_everything_ends_only_what_it_started(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    ours = start(of_the_worker())
    with running_as(attempt("innocent")):
        innocent = start(waits())
    with running_as(attempt()):
        own = start(waits())
        for task in (ours, innocent, own):
            task.cancel()
    assert await cancelled(own)
    assert not await cancelled(ours)
    assert not await cancelled(innocent)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("task guilty id of guilty tried to cancel asyncio tasks that are not its own")
    assert f"{__file__}:" in record.getMessage(), "and where"
    assert vars(record)["task_id"] == "id of guilty"


LIBRARY = """
import asyncio

async def reads():
    await asyncio.Event().wait()

def close(reader):
    reader.cancel()
"""


async def test_a_library_ends_its_own_tasks_whoever_made_it_start_them(start: Start) -> None:
    """A client that attempts share reads in a task that the first attempt's call started; another one's closes it."""
    library: dict[str, Any] = {"__name__": "library"}
    exec(compile(LIBRARY, "/lib/site-packages/library.py", "exec"), library)
    with running_as(attempt("first")):
        reader, other = start(library["reads"]()), start(waits())
    with running_as(attempt("second")):
        library["close"](reader)
        library["close"](other)
    assert await cancelled(reader)
    assert not await cancelled(other)


async def test_task_code_cannot_cancel_asyncio_tasks_of_the_worker_from_another_thread(start: Start) -> None:
    ours, loop = start(of_the_worker()), asyncio.get_running_loop()
    with running_as(attempt()):
        await asyncio.to_thread(lambda: loop.call_soon_threadsafe(ours.cancel))
        await asyncio.to_thread(ours.cancel)
    assert not await cancelled(ours)


async def test_code_that_waits_for_others_does_not_take_them_along(start: Start) -> None:
    """A cancellation goes on to what is waited for."""
    ours = [start(of_the_worker()) for _ in range(2)]

    async def waits_for_all() -> None:
        await asyncio.gather(*ours)

    async def waits_for_one() -> None:
        await ours[0]

    for code in (waits_for_all, waits_for_one):
        with running_as(attempt()):
            run = start(code())
        await asyncio.sleep(0)
        cancel_own(run)
    assert not any([await cancelled(task) for task in ours])
    cancel_own(ours[1])
    assert await cancelled(ours[1])


async def test_code_may_cancel_itself_and_use_time_limits_and_groups(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError

    async def code() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(waits(), 0.001)
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(waits())
                group.create_task(fails())
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await waits()

    with running_as(attempt()):
        run = asyncio.create_task(code())
    await asyncio.wait([run])
    assert run.cancelled()
    assert not caplog.records


async def test_an_asyncio_task_left_by_an_ended_attempt_may_be_cancelled_by_another(start: Start) -> None:
    """Such as the reader of a connection that the first attempt opened and another one closes."""
    first = attempt("first")
    with running_as(first):
        shared, of_the_pool = start(waits()), start(of_the_worker())
    first.is_over = True
    with running_as(attempt()):
        shared.cancel()
        of_the_pool.cancel()
    assert await cancelled(shared)
    assert not await cancelled(of_the_pool), "but not what the worker does for itself"


async def test_an_asyncio_task_of_the_program_may_be_cancelled_by_task_code(start: Start) -> None:
    poller = start(waits())
    with running_as(attempt()):
        poller.cancel()
    assert await cancelled(poller)


@pytest.mark.parametrize("module", ["aiormq.connection", "taskframework.submission.producer"])
async def test_a_library_called_by_task_code_may_cancel_its_own_asyncio_tasks(start: Start, module: str) -> None:
    """A driver when a connection fails, a second framework when it is closed."""

    def close(task: asyncio.Task[None]) -> None:
        task.cancel()

    reader = start(of_the_worker())
    with running_as(attempt()):
        FunctionType(close.__code__, {"__name__": module})(reader)
    assert await cancelled(reader)


async def test_the_worker_may_cancel_the_asyncio_task_of_an_attempt(start: Start) -> None:
    with running_as(attempt()):
        run = start(waits())
    run.cancel()
    assert await cancelled(run)


async def test_a_task_factory_of_the_program_is_kept() -> None:
    loop, made = asyncio.get_running_loop(), []
    loop.set_task_factory(None)

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)

    with contained_tasks():
        assert loop.get_task_factory() is not None
    assert loop.get_task_factory() is None
    loop.set_task_factory(factory)
    with contained_tasks():
        await asyncio.create_task(asyncio.sleep(0))
    assert len(made) == 1
    assert loop.get_task_factory() is factory


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_code_cannot_stop_the_loop_of_its_worker_nor_shut_it_down(
    new_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    def contained_loop() -> asyncio.AbstractEventLoop:
        loop = new_loop()
        contain_loop(loop)
        return loop

    async def main() -> str:
        loop, framework = asyncio.get_running_loop(), runs()
        await anext(framework)
        with running_as(attempt("tidy")):
            await loop.shutdown_asyncgens()
            await loop.shutdown_default_executor()
        with running_as(attempt()):
            loop.stop()
            loop.call_soon(loop.stop)
            await asyncio.to_thread(lambda: loop.call_soon_threadsafe(loop.stop))
        await asyncio.sleep(0.01)
        assert await anext(framework) == "and runs"
        return "done"

    with asyncio.Runner(loop_factory=contained_loop) as runner:
        assert runner.run(main()) == "done"
        with pytest.raises(RuntimeError, match="stopped"):
            runner.run(stops())
    shut, stopped = (record.getMessage() for record in caplog.records)
    assert shut.startswith("task tidy id of tidy tried to shut down the event loop of its worker, at")
    assert f"{__file__}:" in shut
    assert stopped.startswith("task guilty id of guilty tried to stop the event loop of its worker, at")


async def runs() -> AsyncIterator[str]:
    """Not task code, as a framework that runs."""
    yield "runs"
    yield "and runs"


async def stops() -> None:
    """Not task code."""
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)
