"""When the fast path is tried, given up, and no longer written on. What a driver does: see the integration tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aio_pika import Connection
from aiormq import spec
from aiormq.exceptions import AMQPConnectionError
from pamqp import frame
from yarl import URL

from taskframework.brokers.rabbitmq.connection import Connector, MakeWire
from taskframework.brokers.rabbitmq.fast.incoming_frames import opened_channels
from taskframework.brokers.rabbitmq.fast.transport import FrameTransport
from taskframework.brokers.rabbitmq.fast.wire import FastWire
from taskframework.brokers.rabbitmq.plain import PlainWire
from taskframework.errors import BrokerUnavailableError
from taskframework.settings.servers import BrokerSettings

OPEN = frame.marshal(spec.Channel.Open(), 1)
OPEN_OK = frame.marshal(spec.Channel.OpenOk(), 1)


class FakeConnector(Connector):
    """Connects as it is told: True works, False fails."""

    def __init__(self, *outcomes: bool) -> None:
        super().__init__(BrokerSettings(url="amqp://here/"))
        self.outcomes = list(outcomes)
        #: Every connection that was tried, and those that were closed.
        self.tried: list[type] = []
        self.closed: list[type] = []

    async def _open(self, purpose: str, make_wire: MakeWire, is_kept: bool) -> Any:
        kind = type(make_wire(cast(Connection, SimpleNamespace(kwargs={}))))
        self.tried.append(kind)
        if not self.outcomes.pop(0):
            raise BrokerUnavailableError("away")

        async def close() -> None:
            self.closed.append(kind)

        return SimpleNamespace(kind=kind, close=close)


class StoppedConnector(FakeConnector):
    """Is stopped while it closes the plain connection."""

    async def _open(self, purpose: str, make_wire: MakeWire, is_kept: bool) -> Any:
        opened = await super()._open(purpose, make_wire, is_kept)
        if opened.kind is PlainWire:
            opened.close = self._be_stopped
        return opened

    async def _be_stopped(self) -> None:
        raise asyncio.CancelledError


async def test_a_stop_while_the_plain_connection_closes_leaves_no_other_open() -> None:
    connector = StoppedConnector(False, True, True)
    with pytest.raises(asyncio.CancelledError):
        await connector.open("publisher")
    assert connector.closed == [FastWire]


async def test_a_broker_that_came_meanwhile_is_no_reason_to_give_the_fast_path_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connector = FakeConnector(False, True, True)
    opened: Any = await connector.open("test")
    assert opened.kind is FastWire
    assert connector.tried == [FastWire, PlainWire, FastWire]
    assert connector.closed == [PlainWire]
    assert caplog.records == []


async def test_a_connection_that_only_works_without_the_fast_path_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connector = FakeConnector(False, True, False, False, True, False)
    for _ in range(2):
        opened: Any = await connector.open("test")
        assert opened.kind is PlainWire
    assert connector.closed == []
    assert len(caplog.records) == 1


async def test_a_broker_that_is_away_is_unavailable_without_a_fast_path_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(BrokerUnavailableError):
        await FakeConnector(False, False).open("test")
    assert caplog.records == []


async def test_a_short_connection_goes_the_plain_way() -> None:
    connector = FakeConnector(True)
    await connector.open("test", is_lasting=False)
    assert connector.tried == [PlainWire]


@pytest.fixture
async def wire() -> AsyncIterator[tuple[FrameTransport, asyncio.StreamWriter, Callable[[bytes], bytes]]]:
    """A transport, the driver's writer on it, and a way to have the broker say something."""
    peers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: peers.append(writer), "localhost", 0)
    transport = FrameTransport()
    url = URL(f"amqp://localhost:{server.sockets[0].getsockname()[1]}/")
    async with server:
        _, writer = await transport.create(url, ssl_context_provider=None)
        yield transport, writer, transport.incoming.split
        writer.close()
        await writer.wait_closed()
        for peer in peers:
            peer.close()


Wire = tuple[FrameTransport, asyncio.StreamWriter, Callable[[bytes], bytes]]


async def test_a_channel_is_served_when_its_request_and_its_answer_were_seen(wire: Wire) -> None:
    transport, writer, broker_says = wire
    assert not transport.is_serving(1)
    writer.write(b"AMQP\0\0\x09\1")
    writer.writelines([OPEN, OPEN])
    assert not transport.is_serving(1)
    broker_says(OPEN_OK)
    assert transport.is_serving(1)
    assert not transport.is_serving(2)
    assert not transport.is_serving(None)


async def test_beside_a_frame_that_is_not_whole_nothing_is_written(wire: Wire) -> None:
    transport, writer, _ = wire
    transport.write(OPEN)
    writer.write(OPEN[:5])
    with pytest.raises(AMQPConnectionError):
        transport.write(OPEN)
    writer.write(OPEN[5:])
    with pytest.raises(AMQPConnectionError):
        transport.write(OPEN)


async def test_without_a_connection_nothing_is_written() -> None:
    with pytest.raises(AMQPConnectionError):
        FrameTransport().write(OPEN)


@pytest.mark.parametrize(
    ("data", "channels"),
    [
        (b"", []),
        (OPEN, [1]),
        (frame.marshal(spec.Channel.Open(), 300) + OPEN_OK + OPEN, [300, 1]),
        (OPEN + OPEN[:9], None),
        (OPEN[:-1], None),
        (OPEN[:-1] + b"\0", None),
        (b"x", None),
    ],
)
def test_requests_are_found_in_whole_frames_only(data: bytes, channels: list[int] | None) -> None:
    assert opened_channels(data) == channels
