"""How long a handle waits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from taskframework import ResultTimeoutError, StoreUnavailableError, Task, TaskStatus
from taskframework.errors import StoreClosedError
from taskframework.operations.handle import until_final
from taskframework.testing.factories import new_task


async def running() -> Task:
    return new_task(task_id="t-1")


@pytest.mark.parametrize("timeout", [0, 0.0, timedelta(0)])
async def test_seconds_and_timedeltas_are_times_to_wait(timeout: timedelta | float) -> None:
    with pytest.raises(ResultTimeoutError):
        await until_final("t-1", running, timeout)


@pytest.mark.parametrize("timeout", [0, -1, timedelta(microseconds=1)])
async def test_a_wait_of_no_time_looks_once(timeout: timedelta | float) -> None:
    looks = []

    async def look() -> Task:
        await asyncio.sleep(0)
        looks.append(ended := replace(await running(), status=TaskStatus.COMPLETED))
        return ended

    assert await until_final("t-1", look, timeout) == looks[0]
    with pytest.raises(ResultTimeoutError, match="still QUEUED"):
        await until_final("t-1", running, timeout)


@pytest.mark.parametrize("timeout", ["5s", "5", b"5", [5], float("nan")])
async def test_a_wrong_waiting_time_is_refused_with_the_right_form(timeout: Any) -> None:
    with pytest.raises(TypeError, match="is no length of time: use a timedelta or a number of seconds, such as 5"):
        await until_final("t-1", running, timeout)


async def test_the_time_limit_counts_from_the_first_look_on() -> None:
    """A store that hangs answers nothing, not even once."""

    async def hanging() -> Task:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(ResultTimeoutError, match=r"Task t-1 is still unknown: the store has not answered\."):
        await until_final("t-1", hanging, 0.01)


async def test_a_wait_with_a_limit_goes_on_when_the_store_comes_back() -> None:
    looks = 0

    async def away_for_two_looks() -> Task:
        nonlocal looks
        looks += 1
        if looks <= 2:
            raise StoreUnavailableError("no primary")
        return replace(await running(), status=TaskStatus.COMPLETED)

    assert (await until_final("t-1", away_for_two_looks, 60)).status is TaskStatus.COMPLETED
    assert looks == 3


@pytest.mark.parametrize("timeout", [None, 0.01])
async def test_a_wait_ends_with_the_error_of_a_store_that_stays_away(timeout: float | None) -> None:
    async def away() -> Task:
        raise StoreUnavailableError("no primary")

    with pytest.raises(StoreUnavailableError, match="no primary"):
        await until_final("t-1", away, timeout)


async def test_a_wait_ends_at_once_when_the_store_is_closed() -> None:
    """Nothing opens it again during the wait."""
    looks = 0

    async def closed() -> Task:
        nonlocal looks
        looks += 1
        raise StoreClosedError("The store is not open.")

    with pytest.raises(StoreClosedError):
        await until_final("t-1", closed, 60)
    assert looks == 1
