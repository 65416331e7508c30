"""The fast path on a connection, channel by channel, wherever the driver works as the fast path expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import aiormq
from aio_pika import Connection
from aio_pika.abc import AbstractChannel

from taskframework.brokers.rabbitmq.fast.properties import read_properties
from taskframework.brokers.rabbitmq.fast.transport import FrameTransport
from taskframework.brokers.rabbitmq.fast.writer import FastWriter
from taskframework.brokers.rabbitmq.plain import PlainWire
from taskframework.brokers.rabbitmq.wire import OnMessage, PublicationWriter

#: Called with the reason why the fast path is not taken.
OnRefused = Callable[[str], None]


class FastWire:
    """Reads and writes beside the driver on channels that provably use our transport; on others it uses the plain way.

    The proof is the opening of the channel: the driver's request went out through our transport in whole frames, and
    the broker's answer came in there. The driver gets the plain callback in any case, so a delivery that is not taken
    out before the driver sees it is only slower.
    """

    def __init__(self, connection: Connection, on_refused: OnRefused) -> None:
        """Prepare a connection that will be opened."""
        self._on_refused = on_refused
        self._transport = FrameTransport()
        self._plain = PlainWire()
        # aio-pika has no parameter for a transport. It passes these arguments on to aiormq, which has this parameter.
        connection.kwargs["transport_factory"] = self._transport

    async def consume(
        self, channel: AbstractChannel, queue: str, on_message: OnMessage, arguments: Mapping[str, int] | None
    ) -> str:
        try:
            self._transport.incoming.register(
                self._require_own_transport(channel),
                lambda tag, header, body: on_message(tag, body, partial(read_properties, header)),
            )
        except Exception as error:
            self._on_refused(f"reading deliveries: {error!r}")
        return await self._plain.consume(channel, queue, on_message, arguments)

    async def writer(self, channel: AbstractChannel) -> PublicationWriter:
        try:
            self._require_own_transport(channel)
            inner = await channel.get_underlay_channel()
            if not isinstance(inner, aiormq.Channel):
                raise TypeError(f"the driver gave a {type(inner).__name__}")
            return FastWriter(channel, inner, self._transport)
        except Exception as error:
            self._on_refused(f"publishing: {error!r}")
            return await self._plain.writer(channel)

    def _require_own_transport(self, channel: AbstractChannel) -> int:
        number = channel.number
        if number is None or not self._transport.is_serving(number):
            raise LookupError("the driver does not use the transport it was given")
        return number
