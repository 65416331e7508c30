"""Work beside the caller: how it ends, and what does not end it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from taskframework import background
from taskframework.background import Background, Deadlines, end, is_failure, iterate_in_thread, surviving
from taskframework.brokers.base import Broker, Delivery
from taskframework.clock import SystemClock
from taskframework.errors import StoreUnavailableError
from taskframework.operations.collector import DeadLetterCollector
from taskframework.recovery.loop import RepairLoop
from taskframework.stores.base import TaskStore
from taskframework.stores.mongo import server_clock
from taskframework.stores.mongo.server_clock import ServerClock
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually
from taskframework.worker.heartbeat import Heartbeat
from taskframework.worker.store_breaker import StoreBreaker
from taskframework.worker.worker import Worker

#: Seconds: so soon that a test waits for it, and so late that it never comes.
SOON, NEVER = 0.01, 3600.0


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


async def test_a_thread_that_iterates_takes_little_ahead_and_ends_when_it_is_left() -> None:
    taken, is_closed = [], threading.Event()

    def endless() -> Iterator[int]:
        try:
            for number in itertools.count():
                taken.append(number)
                yield number
        finally:
            is_closed.set()

    values = iterate_in_thread(endless())
    assert [await anext(values) for _ in range(3)] == [0, 1, 2]
    await eventually(lambda: len(taken) > background._MAX_VALUES_AHEAD)
    await values.aclose()
    await eventually(is_closed.is_set)
    assert len(taken) <= background._MAX_VALUES_AHEAD + 4


async def test_the_error_of_what_a_thread_iterates_comes_after_its_values() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise KeyError("x")

    values = iterate_in_thread(failing())
    assert await anext(values) == 1
    with pytest.raises(KeyError):
        await anext(values)


class Limited:
    """Futures with deadlines, in seconds from now."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun_at = self.loop.time()
        self.deadlines = Deadlines(KeyError)

    def future(self, seconds: float) -> asyncio.Future[str]:
        future: asyncio.Future[str] = self.loop.create_future()
        self.deadlines.limit(future, self.begun_at + seconds)
        return future

    @property
    def timers(self) -> int:
        return sum(not handle.cancelled() for handle in self.loop._scheduled)  # type: ignore[attr-defined]


async def _late(*futures: asyncio.Future[Any]) -> None:
    async with asyncio.timeout(10):
        await asyncio.wait(futures)
    for future in futures:
        assert type(future.exception()) is KeyError


@pytest.mark.parametrize("seconds", [SOON, 0.0, -1.0])
async def test_a_future_that_is_late_ends_with_the_error_asked_for_and_not_before(seconds: float) -> None:
    limited = Limited()
    late, later, never = limited.future(seconds), limited.future(seconds + SOON), limited.future(NEVER)
    await _late(late)
    assert limited.loop.time() - limited.begun_at >= seconds - 0.001, "the resolution of the clock"
    await _late(later)
    assert limited.loop.time() - limited.begun_at >= seconds + SOON - 0.001
    assert late.exception() is not later.exception()
    assert not never.done()


async def test_a_future_that_is_done_in_time_stays_as_it_is() -> None:
    limited = Limited()
    answered, failed, given_up, late = (limited.future(SOON) for _ in range(4))
    answered.set_result("reply")
    failed.set_exception(ValueError("x"))
    given_up.cancel()
    await _late(late)
    assert answered.result() == "reply"
    assert isinstance(failed.exception(), ValueError)
    assert given_up.cancelled()


@pytest.mark.parametrize("before", [[NEVER], [NEVER, NEVER + 1], [SOON, NEVER]], ids=str)
@pytest.mark.parametrize("are_done", [False, True])
async def test_an_earlier_deadline_waits_for_none_of_those_before_it(before: list[float], are_done: bool) -> None:
    limited = Limited()
    others = [limited.future(seconds) for seconds in before]
    if are_done:
        for other in others:
            other.set_result("reply")
    await _late(limited.future(SOON / 2))
    assert others[-1].done() is are_done
    await _late(limited.future(SOON))


async def test_one_timer_serves_all_futures_and_done_ones_are_not_kept() -> None:
    limited = Limited()
    before = limited.timers
    futures = [limited.future(seconds) for seconds in (SOON, 2 * SOON, 3 * SOON)]
    assert limited.timers == before + 1
    for future in futures:
        future.set_result("reply")
    kept = [weakref.ref(future) for future in futures]
    del futures, future
    last = limited.future(4 * SOON)
    gc.collect()
    assert [reference() for reference in kept] == [None] * 3
    await _late(last)
    assert limited.timers == before, "nothing waits"


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
    collector._on_delivery(cast(Delivery, Letter()))
    return collector.stop


def _worker_that_only_beats(deaf: DeafOnce) -> Worker:
    class Nothing:
        def __getattr__(self, name: str) -> Any:
            async def done(*_: object) -> None: ...

            return done

    worker = Worker.__new__(Worker)
    nothing: Any = Nothing()
    worker._intake = worker._consumer = worker._executor = worker.sign_of_life = nothing
    worker._limits = []
    worker._grace = timedelta(seconds=1)
    worker.heartbeat = cast(Heartbeat, SimpleNamespace(attempts=()))
    worker._background = [asyncio.create_task(deaf())]
    return worker


def beating(deaf: DeafOnce) -> Stop:
    return _worker_that_only_beats(deaf).stop


@pytest.mark.parametrize("begin", [repairing, probing, collecting, beating])
async def test_a_lost_cancellation_does_not_hold_up_the_stop(begin: Callable[[DeafOnce], Stop]) -> None:
    deaf = DeafOnce()
    stop = begin(deaf)
    await eventually(lambda: deaf.calls == 1)
    try:
        async with asyncio.timeout(20):
            await stop()
    finally:  # one that goes on would lose the only cancellation that the end of the loop gives it
        await end(*asyncio.all_tasks() - {asyncio.current_task()})


@pytest.mark.parametrize("error", [RuntimeError("a bug"), asyncio.CancelledError()])
async def test_a_stop_of_a_worker_that_fails_ends_its_heartbeat_and_its_attempts(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Consumer:
        is_abandoned = False

        async def close(self) -> None:
            raise error

        def abandon(self) -> None:
            self.is_abandoned = True

    monkeypatch.setattr(background, "_CANCEL_INTERVAL_SECONDS", 0.001)
    worker, consumer = _worker_that_only_beats(DeafOnce()), Consumer()
    worker._consumer = cast(Any, consumer)
    try:
        with pytest.raises(type(error)):
            await worker.stop()
        assert (consumer.is_abandoned, [task.done() for task in worker._background]) == (True, [True])
    finally:
        await end(*worker._background)


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


async def test_a_loop_survives_a_failure_and_a_cancellation_of_another_but_not_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounds = 0
    begun = asyncio.Event()

    async def repeat() -> None:
        nonlocal rounds
        while True:
            with surviving(logging.getLogger("test"), "the loop"):
                rounds += 1
                if rounds == 3:
                    begun.set()
                    await asyncio.sleep(60)
                raise ValueError("a bug") if rounds == 1 else asyncio.CancelledError

    loop = asyncio.create_task(repeat())
    await asyncio.wait([loop, asyncio.create_task(begun.wait())], return_when=asyncio.FIRST_COMPLETED)
    assert begun.is_set(), "a failure has ended the loop"
    assert caplog.messages == ["the loop failed and continues"] * 2
    await end(loop)
    assert loop.cancelled()


async def test_the_server_clock_also_counts_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 100.0
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: seconds)
    asked = datetime(2027, 1, 1, tzinfo=UTC)

    async def ask() -> datetime:
        return asked

    clock = ServerClock(ask)
    await clock.start()
    seconds += 3600  # only the clock of the boot counts a suspend
    assert clock.now() == asked + timedelta(hours=1)
    await clock.stop()
