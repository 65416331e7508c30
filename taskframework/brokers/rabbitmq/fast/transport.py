"""The transport under a connection of the driver: it sees first what comes, and lets us write beside the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from aiormq.connection import TransportFactory
from aiormq.exceptions import AMQPConnectionError

from taskframework.brokers.rabbitmq.fast.reading import IncomingFrames, opened_channels

if TYPE_CHECKING:
    from yarl import URL


class FrameTransport(TransportFactory):
    """Makes one connection, by TCP or TLS as the driver does, and shows `incoming` first what comes on it."""

    def __init__(self) -> None:
        self.incoming = IncomingFrames()
        self._writer: _WatchedWriter | None = None

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
        self._writer = _WatchedWriter(transport, protocol, reader, loop)
        return reader, self._writer

    def serves(self, channel: int | None) -> bool:
        """Whether this is how the driver opened a channel: its request went out here in whole frames, and the answer
        came in here.
        """
        return self._writer is not None and channel in self._writer.requested and channel in self.incoming.opened

    def write(self, frames: bytes) -> None:
        """Send whole frames beside the driver, which takes two turns of the event loop for it.

        Nothing waits for the socket here: what is written must be bounded otherwise, as by the confirms it waits for.

        Raises:
            AMQPConnectionError: if the driver is in the middle of a frame, which ours would break.
        """
        if self._writer is None or not self._writer.is_between_frames:
            raise AMQPConnectionError("the driver does not write whole frames")
        if not self._writer.is_closing():
            self._writer.transport.write(frames)


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


class _WatchedWriter(asyncio.StreamWriter):
    """Through which the driver writes, each time whole frames; how they look is what lets us write between them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: Channels that the driver asked to be opened.
        self.requested: set[int] = set()
        self.is_between_frames = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        opened = opened_channels(bytes(data))
        self.is_between_frames = self.is_between_frames and opened is not None
        self.requested.update(opened or ())
        super().write(data)

    def writelines(self, data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(data))
