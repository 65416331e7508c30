"""Waiting for a store that is away."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar

import pytest

from taskframework.errors import StoreUnavailableError
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually
from taskframework.worker import store_breaker
from taskframework.worker.store_breaker import StoreBreaker, until_available

TASK: ContextVar[str | None] = ContextVar("task", default=None)


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_breaker, "_MAX_PAUSE_SECONDS", 0)
    monkeypatch.setattr(store_breaker, "_FIRST_PAUSE_SECONDS", 0)


class Store:
    """Is away for a number of questions."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.asked = 0

    async def ask(self) -> str:
        self.asked += 1
        if self.asked <= self.away:
            raise StoreUnavailableError
        return "answer"


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize("away", [0, 1, 5])
async def test_the_answer_is_that_of_the_first_call_that_reached_the_store(away: int) -> None:
    store = Store(away)
    assert await until_available(store.ask) == "answer"
    assert store.asked == away + 1


@pytest.mark.usefixtures("without_pauses")
@pytest.mark.parametrize("patience_for", [1, 2, 5])
async def test_a_caller_that_stops_waiting_gets_the_last_error(patience_for: int) -> None:
    store = Store(away=100)
    with pytest.raises(StoreUnavailableError):
        await until_available(store.ask, lambda: store.asked >= patience_for)
    assert store.asked == patience_for


@pytest.mark.usefixtures("without_pauses")
async def test_another_error_is_not_waited_for() -> None:
    calls: list[int] = []

    async def ask() -> None:
        calls.append(1)
        raise ValueError("a bug") if len(calls) > 1 else StoreUnavailableError

    with pytest.raises(ValueError, match="a bug"):
        await until_available(lambda: ask())
    assert len(calls) == 2


async def test_a_cancellation_inside_a_ping_does_not_leave_the_breaker_open() -> None:
    clock, trouble = FakeClock(), [asyncio.CancelledError(), StoreUnavailableError()]

    async def ping() -> None:
        if trouble:
            raise trouble.pop(0)

    breaker = StoreBreaker(ping, clock)
    breaker.open(StoreUnavailableError())
    for _ in range(3):
        await eventually(lambda: clock.sleeping == 1)
        clock.advance(10)
    await eventually(lambda: not breaker.is_open)
    await breaker.stop()


async def test_a_log_line_about_the_store_does_not_name_the_task_that_noticed_it() -> None:
    clock = FakeClock()

    async def ping() -> None: ...

    told: list[tuple[str, str | None]] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append((record.getMessage()[:17], TASK.get()))  # type: ignore[method-assign]
    logger = logging.getLogger("taskframework.worker.store_breaker")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        TASK.set("t1")
        breaker = StoreBreaker(ping, clock)
        breaker.open(StoreUnavailableError())
        await eventually(lambda: clock.sleeping == 1)
        clock.advance(10)
        await eventually(lambda: not breaker.is_open)
        await breaker.stop()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert told == [("the store is away", None), ("the store is back", None)]


@pytest.mark.parametrize("is_away", [True, False])
async def test_a_slow_call_does_not_mean_that_a_store_that_answers_pings_is_away(
    is_away: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def ping() -> None:
        if is_away:
            raise StoreUnavailableError

    breaker = StoreBreaker(ping, FakeClock())
    for _ in range(3):
        assert await breaker.is_away(StoreUnavailableError("too slow")) is is_away
    assert breaker.is_open is is_away
    assert [message[:27] for message in caplog.messages] == (["the store is away: too slow"] if is_away else [])
    await breaker.stop()


async def test_a_ping_that_fails_as_it_is_cancelled_leaves_no_probe_behind() -> None:
    pinging = asyncio.Event()

    async def ping() -> None:
        try:
            pinging.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # as a driver whose connection ends in the same moment
            raise StoreUnavailableError from None

    breaker = StoreBreaker(ping, FakeClock())
    breaker.check_soon(StoreUnavailableError("too slow"))
    await pinging.wait()
    await breaker.stop()
    assert breaker._probing is not None
    assert breaker._probing.done()


async def test_a_store_is_silent_from_the_first_ping_without_an_answer_until_the_first_with_one() -> None:
    clock, is_there = FakeClock(), True

    async def ping() -> None:
        if not is_there:
            raise StoreUnavailableError

    breaker = StoreBreaker(ping, clock)
    breaker.open(StoreUnavailableError("the disk is full"))
    assert not breaker.is_silent
    is_there = False
    await eventually(lambda: clock.sleeping == 1)
    clock.advance(10)
    await eventually(lambda: breaker.is_silent)
    is_there = True
    await eventually(lambda: clock.sleeping == 1)
    clock.advance(10)
    await eventually(lambda: not breaker.is_open)
    assert not breaker.is_silent

    is_there = False
    assert await breaker.is_away(StoreUnavailableError("gone"))
    assert breaker.is_silent
    await breaker.stop()


async def test_who_waits_for_the_store_waits_on_if_the_breaker_opens_again_in_the_same_moment() -> None:
    is_away, closed = False, 0

    async def ping() -> None:
        if is_away:
            raise StoreUnavailableError

    clock = FakeClock()
    breaker = StoreBreaker(ping, clock)
    breaker.open(StoreUnavailableError())

    def open_again() -> None:
        nonlocal is_away, closed
        closed += not breaker.is_open
        if closed == 1 and not is_away:
            is_away = True
            breaker.open(StoreUnavailableError())

    breaker.on_change = open_again
    for_long, patient = (asyncio.create_task(breaker.wait_until_closed(within)) for within in (None, 100.0))

    async def until_closed(times: int) -> None:
        def is_closed() -> bool:
            clock.advance(0.1)
            return closed == times

        await eventually(is_closed)
        for _ in range(20):
            await asyncio.sleep(0)

    await until_closed(1)
    assert breaker.is_open
    assert (for_long.done(), patient.done()) == (False, False), "they have time left"
    clock.advance(100)
    await asyncio.wait([patient])
    assert not patient.result()
    is_away = False
    await until_closed(2)
    assert await for_long
    await breaker.stop()


async def test_a_late_error_of_an_old_call_does_not_mean_that_the_store_is_away_again() -> None:
    clock = FakeClock()

    async def ping() -> None: ...

    breaker = StoreBreaker(ping, clock)
    breaker.open(StoreUnavailableError("gone"))
    await eventually(lambda: clock.sleeping == 1)
    clock.advance(10)
    await eventually(lambda: not breaker.is_open)
    assert await breaker.is_away(StoreUnavailableError("of a call from before"))
    clock.advance(60)
    assert not await breaker.is_away(StoreUnavailableError("slow by itself"))
    await breaker.stop()


async def test_a_store_that_answers_pings_and_fails_at_writes_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    clock = FakeClock()

    async def ping() -> None: ...

    breaker = StoreBreaker(ping, clock)
    for _ in range(20):
        breaker.open(StoreUnavailableError("the disk is full"))
        await eventually(lambda: clock.sleeping == 1)
        clock.advance(10)
        await eventually(lambda: not breaker.is_open)
    assert sum("is away: the disk is full" in message for message in caplog.messages) == 6
    assert sum("is back" in message for message in caplog.messages) == 6
    clock.advance(60)
    breaker.open(StoreUnavailableError("gone"))
    assert "is away: gone" in caplog.messages[-1]
    await breaker.stop()


async def test_many_failed_calls_at_once_are_one_ping() -> None:
    pinged, answer = [], asyncio.Event()

    async def ping() -> None:
        pinged.append(1)
        await answer.wait()
        raise StoreUnavailableError

    breaker = StoreBreaker(ping, FakeClock())
    for _ in range(10):
        breaker.check_soon(StoreUnavailableError("too late"))
    await eventually(lambda: bool(pinged))
    assert not breaker.is_open, "one call that fails may only have been slow"
    answer.set()
    await eventually(lambda: breaker.is_open and breaker.is_silent)
    assert len(pinged) == 1
    await breaker.stop()


async def test_a_breaker_that_stops_ends_its_suspicion() -> None:
    breaker = StoreBreaker(asyncio.Event().wait, FakeClock())  # type: ignore[arg-type]
    breaker.check_soon(StoreUnavailableError("too late"))
    await breaker.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}
