"""How the items of a source are put together to be stored: many at once, but none waits for a source that pauses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import pytest

from taskframework.submission.parts import STORE_BATCH_SIZE, in_parts


async def later(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


@pytest.mark.parametrize(
    ("count", "lengths"),
    [(0, []), (1, [1]), (STORE_BATCH_SIZE, [STORE_BATCH_SIZE]), (STORE_BATCH_SIZE + 1, [STORE_BATCH_SIZE, 1])],
)
@pytest.mark.parametrize("source", [range, later])
async def test_parts_are_full_and_none_is_empty(
    source: Callable[[int], Iterable[int] | AsyncIterator[int]], count: int, lengths: list[int]
) -> None:
    parts = [part async for part in in_parts(source(count))]
    assert [len(part) for part in parts] == lengths
    assert [number for part in parts for number in part] == list(range(count))


async def test_items_do_not_wait_for_a_source_that_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskframework.submission.parts._MAX_HELD_BACK_SECONDS", 0.01)
    pause = asyncio.Event()

    async def pausing() -> AsyncIterator[int]:
        yield 1
        yield 2
        await pause.wait()
        yield 3

    parts = in_parts(pausing())
    async with asyncio.timeout(10):
        assert await anext(parts) == [1, 2]
        pause.set()
        assert await anext(parts) == [3]
        assert [part async for part in parts] == []


async def test_a_source_that_is_left_is_closed() -> None:
    closed: list[str] = []

    async def endless() -> AsyncIterator[int]:
        try:
            for number in range(STORE_BATCH_SIZE):
                yield number
            await asyncio.Event().wait()
        finally:
            closed.append("closed")

    parts = in_parts(endless())
    assert len(await anext(parts)) == STORE_BATCH_SIZE
    await asyncio.sleep(0)
    assert not closed
    await parts.aclose()
    assert closed


async def test_no_more_is_read_before_a_part_is_stored() -> None:
    read: list[int] = []

    async def counted() -> AsyncIterator[int]:
        for number in range(10 * STORE_BATCH_SIZE):
            read.append(number)
            yield number

    parts = in_parts(counted())
    await anext(parts)
    for _ in range(3 * STORE_BATCH_SIZE):  # rounds of the event loop in which more could be read
        await asyncio.sleep(0)
    assert len(read) == STORE_BATCH_SIZE + 1
    await parts.aclose()


async def test_the_error_of_a_source_and_its_time_limit_reach_the_caller() -> None:
    async def slow() -> AsyncIterator[int]:
        async with asyncio.timeout(0.01):
            yield 1
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            [part async for part in in_parts(slow())]
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
