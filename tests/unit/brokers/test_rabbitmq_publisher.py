"""Publishing on a fake channel: which outcome each of the driver's answers has, and what it means for the channel."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import aiormq
import pytest
from aio_pika.abc import AbstractChannel
from aiormq import spec
from aiormq.abc import ChannelFrame
from aiormq.exceptions import ChannelInvalidStateError, ChannelNotFoundEntity, DeliveryError, PublishError
from pamqp import frame
from pamqp.header import ContentHeader

from taskframework.brokers.rabbitmq.connection import Line
from taskframework.brokers.rabbitmq.messages import Publication, task_publication
from taskframework.brokers.rabbitmq.properties import OwnProperties
from taskframework.brokers.rabbitmq.publisher import PublishChannel, is_about_topology
from taskframework.brokers.rabbitmq.topology import Names
from taskframework.errors import BrokerError, BrokerUnavailableError, PublishRefusedError
from taskframework.model.message import TaskMessage

_PUBLICATION = task_publication(Names("tasks"), TaskMessage("t1", "reports", 1), None)


class FakeLine:
    """A connection whose alarm can be rung."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.is_blocked = False
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


class FakeChannel:
    """What a driver's channel has for those who publish: confirms when told to, or fails as told."""

    def __init__(self) -> None:
        self.close_callbacks: set[object] = set()
        self.number, self.max_content_size, self.is_closed = 1, 100, False
        self.delivery_tag = 0
        self.confirmations: dict[int, asyncio.Future[object]] = {}
        self.message_id_delivery_tag: dict[str, int] = {}
        self.write_queue = self
        self.confirm = asyncio.Event()
        self.error: BaseException | None = None
        self.pieces: list[bytes] = []
        self._confirming: set[asyncio.Task[None]] = set()

    def create_future(self) -> asyncio.Future[object]:
        return asyncio.get_running_loop().create_future()

    async def put(self, piece: ChannelFrame) -> None:
        self.pieces.append(piece.payload)
        task = asyncio.create_task(self._answer(list(self.confirmations.values())))
        self._confirming.add(task)

    async def _answer(self, confirmations: list[asyncio.Future[object]]) -> None:
        if self.error is None:
            await self.confirm.wait()
        for confirmation in confirmations:
            if isinstance(self.error, asyncio.CancelledError):
                confirmation.cancel()
            elif not confirmation.done():
                confirmation.set_exception(self.error) if self.error else confirmation.set_result(None)

    @property
    def sent(self) -> list[Any]:
        """The frames that were written."""
        frames, left = [], b"".join(self.pieces)
        while left:
            size, _, decoded = frame.unmarshal(left)
            frames.append(decoded)
            left = left[size:]
        return frames


class Bench:
    def __init__(self) -> None:
        self.line, self.fake = FakeLine(), FakeChannel()
        self.channel = PublishChannel(
            cast(Line, self.line), cast(AbstractChannel, self.fake), cast(aiormq.Channel, self.fake)
        )

    async def fails(self, error: BaseException, publication: Publication = _PUBLICATION) -> BrokerError:
        self.fake.error = error
        with pytest.raises(BrokerError) as caught:
            await self.channel.send(publication)
        return caught.value


def _returned() -> PublishError:
    returned = spec.Basic.Return(312, "NO_ROUTE", "tasks.exchange", "reports.normal")
    message = aiormq.abc.DeliveredMessage(returned, ContentHeader(), b"", cast(aiormq.abc.AbstractChannel, None))
    return PublishError(message, returned)


async def test_everything_of_the_publication_reaches_the_broker() -> None:
    bench = Bench()
    bench.fake.confirm.set()
    await bench.channel.send(_PUBLICATION)
    method, header, *bodies = bench.fake.sent
    assert (method.exchange, method.routing_key, method.mandatory) == ("tasks.exchange", "reports.normal", True)
    assert header.body_size == len(_PUBLICATION.body)
    assert header.properties.message_id == _PUBLICATION.properties.message_id
    assert header.properties.headers == _PUBLICATION.properties.headers
    assert b"".join(body.value for body in bodies) == _PUBLICATION.body


async def test_a_long_body_is_written_in_the_pieces_the_broker_takes() -> None:
    bench = Bench()
    bench.fake.confirm.set()
    long = replace(_PUBLICATION, body=bytes(range(250)))
    await bench.channel.send(long)
    _, header, *bodies = bench.fake.sent
    assert header.body_size == 250
    assert [len(body.value) for body in bodies] == [100, 100, 50]
    assert b"".join(body.value for body in bodies) == long.body


async def test_what_is_published_in_one_moment_leaves_in_one_piece_and_in_order() -> None:
    bench = Bench()
    bench.fake.confirm.set()
    publications = [task_publication(Names("tasks"), TaskMessage(f"t{n}", "reports", 1), None) for n in range(5)]
    await asyncio.gather(*map(bench.channel.send, publications))
    assert len(bench.fake.pieces) == 1
    headers = [sent for sent in bench.fake.sent if isinstance(sent, ContentHeader)]
    assert [(header.properties.headers or {})["task_id"] for header in headers] == [f"t{n}" for n in range(5)]
    assert list(bench.fake.confirmations) == [1, 2, 3, 4, 5]
    await asyncio.sleep(0)
    assert bench.fake.message_id_delivery_tag == {}


@pytest.mark.parametrize(
    "error", [_returned(), DeliveryError(None, spec.Basic.Nack(1))], ids=lambda error: type(error).__name__
)
async def test_a_refusal_says_nothing_against_the_channel(error: Exception) -> None:
    bench = Bench()
    refusal = await bench.fails(error)
    assert type(refusal) is PublishRefusedError
    assert is_about_topology(refusal) is isinstance(error, PublishError)
    assert not bench.channel.lost.is_set()


@pytest.mark.parametrize("headers", [{"n": 2**70}, {"n" * 300: "x"}, {"n": object()}], ids=["huge", "long", "odd"])
async def test_what_cannot_be_written_takes_no_number_of_a_confirm(headers: dict[str, Any]) -> None:
    bench = Bench()
    bench.fake.confirm.set()
    bad = replace(_PUBLICATION, properties=OwnProperties(headers=headers, message_id="m"))
    with pytest.raises(PublishRefusedError):
        await bench.channel.send(bad)
    assert (bench.fake.delivery_tag, bench.fake.pieces) == (0, [])
    assert not bench.channel.lost.is_set()
    await bench.channel.send(_PUBLICATION)
    assert bench.fake.delivery_tag == 1


@pytest.mark.parametrize(
    "error",
    [
        ChannelNotFoundEntity("NOT_FOUND - no exchange"),
        ChannelInvalidStateError("closed"),
        ConnectionResetError("reset"),
        asyncio.CancelledError(),
        Exception(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_unknown_outcome_ends_the_channel(error: BaseException) -> None:
    bench = Bench()
    failure = await bench.fails(error)
    assert type(failure) is BrokerUnavailableError
    assert is_about_topology(failure) is isinstance(error, ChannelNotFoundEntity)
    assert bench.channel.lost.is_set()


async def test_a_channel_that_closed_meanwhile_says_so_at_once() -> None:
    bench = Bench()
    bench.fake.is_closed = True
    with pytest.raises(BrokerUnavailableError):
        await bench.channel.send(_PUBLICATION)
    assert bench.channel.lost.is_set()


@pytest.mark.parametrize("is_blocked", [False, True])
async def test_a_cancelled_publication_ends_the_channel_unless_an_alarm_holds_it(is_blocked: bool) -> None:
    bench = Bench()
    bench.line.is_blocked = is_blocked
    sending = asyncio.create_task(bench.channel.send(_PUBLICATION))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert bench.channel.lost.is_set() is not is_blocked


async def test_a_retired_channel_closes_after_the_last_confirm() -> None:
    bench = Bench()
    sending = [asyncio.create_task(bench.channel.send(_PUBLICATION)) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    sending[0].cancel()
    closing = asyncio.create_task(bench.channel.close())
    await asyncio.wait([sending[0]])
    await asyncio.sleep(0)
    assert not bench.line.is_closed
    bench.fake.confirm.set()
    await closing
    assert bench.line.is_closed
    assert [task.exception() for task in sending[1:]] == [None, None]
