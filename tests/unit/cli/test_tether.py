"""The line between a parent and one of its worker processes, both ends in one event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from taskframework.cli import tether as tether_module
from taskframework.cli.tether import Answer, Failure, Tether, WorkerLink
from taskframework.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    StoreUnavailableError,
    TaskframeworkError,
    TopologyMismatchError,
)
from taskframework.testing.eventually import eventually


@dataclass(slots=True)
class Pair:
    """Both ends, and what they were told."""

    tether: Tether
    link: WorkerLink
    listening: asyncio.Task[None]
    told: list[str] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, path: str) -> Answer:
        await self.may_answer.wait()
        return Answer(200, f"this is {path}")


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    ours, theirs = socket.socketpair()
    told: list[str] = []
    link = WorkerLink(lambda: told.append("ready"))
    made = Pair(Tether(theirs.detach()), link, asyncio.create_task(link.listen(ours)), told)
    made.tether.answer = made.answer
    await made.tether.listen(lambda: told.append("cut"))
    yield made
    made.may_answer.set()
    await made.tether.close()
    made.tether._socket.close()
    await made.listening


async def test_a_ready_process_tells_its_parent(pair: Pair) -> None:
    pair.tether.report_ready()
    await eventually(lambda: pair.told == ["ready"])


async def test_questions_are_answered_whatever_their_order(pair: Pair) -> None:
    late = asyncio.create_task(pair.link.ask("/late", within=0.02))
    assert await late is None
    asked = [asyncio.create_task(pair.link.ask(path, within=10)) for path in ("/one", "/two")]
    await asyncio.sleep(0)
    pair.may_answer.set()
    assert await asyncio.gather(*asked) == [Answer(200, "this is /one"), Answer(200, "this is /two")]


async def test_a_process_that_has_ended_answers_nothing(pair: Pair) -> None:
    asked = asyncio.create_task(pair.link.ask("/readyz", within=10))
    await asyncio.sleep(0)
    await _close(pair)
    assert await asked is None
    assert await pair.link.ask("/readyz", within=10) is None


async def test_the_end_of_the_connection_is_a_request_to_stop(pair: Pair) -> None:
    pair.link.request_stop()
    pair.link.request_stop()
    await eventually(lambda: pair.told == ["cut"])
    pair.tether.report_ready()  # the other direction is still there
    await eventually(lambda: pair.told == ["cut", "ready"])


async def test_a_cut_before_the_line_is_open_counts() -> None:
    ours, theirs = socket.socketpair()
    link = WorkerLink(lambda: None)
    link.request_stop()
    listening = asyncio.create_task(link.listen(ours))
    with theirs:
        theirs.setblocking(False)
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(theirs, 1), 10) == b""
    await listening


@pytest.mark.parametrize("last", [b'{"number": 1, "pa', b"not JSON\n"])
async def test_a_parent_that_dies_in_the_middle_of_a_question_is_gone(last: bytes) -> None:
    ours, theirs = socket.socketpair()
    tether, told = Tether(theirs.detach()), list[str]()
    await tether.listen(lambda: told.append("cut"))
    with ours:
        ours.sendall(last)
    await eventually(lambda: told == ["cut"])
    await tether.close()
    tether._socket.close()


async def test_a_process_that_dies_in_the_middle_of_an_answer_is_gone() -> None:
    ours, theirs = socket.socketpair()
    told = list[str]()
    link = WorkerLink(lambda: told.append("ready"))
    listening = asyncio.create_task(link.listen(ours))
    with theirs:
        theirs.sendall(b'{"ready": true}\n{"number": 1, "status": 200, "body": "# HELP')
    await listening
    assert told == ["ready"]


async def test_a_connection_closed_by_the_process_itself_is_no_stop_request(pair: Pair) -> None:
    await pair.tether.close()
    assert pair.told == []


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (ConfigurationError("It is wrong.", key="app.modules", hint="Correct it."), False),
        (TopologyMismatchError("tasks.a.high", "other arguments"), False),
        (StoreUnavailableError("away"), True),
        (BrokerUnavailableError("away"), True),
    ],
)
async def test_the_error_of_a_process_is_left_to_its_parent_to_report(
    pair: Pair, error: TaskframeworkError, may_pass: bool
) -> None:
    def fail() -> None:
        with pytest.raises(SystemExit, match="1"), pair.tether.reporting():
            raise error

    await pair.tether.close()
    await asyncio.to_thread(fail)
    await _close(pair)
    assert pair.link.failure == Failure(error.message, error.hint, may_pass)


async def test_a_parent_that_is_frozen_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tether_module, "_REST_SECONDS", 0.01)
    frozen, ours = socket.socketpair()
    tether = Tether(ours.detach())
    await tether.listen(lambda: None)
    tether._send(number=1, status=200, body="x" * 4_000_000)
    closing = asyncio.create_task(tether.close())
    try:
        await eventually(closing.done, timeout=10)
    finally:
        frozen.close()
        await closing
        tether._socket.close()


async def test_an_answer_that_is_on_its_way_is_sent_before_the_end(pair: Pair) -> None:
    body = "x" * 4_000_000
    asked = asyncio.create_task(pair.link.ask("/metrics", within=10))
    await asyncio.sleep(0)
    pair.tether._send(number=1, status=200, body=body)
    assert pair.tether._writer is not None
    assert pair.tether._writer.transport.get_write_buffer_size()
    pair.may_answer.set()
    await pair.tether.close()
    assert await asked == Answer(200, body)


def test_a_process_without_a_parent_raises_its_own_error() -> None:
    ours, theirs = socket.socketpair()
    tether = Tether(theirs.detach())
    ours.close()
    with pytest.raises(StoreUnavailableError), tether.reporting():
        raise StoreUnavailableError("away")
    tether._socket.close()


async def _close(pair: Pair) -> None:
    pair.may_answer.set()
    await pair.tether.close()
    pair.tether._socket.close()
    await pair.listening
