"""Work beside the caller: how it ends, and what does not end it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from taskframework.background import Background, end, in_time, is_failure
from taskframework.brokers.base import Broker, Delivery
from taskframework.errors import StoreUnavailableError
from taskframework.operations.collector import DeadLetterCollector
from taskframework.recovery.loop import RepairLoop
from taskframework.stores.base import TaskStore
from taskframework.stores.mongo import server_clock
from taskframework.stores.mongo.server_clock import ServerClock
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually
from taskframework.worker.patience import StoreBreaker
from taskframework.worker.worker import Worker


class DeafOnce:
    """A call that loses one cancellation, as `asyncio.wait_for` may."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self) -> Any:
        self.calls += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()


async def test_end_ends_a_task_that_loses_a_cancellation() -> None:
    tasks = [asyncio.create_task(DeafOnce()()) for _ in range(3)]
    await asyncio.sleep(0)
    await end(*tasks)
    assert all(task.cancelled() for task in tasks)


async def test_a_future_in_time_gives_what_it_has_and_leaves_no_timer() -> None:
    loop = asyncio.get_running_loop()
    before = [handle for handle in loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
    answered: asyncio.Future[str] = loop.create_future()
    loop.call_soon(answered.set_result, "reply")
    assert await in_time(answered, loop.time() + 3600) == "reply"
    given_up: asyncio.Future[str] = loop.create_future()
    waiting = asyncio.create_task(in_time(given_up, loop.time() + 3600))
    await asyncio.sleep(0)
    await end(cast(asyncio.Task[None], waiting))
    assert given_up.cancelled()
    assert [handle for handle in loop._scheduled if not handle.cancelled()] == before  # type: ignore[attr-defined]


@pytest.mark.parametrize("seconds", [0.01, 0.0, -1.0])
async def test_a_future_that_is_late_ends_with_the_error_asked_for_and_not_before(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    with pytest.raises(KeyError):
        await in_time(loop.create_future(), deadline, KeyError)
    assert loop.time() >= deadline - 0.001, "the resolution of the clock"


async def test_background_work_can_be_awaited() -> None:
    background, done = Background(), []

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        done.append(number)
        if number:
            background.start(work(number - 1))

    background.start(work(2))
    await background.finished()
    assert done == [2, 1, 0]


Stop = Callable[[], Awaitable[None]]


def repairing(deaf: DeafOnce) -> Stop:
    loop = RepairLoop("sweep", deaf, timedelta(seconds=1), FakeClock())
    loop.start()
    return loop.stop


def probing(deaf: DeafOnce) -> Stop:
    clock = FakeClock()
    breaker = StoreBreaker(deaf, clock)
    breaker.open(StoreUnavailableError())
    asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(clock.advance, 60))
    return breaker.stop


def collecting(deaf: DeafOnce) -> Stop:
    class Store:
        def now(self) -> datetime:
            return datetime.now(UTC)

        async def keep_dead_message(self, _: object) -> None:
            await deaf()

    class Letter:
        body, headers, queue = b"no message", dict[str, str](), "queue"

    collector = DeadLetterCollector(cast(TaskStore, Store()), cast(Broker, None))
    collector._take(cast(Delivery, Letter()))
    return collector.stop


def beating(deaf: DeafOnce) -> Stop:
    class Nothing:
        def __getattr__(self, name: str) -> Any:
            async def done(*_: object) -> None: ...

            return done

    worker = Worker.__new__(Worker)
    nothing: Any = Nothing()
    worker._intake = worker._consumer = worker._executor = nothing
    worker._grace = timedelta(seconds=1)
    worker._background = [asyncio.create_task(deaf())]
    return worker.stop


@pytest.mark.parametrize("begin", [repairing, probing, collecting, beating])
async def test_a_lost_cancellation_does_not_hold_who_stops(begin: Callable[[DeafOnce], Stop]) -> None:
    deaf = DeafOnce()
    stop = begin(deaf)
    await eventually(lambda: deaf.calls == 1)
    async with asyncio.timeout(20):
        await stop()


async def test_a_lost_cancellation_does_not_hold_the_server_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_clock, "_REFRESH_SECONDS", 0)
    deaf, samples = DeafOnce(), [datetime.now(UTC)] * 3

    async def ask() -> datetime:
        return samples.pop() if samples else cast(datetime, await deaf())

    clock = ServerClock(ask)
    await clock.start()
    await eventually(lambda: deaf.calls == 1)
    async with asyncio.timeout(20):
        await clock.stop()


async def test_a_cancellation_is_a_failure_unless_it_is_our_own() -> None:
    async def judged(cancel: bool) -> bool:
        try:
            if cancel:
                cast("asyncio.Task[bool]", asyncio.current_task()).cancel()
                await asyncio.sleep(0)
            raise asyncio.CancelledError
        except asyncio.CancelledError as error:
            return is_failure(error)

    assert await asyncio.create_task(judged(cancel=False))
    assert not await asyncio.create_task(judged(cancel=True))
    assert is_failure(ValueError())
    assert not is_failure(SystemExit())
