"""Time limits with one timer."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from taskframework.deadlines import Deadlines

#: Seconds: so soon that the test waits for it, and so late that it never comes.
SOON, NEVER = 0.01, 3600.0


class Late(Exception):  # noqa: N818 - what it is
    pass


class Limited:
    """Futures under time limits, by name."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun_at = self.loop.time()
        self.deadlines = Deadlines(Late)

    def future(self, seconds: float) -> asyncio.Future[str]:
        future: asyncio.Future[str] = self.loop.create_future()
        self.deadlines.limit(future, self.begun_at + seconds)
        return future


async def _late(*futures: asyncio.Future[Any]) -> None:
    async with asyncio.timeout(10):
        await asyncio.wait(futures)
    for future in futures:
        assert type(future.exception()) is Late


async def test_what_has_no_result_in_time_ends_and_not_before() -> None:
    limited = Limited()
    futures = [limited.future(seconds) for seconds in (SOON, SOON, 2 * SOON, NEVER)]
    await _late(*futures[:2])
    assert limited.loop.time() - limited.begun_at >= SOON
    await _late(futures[2])
    assert limited.loop.time() - limited.begun_at >= 2 * SOON
    assert not futures[3].done()


async def test_each_gets_an_error_of_its_own() -> None:
    limited = Limited()
    futures = [limited.future(SOON) for _ in range(2)]
    await _late(*futures)
    assert futures[0].exception() is not futures[1].exception()


async def test_what_is_done_stays_as_it_is() -> None:
    limited = Limited()
    answered, failed, cancelled, late = (limited.future(SOON) for _ in range(4))
    answered.set_result("reply")
    failed.set_exception(KeyError("x"))
    cancelled.cancel()
    await _late(late)
    assert answered.result() == "reply"
    assert isinstance(failed.exception(), KeyError)
    assert cancelled.cancelled()


@pytest.mark.parametrize("before", [[NEVER], [NEVER, NEVER], [NEVER, NEVER + 1, NEVER + 2], [SOON, NEVER]], ids=str)
async def test_one_that_is_due_earlier_waits_for_none_of_the_others(before: list[float]) -> None:
    limited = Limited()
    others = [limited.future(seconds) for seconds in before]
    early = limited.future(SOON / 2)
    await _late(early)
    assert not others[-1].done()
    assert [deadline for deadline, _ in limited.deadlines._waiting] == sorted(
        deadline for deadline, _ in limited.deadlines._waiting
    )


async def test_an_early_one_behind_those_that_are_done_is_not_held_by_their_timer() -> None:
    limited = Limited()
    limited.future(NEVER).set_result("reply")
    await _late(limited.future(SOON))


async def test_a_time_that_is_over_ends_it_at_once() -> None:
    limited = Limited()
    other = limited.future(NEVER)
    await _late(limited.future(-1))
    assert not other.done()


async def test_there_is_one_timer_and_none_when_nothing_waits() -> None:
    limited = Limited()
    scheduled = limited.loop._scheduled  # type: ignore[attr-defined]

    def timers() -> int:
        return sum(not handle.cancelled() for handle in scheduled)

    before = timers()
    for seconds in (3 * SOON, 2 * SOON, SOON, 4 * SOON):
        limited.future(seconds)
        assert timers() == before + 1
    await _late(*[future for _, future in limited.deadlines._waiting])
    assert timers() == before
    await _late(limited.future(5 * SOON))


async def test_what_was_answered_is_not_kept() -> None:
    limited = Limited()
    answered = [limited.future(NEVER) for _ in range(100)]
    for future in answered:
        future.set_result("reply")
    kept = weakref.ref(answered[0])
    answered.clear()
    del future
    last = limited.future(NEVER)
    gc.collect()
    assert kept() is None
    assert [future for _, future in limited.deadlines._waiting] == [last]
