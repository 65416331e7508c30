"""The transport under a connection of the driver: it sees incoming bytes first, and can write beside the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from aiormq.connection import TransportFactory
from aiormq.exceptions import AMQPConnectionError

from taskframework.brokers.rabbitmq.fast.incoming_frames import IncomingFrames, opened_channels

if TYPE_CHECKING:
    from yarl import URL


class FrameTransport(TransportFactory):
    """Makes one connection, by TCP or TLS as the driver does, and passes incoming bytes to `incoming` first."""

    def __init__(self) -> None:
        self.incoming = IncomingFrames()
        self._writer: _WatchedWriter | None = None

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect.

        Raises:
            AMQPConnectionError: for every error of the operating system.
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
        self._writer = _WatchedWriter(transport, protocol, reader, loop)
        return reader, self._writer

    def is_serving(self, channel: int | None) -> bool:
        """Return whether the driver opened a channel through this transport: its request went out here in whole frames,
        and the answer came in here.
        """
        return self._writer is not None and channel in self._writer.requested and channel in self.incoming.opened

    def write(self, frames: bytes) -> None:
        """Send whole frames beside the driver, which would take two turns of the event loop to send them.

        This does not wait for the socket: the caller must bound what it writes, for example by unconfirmed messages.

        Raises:
            AMQPConnectionError: if the driver is in the middle of a frame, which these frames would break.
        """
        if self._writer is None or not self._writer.is_between_frames:
            raise AMQPConnectionError("the driver does not write whole frames")
        if not self._writer.is_closing():
            self._writer.transport.write(frames)


class _Protocol(asyncio.StreamReaderProtocol):
    """Feeds a stream reader with the bytes that are not taken out."""

    def __init__(self, reader: asyncio.StreamReader, incoming: IncomingFrames) -> None:
        super().__init__(reader)
        self._incoming = incoming

    def data_received(self, data: bytes) -> None:
        super().data_received(self._incoming.split(data))

    def eof_received(self) -> bool | None:
        super().data_received(self._incoming.incomplete())
        return super().eof_received()


class _WatchedWriter(asyncio.StreamWriter):
    """The driver's writer. It watches whether each write is whole frames: only then may we write between them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: Channels that the driver asked the broker to open.
        self.requested: set[int] = set()
        self.is_between_frames = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        opened = opened_channels(bytes(data))
        self.is_between_frames = self.is_between_frames and opened is not None
        self.requested.update(opened or ())
        super().write(data)

    def writelines(self, data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(data))
