"""The fast way over a connection, channel by channel, wherever the driver still works as it is expected to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import aiormq
from aio_pika import Connection
from aio_pika.abc import AbstractChannel

from taskframework.brokers.rabbitmq.fast.properties import read_properties
from taskframework.brokers.rabbitmq.fast.transport import FrameTransport
from taskframework.brokers.rabbitmq.fast.writing import FastWriter
from taskframework.brokers.rabbitmq.plain import PlainWire
from taskframework.brokers.rabbitmq.wire import PublicationWriter, Take

#: Told why the fast path is not taken.
Refuse = Callable[[str], None]


class FastWire:
    """Reads and writes beside the driver on channels that provably go through our transport, else the plain way.

    The proof is the opening of the channel: the driver's request went out through our transport in whole frames, and
    the broker's answer was seen in it. The driver is given the plain callback in any case, so that a delivery which is
    not taken out before it is only slower.
    """

    def __init__(self, connection: Connection, refuse: Refuse) -> None:
        """Prepare a connection that will be opened."""
        self._refuse = refuse
        self._transport = FrameTransport()
        self._plain = PlainWire()
        # aio-pika has no parameter for a transport; this is what it passes on to aiormq, which has one.
        connection.kwargs["transport_factory"] = self._transport

    async def consume(
        self, channel: AbstractChannel, queue: str, take: Take, arguments: Mapping[str, int] | None
    ) -> str:
        try:
            self._transport.incoming.register(
                self._proven(channel), lambda tag, header, body: take(tag, body, partial(read_properties, header))
            )
        except Exception as error:
            self._refuse(f"reading deliveries: {error!r}")
        return await self._plain.consume(channel, queue, take, arguments)

    async def writer(self, channel: AbstractChannel) -> PublicationWriter:
        try:
            self._proven(channel)
            inner = await channel.get_underlay_channel()
            if not isinstance(inner, aiormq.Channel):
                raise TypeError(f"the driver gave a {type(inner).__name__}")
            return FastWriter(channel, inner, self._transport)
        except Exception as error:
            self._refuse(f"publishing: {error!r}")
            return await self._plain.writer(channel)

    def _proven(self, channel: AbstractChannel) -> int:
        number = channel.number
        if number is None or not self._transport.serves(number):
            raise LookupError("the driver does not use the transport it was given")
        return number
