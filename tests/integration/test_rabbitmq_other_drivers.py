"""Releases of the driver that could come, simulated: each costs speed and one warning, and no message."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

import aio_pika
import aiormq
import pytest
from aiormq.connection import TransportFactory
from pamqp.body import ContentBody
from yarl import URL

from taskframework.brokers.base import ConsumeRequest
from taskframework.brokers.rabbitmq import RabbitBroker
from taskframework.brokers.rabbitmq.fast.transport import FrameTransport
from taskframework.brokers.rabbitmq.fast.writer import FastWriter
from taskframework.brokers.rabbitmq.plain import PlainWriter
from taskframework.errors import PublishRefusedError
from tests.integration.rabbitmq_helpers import Recorder, message, opened, rabbit_broker

Patch = pytest.MonkeyPatch
#: What a transport gives to the driver; anything that looks like it will do.
Streams = tuple[Any, Any]


class _Changed(TransportFactory):
    """A driver's own layer around the transport that it was given."""

    def __init__(self, given: TransportFactory, change: Callable[[Streams], Streams]) -> None:
        self._given, self._change = given, change

    async def create(self, url: URL, **kwargs: Any) -> Streams:
        return self._change(await self._given.create(url, **kwargs))


class _InPieces:
    """A stream writer that writes each frame in two pieces."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def write(self, data: bytes) -> None:
        self._writer.write(data[:3])
        self._writer.write(data[3:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class _Unwatched(_InPieces):
    """One that writes straight to the socket's transport."""

    def write(self, data: bytes) -> None:
        self._writer.transport.write(data)


class _OtherClass:
    """A channel of a class that is not known."""

    def __init__(self, channel: aiormq.abc.AbstractChannel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


def _read_elsewhere(streams: Streams) -> Streams:
    reader = asyncio.StreamReader()
    streams[1].transport.set_protocol(asyncio.StreamReaderProtocol(reader))
    return reader, streams[1]


def _connects(patch: Patch, change: Callable[[dict[str, Any]], None]) -> None:
    begin = aiormq.Connection.__init__

    def init(self: aiormq.Connection, url: URL, **kwargs: Any) -> None:
        if "transport_factory" in kwargs:
            change(kwargs)
        begin(self, url, **kwargs)

    patch.setattr(aiormq.Connection, "__init__", init)


def _with_streams(patch: Patch, change: Callable[[Streams], Streams]) -> None:
    def wrap(kwargs: dict[str, Any]) -> None:
        kwargs["transport_factory"] = _Changed(kwargs["transport_factory"], change)

    _connects(patch, wrap)


def _refuse(_: dict[str, Any]) -> None:
    raise TypeError("unexpected keyword argument 'transport_factory'")


def _rename_the_size(patch: Patch) -> None:
    begin = aiormq.Channel.__init__

    def init(self: aiormq.Channel, *arguments: Any, **kwargs: Any) -> None:
        begin(self, *arguments, **kwargs)
        del self.max_content_size

    patch.setattr(aiormq.Channel, "__init__", init)
    patch.setattr(aiormq.Channel, "_split_body", lambda _, body: [ContentBody(body)])


def _give_another_class(patch: Patch) -> None:
    original = aio_pika.Channel.get_underlay_channel

    async def get(self: aio_pika.Channel) -> Any:
        return _OtherClass(await original(self))

    patch.setattr(aio_pika.Channel, "get_underlay_channel", get)


def _fail_the_proof(patch: Patch) -> None:
    def fail(*_: object) -> bool:
        raise RuntimeError("cannot tell")

    patch.setattr(FrameTransport, "is_serving", fail)


def _miss_a_name(patch: Patch) -> None:
    patch.setitem(sys.modules, "taskframework.brokers.rabbitmq.fast.wire", None)


_DRIVERS: dict[str, Callable[[Patch], None]] = {
    "ignores the transport": lambda patch: _connects(patch, lambda kwargs: kwargs.pop("transport_factory")),
    "knows no transport": lambda patch: _connects(patch, _refuse),
    "reads elsewhere": lambda patch: _with_streams(patch, _read_elsewhere),
    "writes elsewhere": lambda patch: _with_streams(patch, lambda both: (both[0], _Unwatched(both[1]))),
    "writes in pieces": lambda patch: _with_streams(patch, lambda both: (both[0], _InPieces(both[1]))),
    "renamed an attribute": _rename_the_size,
    "has channels of another class": _give_another_class,
    "fails in the proof": _fail_the_proof,
    "misses a name": _miss_a_name,
}


def _told_by_connections(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Not what is told of the message that no queue takes: its queue is declared."""
    return [record for record in caplog.records if record.name == "taskframework.brokers.rabbitmq.connection"]


@pytest.mark.parametrize("driver", _DRIVERS)
async def test_a_driver_that_changed_costs_a_warning_and_no_message(
    driver: str, amqp_url: str, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    _DRIVERS[driver](monkeypatch)
    assert await _writer_after_use(amqp_url) is PlainWriter
    [warning] = _told_by_connections(caplog)
    assert "the plain way" in warning.message
    assert "broker.fast_path" in warning.message


async def test_the_present_driver_passes_the_proof(amqp_url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert await _writer_after_use(amqp_url) is FastWriter
    assert _told_by_connections(caplog) == []


async def test_with_the_fast_path_off_the_plain_path_is_used_without_a_warning(
    amqp_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await _writer_after_use(amqp_url, fast_path="off") is PlainWriter
    assert _told_by_connections(caplog) == []


async def _writer_after_use(amqp_url: str, **settings: Any) -> type:
    """Publish and consume; returns the class of what published."""
    async with opened(rabbit_broker(amqp_url, **settings), "reports") as broker:
        received = Recorder()
        broker.consume(ConsumeRequest(["reports"], 3), received)
        task_ids = [f"t{number}" for number in range(20)]
        await asyncio.gather(*(broker.publish(message(task_id)) for task_id in task_ids))
        with pytest.raises(PublishRefusedError, match="No queue takes"):
            await broker.publish(message("t1", "nobodys"))
        await received.has(*task_ids)
        assert received.task_ids == task_ids
        return type(_writer(broker))


def _writer(broker: RabbitBroker) -> object:
    channel = broker._publisher._supervised_channel.value
    assert channel is not None
    return channel._writer
