"""Repair loops: nothing ends one, and when it last looked is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from taskframework.errors import BrokerUnavailableError, StoreUnavailableError, TopologyMismatchError
from taskframework.recovery.loop import RepairLoop
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually

INTERVAL = 2


class Repair:
    """Does what it is told, look by look."""

    def __init__(self) -> None:
        self.ends: list[BaseException | bool] = []
        self.looks = 0
        self.hangs = asyncio.Event()

    async def look(self) -> bool:
        self.looks += 1
        end = self.ends.pop(0) if self.ends else False
        if isinstance(end, BaseException):
            raise end
        if self.hangs.is_set():
            await asyncio.Event().wait()
        return end


@pytest.fixture
def repair() -> Repair:
    return Repair()


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
async def loop(clock: FakeClock, repair: Repair, failures: list[str]) -> AsyncIterator[RepairLoop]:
    loop = RepairLoop("sweep", repair.look, timedelta(seconds=INTERVAL), clock, failures.append)
    yield loop
    await loop.stop()


async def asleep(clock: FakeClock) -> None:
    await eventually(lambda: clock.sleeping == 1)


async def test_a_repair_loop_looks_again_and_again_and_knows_when(
    loop: RepairLoop, repair: Repair, clock: FakeClock
) -> None:
    assert (loop.last_run, loop.seconds_since_success) == (None, 0)
    loop.start()
    await asleep(clock)
    assert (loop.last_run, loop.looks) == (clock.now(), 1)
    first = clock.now()
    clock.advance(1)
    assert (loop.last_run, loop.seconds_since_success) == (first, 1)
    clock.advance(INTERVAL)
    await eventually(lambda: loop.looks == 2)
    assert (loop.last_run, loop.seconds_since_success, loop.problem()) == (clock.now(), 0, None)


async def test_a_repair_loop_does_not_pause_while_there_is_more_to_do(
    loop: RepairLoop, repair: Repair, clock: FakeClock
) -> None:
    repair.ends = [True, True, True]
    loop.start()
    await asleep(clock)
    assert repair.looks == 4


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [
        (StoreUnavailableError(), False),
        (BrokerUnavailableError(), False),
        (KeyError("a bug"), True),
        (asyncio.CancelledError(), True),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_look_that_fails_is_logged_and_counted_and_the_loop_continues(
    loop: RepairLoop,
    repair: Repair,
    clock: FakeClock,
    failures: list[str],
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    has_traceback: bool,
) -> None:
    caplog.set_level("DEBUG", "taskframework.recovery.loop")
    repair.ends = [error]
    loop.start()
    await asleep(clock)
    assert (loop.looks, loop.last_run, failures) == (0, None, ["sweep"])
    (record,) = caplog.records
    assert "sweep" in record.getMessage()
    assert bool(record.exc_info) is has_traceback
    clock.advance(2 * INTERVAL)
    await eventually(lambda: loop.looks == 1)
    assert (loop.problem(), failures) == (None, ["sweep"])


async def test_an_error_that_only_a_person_can_mend_is_logged_once_until_it_changes(
    loop: RepairLoop, repair: Repair, clock: FakeClock, failures: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (TopologyMismatchError(name, "its type differs") for name in ("tasks.a.normal", "tasks.b.normal"))
    repair.ends = [first, first, second, False, second]
    loop.start()
    for _ in tuple(repair.ends):
        await asleep(clock)
        clock.advance(2 * INTERVAL)
    await eventually(lambda: repair.looks == 6)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == [f"sweep: {error}" for error in (first, second, second)], "the last one came back after a success"
    assert len(failures) == 4


@pytest.mark.parametrize("is_away", [True, False])
async def test_a_store_that_is_known_to_be_away_is_counted_and_not_logged_again(
    repair: Repair, clock: FakeClock, failures: list[str], caplog: pytest.LogCaptureFixture, is_away: bool
) -> None:
    async def is_store_away(_: StoreUnavailableError) -> bool:
        return is_away

    repair.ends = [StoreUnavailableError()] * 3
    loop = RepairLoop("sweep", repair.look, timedelta(seconds=INTERVAL), clock, failures.append, is_store_away)
    loop.start()
    for look in (1, 2, 3):
        await asleep(clock)
        assert (loop.looks, failures) == (0, ["sweep"] * look)
        is_warned = look > 1 and not is_away  # the first failure may be that of an election that has just ended
        assert [record.levelname for record in caplog.records] == (["WARNING"] if is_warned else [])
        clock.advance(2 * INTERVAL)
    await eventually(lambda: repair.looks == 4)
    await loop.stop()


async def test_a_loop_that_fails_for_long_is_a_problem_until_it_succeeds(
    loop: RepairLoop, repair: Repair, clock: FakeClock
) -> None:
    repair.ends = [StoreUnavailableError() for _ in range(25)]
    loop.start()
    for _ in range(25):
        await asleep(clock)
        assert (loop.standstill() is None) == (clock.monotonic() <= 10 * INTERVAL + 5)
        assert (loop.problem() is None) == (clock.monotonic() <= 10 * INTERVAL + 30)
        clock.advance(1.25 * INTERVAL)
    assert loop.problem() == "last succeeded 62 s ago"
    await eventually(lambda: loop.looks == 1)
    assert loop.problem() is None


async def test_a_loop_that_hangs_is_a_problem(loop: RepairLoop, repair: Repair, clock: FakeClock) -> None:
    repair.hangs.set()
    loop.start()
    await eventually(lambda: repair.looks == 1)
    clock.advance(51)
    assert loop.problem() == "last succeeded 51 s ago"


async def test_a_loop_that_ended_is_a_problem_at_once(loop: RepairLoop, repair: Repair, clock: FakeClock) -> None:
    loop.start()
    await asleep(clock)
    clock.advance(1)
    await loop.stop()
    assert loop.problem() == loop.standstill() == "ended; last succeeded 1 s ago"


async def test_a_loop_beside_other_processes_pauses_longer_and_is_late_later(repair: Repair, clock: FakeClock) -> None:
    factors = [1.0]
    loop = RepairLoop("sweep", repair.look, timedelta(seconds=INTERVAL), clock, pace=lambda: factors[0])
    factors[0] = 10.0
    loop.start()
    await asleep(clock)
    assert (loop.looks, loop.interval) == (1, 10 * INTERVAL)
    repair.ends = [False] + [StoreUnavailableError() for _ in range(9)]
    clock.advance(7 * INTERVAL)  # the shortest pause is 7.5 intervals
    await asleep(clock)
    assert loop.looks == 1
    clock.advance(6 * INTERVAL)
    await eventually(lambda: loop.looks == 2)
    clock.advance(50)  # past the time at which a loop with its usual pauses is late
    assert loop.standstill() is None
    clock.advance(10 * 10 * INTERVAL)
    assert loop.standstill() is not None
    await loop.stop()
