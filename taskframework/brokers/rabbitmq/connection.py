"""Connections: opening one with a name and a time limit, noticing its loss, keeping one open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import timedelta

from aio_pika import Connection
from aio_pika.abc import AbstractChannel
from aio_pika.connection import make_url

from taskframework.brokers.rabbitmq.faults import driver_errors
from taskframework.brokers.rabbitmq.transport import FrameTransport
from taskframework.errors import BrokerError, ConfigurationError

logger = logging.getLogger(__name__)

#: Longest wait for the answer to a request such as opening a channel or declaring a queue, in seconds.
ANSWER_SECONDS = 5.0
_CLOSE_SECONDS = 3.0
#: What the driver logs as errors although its caller gets them as exceptions, and logs them once and with the remedy.
_SAID_ELSEWHERE = ("error when creating transport", "Unexpected connection close", "Cancelling cause reader exited")

logging.getLogger("aiormq.connection").addFilter(lambda record: not str(record.msg).startswith(_SAID_ELSEWHERE))


class Line:
    """An open connection."""

    def __init__(self, connection: Connection, transport: FrameTransport, purpose: str, *, is_kept: bool) -> None:
        self._connection = connection
        self.incoming = transport.incoming
        self.write = transport.write
        self._purpose = purpose
        self._is_kept = is_kept
        self.lost = asyncio.Event()
        connection.close_callbacks.add(self._on_close)

    @property
    def server(self) -> str:
        """Product and version as the broker gives them."""
        properties = self._connection.transport.connection.server_properties if self._connection.transport else {}
        return " ".join(str(properties[name]) for name in ("product", "version") if name in properties)

    @property
    def is_blocked(self) -> bool:
        """Whether the broker takes no messages on this connection, because of a memory or disk alarm."""
        return self.incoming.is_blocked

    async def channel(self, *, confirms: bool = False) -> AbstractChannel:
        """Open a channel.

        Raises:
            BrokerUnavailableError: if the connection is lost, or so slow that it must be given up.
        """
        try:
            with driver_errors("opening a channel"):
                async with asyncio.timeout(ANSWER_SECONDS):
                    channel = self._connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
                    await channel.initialize()
        except BrokerError:
            self.lost.set()
            raise
        return channel

    async def close(self) -> None:
        """Close it within seconds, whatever the broker does. Never fails."""
        self.lost.set()
        try:
            with driver_errors("closing"):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._connection.close()
        except BrokerError as error:
            logger.debug("%s", error)

    def _on_close(self, _: object, reason: BaseException | None) -> None:
        if self._is_kept and not self.lost.is_set():
            logger.warning("the connection to RabbitMQ (%s) was lost: %s", self._purpose, reason)
        self.lost.set()


class Connector:
    """Opens connections to one address, which it shows without the password."""

    def __init__(self, url: str, *, heartbeat: timedelta, timeout: timedelta) -> None:
        """Prepare without connecting.

        Raises:
            ConfigurationError: if the address cannot be read.
        """
        try:
            self._url = make_url(url, heartbeat=max(1, round(heartbeat.total_seconds())))
        except ValueError:
            # Without the parser's words: they may quote a part of a password that was not encoded.
            raise ConfigurationError(
                "broker.url cannot be read as an address.",
                key="broker.url",
                hint="Write amqp://user:password@host:5672/vhost; percent-encode special characters in the password.",
            ) from None
        self._timeout = timeout.total_seconds()
        port = self._url.port or (5671 if self._url.scheme == "amqps" else 5672)
        self.where = f"{self._url.host}:{port}"
        self.vhost = self._url.path.removeprefix("/") or "/"

    async def open(self, purpose: str, *, is_kept: bool = True) -> Line:
        """Open a connection that the broker's own tools show under this purpose.

        Args:
            purpose: part of its name.
            is_kept: whether its loss is news; that of a short one is told to its user by an exception.

        Raises:
            BrokerUnavailableError: with host, port and reason.
        """
        connection = Connection(self._url.update_query(name=f"taskframework {purpose}"))
        transport = FrameTransport()
        connection.kwargs["transport_factory"] = transport
        try:
            with driver_errors(f"connecting to {self.where}"):
                async with asyncio.timeout(self._timeout):
                    await connection.connect()
        except BaseException:
            # Without this the driver closes it by a task of its own when the object is collected.
            await connection.close()
            raise
        return Line(connection, transport, purpose, is_kept=is_kept)

    @contextlib.asynccontextmanager
    async def opened(self, purpose: str) -> AsyncIterator[Line]:
        """A connection for the length of a block."""
        line = await self.open(purpose, is_kept=False)
        try:
            yield line
        finally:
            await line.close()
