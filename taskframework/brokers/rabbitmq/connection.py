"""Connections: opens them with a name and a time limit, and notices their loss."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, cast

from aio_pika import Connection
from aio_pika.abc import AbstractChannel, SSLOptions
from aio_pika.connection import make_url

from taskframework.background import end
from taskframework.brokers.rabbitmq.faults import driver_errors
from taskframework.brokers.rabbitmq.plain import PlainWire
from taskframework.brokers.rabbitmq.wire import Wire
from taskframework.errors import BrokerError, ConfigurationError
from taskframework.model.wording import duration_text
from taskframework.settings.servers import BrokerSettings

logger = logging.getLogger(__name__)

#: Longest wait for the answer to a request such as opening a channel or declaring a queue, in seconds.
ANSWER_SECONDS = 5.0
_CLOSE_TIMEOUT_SECONDS = 3.0
#: Log lines of the driver about errors that it also raises as exceptions: the framework logs those once, with a remedy.
#: The last one comes for each channel (there may be thirty) of a consumer that stops while its channels are opened.
_SUPPRESSED_LOG_MESSAGES = (
    "error when creating transport",
    "Unexpected connection close",
    "Cancelling cause reader exited",
    "Closing channel",
)

for _name in ("aiormq.connection", "aiormq.channel"):
    logging.getLogger(_name).addFilter(lambda record: not str(record.msg).startswith(_SUPPRESSED_LOG_MESSAGES))


MakeWire = Callable[[Connection], Wire]


class TooManyChannelsError(BrokerError):
    """The connection has as many channels as the broker allows."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"The broker allows {most} channels on a connection, and all are open.",
            hint="A worker needs three for each of its task types. Raise `channel_max` in the broker's configuration, "
            "or let each worker execute fewer types.",
        )
        self.most = most


class BrokerConnection:
    """An open connection."""

    def __init__(self, connection: Connection, wire: Wire, on_loss: Callable[[object], None] | None) -> None:
        """Take a connection that was just opened.

        Args:
            connection: of the driver.
            wire: how messages are written to it and read from it.
            on_loss: called with the reason, if the connection ends although nobody here closed it.
        """
        self._connection = connection
        self.wire = wire
        # RabbitMQ blocks a connection only after a message was sent on it. So if the driver waits on a new connection,
        # the reason is not an alarm.
        self._reports_alarms = not _is_writing_paused(connection)
        self._on_loss = on_loss
        #: The open channels, and how many are being opened.
        self._channels: list[AbstractChannel] = []
        self._opening = 0
        self.lost = asyncio.Event()
        connection.close_callbacks.add(self._on_close)

    @property
    def server(self) -> str:
        """The product and the version that the broker reports."""
        properties = self._connection.transport.connection.server_properties if self._connection.transport else {}
        return " ".join(str(properties[name]) for name in ("product", "version") if name in properties)

    @property
    def is_blocked(self) -> bool:
        """Whether the broker takes no messages on this connection, because of a memory or disk alarm."""
        return self._reports_alarms and _is_writing_paused(self._connection)

    async def channel(self, *, confirms: bool = False) -> AbstractChannel:
        """Open a channel.

        Raises:
            TooManyChannelsError: if the broker allows no more.
            BrokerUnavailableError: if the connection is lost, or so slow that it is given up.
        """
        self._require_room()
        self._opening += 1
        try:
            with driver_errors("opening a channel"):
                async with asyncio.timeout(ANSWER_SECONDS):
                    channel = self._connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
                    await channel.initialize()
            self._channels.append(channel)
        except BrokerError as error:
            self._lose(error)
            raise
        finally:
            self._opening -= 1
        return channel

    def _require_room(self) -> None:
        """Refuse what the broker would refuse: it would close the connection, and all consumers on it would be lost."""
        if self._connection.transport is not None:
            most = self._connection.transport.connection.connection_tune.channel_max or 0  # 0: any number
            self._channels = [channel for channel in self._channels if not channel.is_closed]
            if 0 < most <= len(self._channels) + self._opening:
                raise TooManyChannelsError(most)

    async def close(self) -> None:
        """Close the connection within seconds, whatever the broker does. Never fails."""
        self.lost.set()
        closing = asyncio.create_task(self._connection.close())
        try:
            await asyncio.wait([closing], timeout=_CLOSE_TIMEOUT_SECONDS)
        finally:
            # After one cancellation the driver still waits until the broker has read everything, and a silent broker
            # reads nothing. In a task of its own, because the caller may be cancelled more than once too.
            await asyncio.shield(asyncio.create_task(end(closing)))
        if not closing.cancelled() and (error := closing.exception()) is not None:
            logger.debug("closing: %r", error)

    def _on_close(self, _: object, reason: BaseException | None) -> None:
        self._lose(reason)

    def _lose(self, reason: BaseException | None) -> None:
        if self._on_loss is not None and not self.lost.is_set():
            self._on_loss(reason)
        self.lost.set()


def _is_writing_paused(connection: Connection) -> bool:
    """Return whether the driver would wait for the end of an alarm; only its `ready()` shows this."""
    if connection.transport is None:
        return False
    waiting = connection.transport.ready().__await__()
    try:
        next(waiting)
    except StopIteration:
        return False
    waiting.close()
    return True


def _tls_options(settings: BrokerSettings) -> SSLOptions:
    """Return the files for TLS under the driver's names. The driver reads them for each connection."""
    files = {"cafile": settings.ca_file, "certfile": settings.certificate, "keyfile": settings.private_key}
    options: Any = {name: str(file) for name, file in files.items() if file is not None}
    return cast(SSLOptions, options)


class Connector:
    """Opens connections to one address; `where` names it without the password."""

    def __init__(self, settings: BrokerSettings) -> None:
        """Prepare without connecting.

        Raises:
            ConfigurationError: if the address cannot be read.
        """
        try:
            heartbeat = max(1, round(settings.heartbeat.total_seconds()))
            self._url = make_url(settings.url, ssl_options=_tls_options(settings), heartbeat=heartbeat)
        except ValueError:
            # Leave out the parser's message, because it may quote a part of a password that was not encoded.
            raise ConfigurationError(
                "broker.url is not a valid address.",
                key="broker.url",
                hint="Write amqp://user:password@host:5672/vhost; percent-encode special characters in the password.",
            ) from None
        self._timeout = settings.connect_timeout.total_seconds()
        self._has_fast_path = settings.fast_path == "auto"
        self._has_warned = False
        #: Since when there is no lasting connection of each purpose, although there was one or was to be one.
        self._away_since: dict[str, float] = {}
        port = self._url.port or (5671 if self._url.scheme == "amqps" else 5672)
        self.where = f"{self._url.host}:{port}"
        self.vhost = self._url.path.removeprefix("/") or "/"

    async def open(self, purpose: str, *, is_lasting: bool = True) -> BrokerConnection:
        """Open a connection; the broker's own tools show its purpose.

        Args:
            purpose: part of the connection's name.
            is_lasting: whether the connection stays open, so that its loss and its return are logged. On others, users
                get an error.

        Raises:
            BrokerUnavailableError: with host, port and reason.
        """
        try:
            connection = await self._open_preferred(purpose, is_lasting)
        except Exception:
            if is_lasting:
                self._away_since.setdefault(purpose, time.monotonic())
            raise
        if is_lasting and (away_since := self._away_since.pop(purpose, None)) is not None:
            away = duration_text(time.monotonic() - away_since)
            logger.info("the connection to RabbitMQ (%s) is back after %s", purpose, away)
        return connection

    async def _open_preferred(self, purpose: str, is_lasting: bool) -> BrokerConnection:
        if not is_lasting or not self._has_fast_path:
            return await self._open(purpose, lambda _: PlainWire(), is_lasting)
        with contextlib.suppress(Exception):
            return await self._open(purpose, self._fast_wire, is_lasting)
        plain = await self._open(purpose, lambda _: PlainWire(), is_lasting)
        # The broker answers. Try again: it may have been away, or this version of the driver may not fit the fast path.
        try:
            fast = await self._open(purpose, self._fast_wire, is_lasting)
        except Exception as error:
            self._warn_of_plain_path(f"connecting: {error!r}")
            return plain
        except BaseException:
            await plain.close()
            raise
        try:
            await plain.close()
        except BaseException:  # a stop, which can come only here: nobody else knows the other connection
            await fast.close()
            raise
        return fast

    async def _open(self, purpose: str, make_wire: MakeWire, is_lasting: bool) -> BrokerConnection:
        connection = Connection(self._url.update_query(name=f"taskframework {purpose}"))
        try:
            wire = make_wire(connection)
            with driver_errors(f"connecting to {self.where}"):
                async with asyncio.timeout(self._timeout):
                    await connection.connect()
        except BaseException:
            # Otherwise the driver closes it in a separate asyncio task when the garbage collector finds it.
            await connection.close()
            raise
        return BrokerConnection(connection, wire, partial(self._note_loss, purpose) if is_lasting else None)

    def _note_loss(self, purpose: str, reason: object) -> None:
        self._away_since[purpose] = time.monotonic()
        logger.warning("the connection to RabbitMQ (%s) was lost: %s", purpose, str(reason) or "it does not answer")

    def _fast_wire(self, connection: Connection) -> Wire:
        # Import this here: if the driver lacks a name, the import fails, and the connection is made the plain way.
        from taskframework.brokers.rabbitmq.fast.wire import FastWire

        return FastWire(connection, self._warn_of_plain_path)

    def _warn_of_plain_path(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "messages go to and from RabbitMQ the plain way, which takes more CPU and loses nothing: the fast path "
                "does not fit the installed aiormq (%s). Install the version that taskframework was released with, or "
                "set broker.fast_path to off to go without this warning.",
                reason,
            )

    @contextlib.asynccontextmanager
    async def temporary_connection(self, purpose: str) -> AsyncIterator[BrokerConnection]:
        """Open a connection, and close it at the end of the block."""
        connection = await self.open(purpose, is_lasting=False)
        try:
            yield connection
        finally:
            await connection.close()
