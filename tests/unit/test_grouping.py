"""Group commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from taskframework.errors import NotRunningError, StoreUnavailableError
from taskframework.grouping import Grouping


class Writer:
    """Writes groups of numbers; each write waits until the test lets it through."""

    def __init__(self, *, waits: bool = False) -> None:
        self.groups: list[list[Any]] = []
        self.may_write = asyncio.Semaphore(0 if waits else 1_000_000)

    async def __call__(self, requests: Sequence[Any]) -> Sequence[Any]:
        self.groups.append(list(requests))
        await self.may_write.acquire()
        return [ValueError(request) if request == "bad" else f"reply to {request}" for request in requests]


async def _settle() -> None:
    """Let everything that can run, run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_call_that_is_alone_is_written_at_once_and_alone() -> None:
    writer = Writer()
    grouping: Grouping[int, str] = Grouping(writer)
    assert await grouping(1) == "reply to 1"
    assert await grouping(2) == "reply to 2"
    assert writer.groups == [[1], [2]]


async def test_calls_during_a_write_share_the_next_one() -> None:
    writer = Writer(waits=True)
    grouping: Grouping[int, str] = Grouping(writer)
    first = asyncio.create_task(grouping(0))
    await _settle()
    others = [asyncio.create_task(grouping(n)) for n in range(1, 6)]
    await _settle()
    assert writer.groups == [[0]]

    writer.may_write.release()
    writer.may_write.release()

    assert await asyncio.gather(first, *others) == [f"reply to {n}" for n in range(6)]
    assert writer.groups == [[0], [1, 2, 3, 4, 5]]


async def test_a_group_has_a_limit_and_the_order_is_kept() -> None:
    writer = Writer()
    grouping: Grouping[int, str] = Grouping(writer, limit=3)
    replies = await asyncio.gather(*(grouping(n) for n in range(8)))
    assert replies == [f"reply to {n}" for n in range(8)]
    assert writer.groups == [[0, 1, 2], [3, 4, 5], [6, 7]]


async def test_an_error_of_the_write_goes_to_every_caller_and_the_next_group_is_written() -> None:
    failures = [OSError("away")]

    async def write(requests: Sequence[int]) -> Sequence[int | Exception]:
        if failures:
            raise failures.pop()
        return list(requests)

    grouping: Grouping[int, int] = Grouping(write, limit=2)
    replies = await asyncio.gather(*(grouping(n) for n in range(4)), return_exceptions=True)
    assert [str(reply) for reply in replies] == ["away", "away", "2", "3"]


async def test_a_write_that_a_driver_gives_up_cancels_no_caller() -> None:
    async def write(requests: Sequence[int]) -> Sequence[int | Exception]:
        if 0 in requests:
            raise asyncio.CancelledError
        return list(requests)

    grouping: Grouping[int, int] = Grouping(write, limit=2)
    calls = [asyncio.create_task(grouping(n)) for n in range(4)]
    await asyncio.wait(calls, timeout=5)
    assert [type(call.exception()) for call in calls[:2]] == [StoreUnavailableError] * 2
    assert [call.result() for call in calls[2:]] == [2, 3], "the next group is written"


async def test_callers_are_cancelled_with_the_writing_of_their_group() -> None:
    grouping: Grouping[int, str] = Grouping(Writer(waits=True))
    call = asyncio.create_task(grouping(0))
    await _settle()
    assert grouping._pump is not None
    grouping._pump.cancel()
    await asyncio.wait([call], timeout=5)
    assert call.cancelled()


@pytest.mark.parametrize("ends", ["before it began", "while it writes"])
async def test_a_group_whose_writing_was_cancelled_is_drained_and_takes_new_calls(ends: str) -> None:
    writer = Writer(waits=True)
    grouping: Grouping[int, str] = Grouping(writer)
    call = asyncio.create_task(grouping(0))
    await asyncio.sleep(0)
    if ends == "while it writes":
        await _settle()
    assert grouping._pump is not None
    grouping._pump.cancel()
    call.cancel()
    await _settle()
    draining = asyncio.create_task(grouping.drain())
    try:
        await _settle()
        assert draining.done()
    finally:
        draining.cancel()
    writer.may_write.release()
    writer.may_write.release()
    assert await asyncio.wait_for(grouping(1), 5) == "reply to 1"


async def test_an_error_among_the_replies_goes_to_its_own_caller() -> None:
    grouping: Grouping[str, str] = Grouping(Writer())
    replies = await asyncio.gather(grouping("a"), grouping("bad"), grouping("b"), return_exceptions=True)
    assert [type(reply) for reply in replies] == [str, ValueError, str]


async def test_two_requests_of_one_key_never_share_a_group() -> None:
    writer = Writer()
    grouping: Grouping[str, str] = Grouping(writer, key=lambda request: request[0])
    requests = ["a1", "a2", "b1", "a3", "c1", "b2"]
    replies = await asyncio.gather(*(grouping(request) for request in requests))
    assert replies == [f"reply to {request}" for request in requests]
    assert writer.groups == [["a1", "b1", "c1"], ["a2", "b2"], ["a3"]]


async def test_keys_and_limit_together_lose_nobody() -> None:
    writer = Writer()
    grouping: Grouping[str, str] = Grouping(writer, limit=2, key=lambda request: request[0])
    requests = [f"{key}{n}" for n in range(5) for key in "abc"]
    await asyncio.gather(*(grouping(request) for request in requests))
    written = [request for group in writer.groups for request in group]
    assert sorted(written) == sorted(requests)
    for key in "abc":
        assert [request for request in written if request[0] == key] == [f"{key}{n}" for n in range(5)]


async def test_many_calls_of_one_key_are_looked_at_once_each_and_hold_up_no_other_key() -> None:
    looked_at: list[str] = []

    class Counted(str):
        def __hash__(self) -> int:
            looked_at.append(self)
            return super().__hash__()

    writer = Writer()
    grouping: Grouping[str, str] = Grouping(writer, limit=5, key=Counted)
    requests = ["a"] * 500 + ["b", "c"]
    await asyncio.gather(*map(grouping, requests))
    assert writer.groups == [["a", "b", "c"], *[["a"]] * 499]
    assert len(looked_at) < 10 * len(requests), "not every waiting call for every group"


async def test_the_next_call_of_a_key_is_written_if_those_before_it_gave_up() -> None:
    writer = Writer(waits=True)
    grouping: Grouping[str, str] = Grouping(writer, key=lambda request: request[0])
    calls = [asyncio.create_task(grouping(f"a{n}")) for n in range(5)]
    await _settle()
    for left in (1, 2, 3):
        calls[left].cancel()
    await _settle()
    for _ in range(3):
        writer.may_write.release()
    assert [await calls[0], await calls[4]] == ["reply to a0", "reply to a4"]
    assert await grouping("a5") == "reply to a5"
    assert writer.groups == [["a0"], ["a4"], ["a5"]]


async def test_a_caller_that_is_cancelled_does_not_stop_the_write() -> None:
    writer = Writer(waits=True)
    grouping: Grouping[int, str] = Grouping(writer)
    calls = [asyncio.create_task(grouping(n)) for n in range(3)]
    await _settle()
    calls[1].cancel()
    writer.may_write.release()
    replies = await asyncio.gather(*calls, return_exceptions=True)
    assert replies[0] == "reply to 0"
    assert isinstance(replies[1], asyncio.CancelledError)
    assert replies[2] == "reply to 2"
    assert writer.groups == [[0, 1, 2]]


async def test_draining_waits_until_nothing_waits() -> None:
    writer = Writer(waits=True)
    grouping: Grouping[int, str] = Grouping(writer, limit=1)
    calls = [asyncio.create_task(grouping(n)) for n in range(3)]
    await _settle()
    drained = asyncio.create_task(grouping.drain())
    for _ in range(3):
        await _settle()
        assert not drained.done()
        writer.may_write.release()
    await drained
    assert all(call.done() for call in calls) or await asyncio.gather(*calls)
    await grouping.drain()


async def test_an_idle_group_has_no_task() -> None:
    grouping: Grouping[int, str] = Grouping(Writer())
    before = asyncio.all_tasks()
    await grouping(1)
    await _settle()
    assert asyncio.all_tasks() == before


async def test_a_request_out_of_a_reply_is_written_too() -> None:
    writer = Writer()
    grouping: Grouping[int, str] = Grouping(writer)

    async def chain(n: int) -> str:
        reply = await grouping(n)
        return await chain(n - 1) if n else reply

    assert await asyncio.wait_for(chain(5), 5) == "reply to 0"
    assert [request for group in writer.groups for request in group] == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("size", [1, 7, 100, 101])
async def test_every_caller_gets_one_reply(size: int) -> None:
    writer = Writer()
    grouping: Grouping[int, str] = Grouping(writer, limit=10)
    assert len(await asyncio.gather(*(grouping(n) for n in range(size)))) == size
    assert sum(len(group) for group in writer.groups) == size


async def test_a_caller_that_gave_up_before_its_group_is_not_written() -> None:
    writer = Writer(waits=True)
    group: Grouping[str, str] = Grouping(writer)
    first = asyncio.create_task(group("first"))
    await _settle()
    second, third = asyncio.create_task(group("second")), asyncio.create_task(group("third"))
    await _settle()
    second.cancel()
    await _settle()
    writer.may_write.release()
    writer.may_write.release()
    assert [await first, await third] == ["reply to first", "reply to third"]
    assert writer.groups == [["first"], ["third"]]


async def test_calls_that_were_answered_together_come_back_together() -> None:
    writer = Writer()
    grouping: Grouping[int, str] = Grouping(writer)

    async def chain(first: int) -> None:
        await grouping(first)
        for _ in range(first % 4):  # not all are back in the same turn of the loop
            await asyncio.sleep(0)
        await grouping(first + 100)

    await asyncio.gather(*map(chain, range(8)))
    assert [len(group) for group in writer.groups] == [8, 8]


async def test_a_full_group_waits_for_nobody() -> None:
    writer = Writer()
    grouping: Grouping[int, str] = Grouping(writer, limit=2)
    await asyncio.gather(grouping(0), grouping(1))
    calls = [asyncio.create_task(grouping(n)) for n in (2, 3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(writer.groups) == 2
    await asyncio.gather(*calls)


async def test_a_call_without_a_reply_fails_in_its_time_and_what_is_written_goes_on() -> None:
    writer = Writer(waits=True)
    grouping: Grouping[int, str] = Grouping(writer, timeout=0.01, on_timeout=lambda: ConnectionError("late"))
    being_written = asyncio.create_task(grouping(0))
    await _settle()
    waiting = asyncio.create_task(grouping(1))
    for call in (being_written, waiting):
        with pytest.raises(ConnectionError, match="late"):
            await call
    writer.may_write.release()
    await grouping.drain()
    assert writer.groups == [[0]], "nobody waits for the second any more"
    writer.may_write.release()
    assert await grouping(2) == "reply to 2"


async def test_each_call_of_a_group_has_its_own_time_limit() -> None:
    writer = Writer(waits=True)
    grouping: Grouping[int, str] = Grouping(writer, timeout=1)
    loop = asyncio.get_running_loop()
    answered = asyncio.create_task(grouping(0))
    await asyncio.sleep(0.2)
    writer.may_write.release()
    assert await answered == "reply to 0"
    begun_at = loop.time()
    with pytest.raises(TimeoutError):
        await grouping(1)
    assert loop.time() - begun_at >= 0.99, "not at the time of the first one's timer"
    writer.may_write.release()
    await grouping.drain()


async def test_a_call_on_another_event_loop_is_refused() -> None:
    writer = Writer()
    group: Grouping[Any, Any] = Grouping(writer)
    with pytest.raises(NotRunningError, match="another event loop"):  # even if it is the first call
        await asyncio.to_thread(lambda: asyncio.run(group(1)))
    assert await group(2) == "reply to 2"
    assert writer.groups == [[2]]


def test_without_a_loop_the_first_call_says_which_it_is() -> None:
    group: Grouping[Any, Any] = Grouping(Writer())

    async def use() -> None:
        assert await group(1) == "reply to 1"
        with pytest.raises(NotRunningError, match="another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(group(2)))

    asyncio.run(use())
