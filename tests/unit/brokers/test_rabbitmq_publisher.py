"""Publishing on a fake channel: which outcome each of the driver's answers has, and what it means for the channel."""

from __future__ import annotations

import asyncio
import struct
from typing import cast

import aiormq
import pytest
from aio_pika.abc import AbstractChannel
from aiormq import spec
from aiormq.exceptions import ChannelInvalidStateError, ChannelNotFoundEntity, DeliveryError, PublishError
from pamqp.header import ContentHeader

from taskframework.brokers.rabbitmq.connection import Line
from taskframework.brokers.rabbitmq.messages import Publication, task_publication
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
    """Confirms when told to, or fails as told."""

    def __init__(self) -> None:
        self.close_callbacks: set[object] = set()
        self.confirm = asyncio.Event()
        self.error: BaseException | None = None
        self.sent: list[dict[str, object]] = []

    async def basic_publish(self, body: bytes, **arguments: object) -> None:
        self.sent.append({"body": body, **arguments})
        if self.error is not None:
            raise self.error
        await self.confirm.wait()


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
    frame = spec.Basic.Return(312, "NO_ROUTE", "tasks.exchange", "reports.normal")
    message = aiormq.abc.DeliveredMessage(frame, ContentHeader(), b"", cast(aiormq.abc.AbstractChannel, None))
    return PublishError(message, frame)


async def test_everything_of_the_publication_reaches_the_driver() -> None:
    bench = Bench()
    bench.fake.confirm.set()
    await bench.channel.send(_PUBLICATION)
    assert bench.fake.sent == [
        {
            "body": _PUBLICATION.body,
            "exchange": "tasks.exchange",
            "routing_key": "reports.normal",
            "properties": _PUBLICATION.properties,
            "mandatory": True,
            "wait": False,
        }
    ]


@pytest.mark.parametrize(
    "error",
    [
        _returned(),
        DeliveryError(None, spec.Basic.Nack(1)),
        ValueError("bad"),
        struct.error("bad"),
        OverflowError("bad"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_refusal_says_nothing_against_the_channel(error: Exception) -> None:
    bench = Bench()
    refusal = await bench.fails(error)
    assert type(refusal) is PublishRefusedError
    assert is_about_topology(refusal) is isinstance(error, PublishError)
    assert not bench.channel.lost.is_set()


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
    sending[0].cancel()
    closing = asyncio.create_task(bench.channel.close())
    await asyncio.wait([sending[0]])
    await asyncio.sleep(0)
    assert not bench.line.is_closed
    bench.fake.confirm.set()
    await closing
    assert bench.line.is_closed
    assert [task.exception() for task in sending[1:]] == [None, None]
