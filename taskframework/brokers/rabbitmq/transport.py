"""The transport under a connection of the driver: it shows us first what comes, and lets us write beside the driver."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiormq.connection import TransportFactory
from aiormq.exceptions import AMQPConnectionError

from taskframework.brokers.rabbitmq.reading import IncomingFrames

if TYPE_CHECKING:
    from yarl import URL


class FrameTransport(TransportFactory):
    """Makes one connection, by TCP or TLS as the driver does, and shows `incoming` first what comes on it."""

    def __init__(self) -> None:
        self.incoming = IncomingFrames()
        self._transport: asyncio.Transport | None = None

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect.

        Raises:
            AMQPConnectionError: for whatever the operating system says.
        """
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = _Protocol(reader, self.incoming)
        certificates = kwargs.pop("ssl_context_provider")
        context = await certificates.get_context() if url.scheme == "amqps" else None
        kwargs |= {"host": url.host, "port": url.port, "ssl": context}
        try:
            transport, _ = await loop.create_connection(lambda: protocol, **kwargs)
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        self._transport = transport
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def write(self, frames: bytes) -> None:
        """Send whole frames beside the driver, which takes two turns of the event loop for it.

        Nothing waits for the socket here: what is written must be bounded otherwise, as by the confirms it waits for.
        """
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frames)


class _Protocol(asyncio.StreamReaderProtocol):
    """Feeds a stream reader with what is not taken out."""

    def __init__(self, reader: asyncio.StreamReader, incoming: IncomingFrames) -> None:
        super().__init__(reader)
        self._incoming = incoming

    def data_received(self, data: bytes) -> None:
        super().data_received(self._incoming.split(data))

    def eof_received(self) -> bool | None:
        super().data_received(self._incoming.incomplete())
        return super().eof_received()
