"""The clock that tests move."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from taskframework.clock import Clock, SystemClock, whole_milliseconds
from taskframework.testing.clock import FakeClock


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_fake_clock_stands_still_until_it_is_moved() -> None:
    clock: Clock = FakeClock()
    assert clock.now() == clock.now()
    assert clock.monotonic() == 0


async def test_a_fake_clock_moves_by_the_given_time() -> None:
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    clock.advance(1.5)
    clock.advance(timedelta(minutes=1))
    assert clock.now() == datetime(2026, 1, 1, 0, 1, 1, 500_000, tzinfo=UTC)
    assert clock.monotonic() == 61.5
    clock.advance(0.0004)
    assert clock.now().microsecond == 500_000, "whole milliseconds, as every store keeps them"


async def test_sleepers_wake_when_their_time_has_come_the_earliest_first() -> None:
    clock, woken = FakeClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (3, 1, 2)]
    await _settle()
    assert clock.sleeping == 3
    clock.advance(0.9)
    await _settle()
    assert woken == []
    clock.advance(1.1)
    await _settle()
    assert woken == [1, 2]
    clock.advance(60)
    await asyncio.gather(*tasks)
    assert (woken, clock.sleeping) == ([1, 2, 3], 0)


async def test_a_sleep_of_nothing_only_yields() -> None:
    clock = FakeClock()
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.sleeping == 0


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(1))
    await _settle()
    task.cancel()
    await _settle()
    assert clock.sleeping == 0
    clock.advance(2)


def test_the_system_clock_is_in_utc_and_whole_milliseconds() -> None:
    now = SystemClock().now()
    assert now.tzinfo is UTC
    assert whole_milliseconds(now) == now


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a monotonic clock that a suspended machine stops")
def test_the_systems_steady_time_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {time.CLOCK_BOOTTIME: 3600.0, time.CLOCK_MONOTONIC: 60.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    assert SystemClock().monotonic() == 3600
