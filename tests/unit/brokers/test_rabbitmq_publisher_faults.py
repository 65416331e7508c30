"""The publisher, the driver and a server that misbehaves: every publication ends in our words, and it goes on."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Literal

import pytest
from aiormq import spec
from pamqp import frame

from taskframework.brokers.rabbitmq.connection import Connector
from taskframework.brokers.rabbitmq.publisher import Publisher, is_about_topology
from taskframework.errors import BrokerError, BrokerUnavailableError
from taskframework.settings.servers import BrokerSettings
from taskframework.testing.eventually import eventually
from tests.support.amqp import confirm_frame, returned_frames
from tests.support.publishing import CHANNEL, publication
from tests.support.scripted_broker import ScriptedBroker

_SECONDS = timedelta(seconds=30)
FastPath = Literal["auto", "off"]

pytestmark = pytest.mark.parametrize("fast_path", ["auto", "off"])


def _method_frame(payload: bytes, kind: int = 1) -> bytes:
    return struct.pack(">BHI", kind, CHANNEL, len(payload)) + payload + b"\xce"


def _cut_in_a_frame(broker: ScriptedBroker) -> None:
    broker.says(confirm_frame(CHANNEL, 1)[:9])
    broker.hangs_up()


_BAD_HEADER = _method_frame(struct.pack(">HHQHIB", 60, 0, 0, 1 << 13, 4, 1) + b"\xe4t\1", kind=2)
_ENDS: dict[str, Callable[[ScriptedBroker], None]] = {
    "returned header": lambda broker: broker.says(returned_frames(CHANNEL, "x")[0], _BAD_HEADER),
    "short ack": lambda broker: broker.says(_method_frame(struct.pack(">HHQ", 60, 80, 2))),
    "short nack": lambda broker: broker.says(_method_frame(struct.pack(">HHI", 60, 120, 2))),
    "no end mark": lambda broker: broker.says(confirm_frame(CHANNEL, 2, multiple=True)[:-1] + b"\0"),
    "cut": lambda broker: broker.hangs_up(),
    "cut in a frame": _cut_in_a_frame,
    "closed channel": lambda broker: broker.says(
        frame.marshal(spec.Channel.Close(404, "NOT_FOUND - no exchange", 60, 40), CHANNEL)
    ),
    "closed connection": lambda broker: broker.says(
        frame.marshal(spec.Connection.Close(320, "CONNECTION_FORCED", 0, 0), 0)
    ),
}


@asynccontextmanager
async def _published_to(broker: ScriptedBroker, fast_path: FastPath) -> AsyncIterator[Publisher]:
    async def prepare() -> None:
        pass

    connector = Connector(BrokerSettings(url=broker.url, connect_timeout=_SECONDS, fast_path=fast_path))
    publisher = Publisher(connector, prepare, timeout=_SECONDS, max_unconfirmed=10)
    publisher.open()
    try:
        yield publisher
    finally:
        await publisher.close()


@pytest.mark.parametrize("end", _ENDS)
async def test_a_lost_connection_fails_all_publications_and_the_next_one_serves(
    end: str, fast_path: FastPath, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taskframework.brokers.rabbitmq.connection")
    async with ScriptedBroker() as broker, _published_to(broker, fast_path) as publisher:
        sending = [asyncio.create_task(publisher.publish(publication())) for _ in range(2)]
        await eventually(lambda: len(broker.published) == 2)
        _ENDS[end](broker)
        outcomes = await asyncio.wait_for(asyncio.gather(*sending, return_exceptions=True), 10)
        for outcome in outcomes:
            assert type(outcome) is BrokerUnavailableError
            assert "confirmed nothing within" not in str(outcome), "not by its time limit"
            assert is_about_topology(outcome) is (end == "closed channel")
        await eventually(lambda: broker.connections == 2 and publisher.is_connected, timeout=10)
        again = asyncio.create_task(publisher.publish(publication()))
        await eventually(lambda: len(broker.published) == 1)
        broker.says(confirm_frame(CHANNEL, 1))
        await again
    assert "data_received() call failed" not in caplog.text
    # A connection that the broker ended is told as lost, and then as back; the first connection is not told.
    lost, back = (caplog.text.count(f"RabbitMQ (publisher) {what}") for what in ("was lost", "is back"))
    assert lost == back
    if end in ("cut", "cut in a frame", "closed connection"):
        assert back == 1


async def test_a_broker_that_was_away_at_the_start_is_logged_when_it_is_reached(
    fast_path: FastPath, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taskframework.brokers.rabbitmq.connection")
    async with ScriptedBroker() as gone:
        pass
    connector = Connector(BrokerSettings(url=gone.url, connect_timeout=_SECONDS, fast_path=fast_path))
    for is_lasting in (True, True, False):
        with pytest.raises(BrokerUnavailableError):
            await connector.open("publisher" if is_lasting else "topology", is_lasting=is_lasting)
    async with ScriptedBroker() as broker:
        connector._url = Connector(BrokerSettings(url=broker.url))._url
        for purpose in ("publisher", "topology"):
            await (await connector.open(purpose)).close()
    assert [message.partition(" after ")[0] for message in caplog.messages] == [
        "the connection to RabbitMQ (publisher) is back"
    ]


async def test_confirms_and_returns_come_through_the_driver_s_socket(fast_path: FastPath) -> None:
    async with ScriptedBroker() as broker, _published_to(broker, fast_path) as publisher:
        sending = [asyncio.create_task(publisher.publish(publication())) for _ in range(3)]
        await eventually(lambda: len(broker.published) == 3)
        broker.says(*returned_frames(CHANNEL, broker.published[1]), confirm_frame(CHANNEL, 3, multiple=True))
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        assert [isinstance(outcome, BrokerError) for outcome in outcomes] == [False, True, False]
        assert publisher.is_connected


async def test_during_an_alarm_publications_fail_and_earlier_ones_are_confirmed_after_it(fast_path: FastPath) -> None:
    async with ScriptedBroker() as broker, _published_to(broker, fast_path) as publisher:
        sending = asyncio.create_task(publisher.publish(publication()))
        await eventually(lambda: len(broker.published) == 1)
        broker.says(frame.marshal(spec.Connection.Blocked("low on memory"), 0))
        await eventually(lambda: not publisher.is_connected)
        with pytest.raises(BrokerUnavailableError, match="memory or disk alarm"):
            await publisher.publish(publication())
        broker.says(confirm_frame(CHANNEL, 1), frame.marshal(spec.Connection.Unblocked(), 0))
        await sending
        await eventually(lambda: publisher.is_connected)
        assert broker.connections == 1
