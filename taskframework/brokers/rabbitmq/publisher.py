"""Publishing with confirms: many at once on one channel, each with a time limit and a clear outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from aio_pika.abc import AbstractChannel
from aiormq.exceptions import AMQPChannelError, AMQPConnectionError, ChannelNotFoundEntity

from taskframework import failpoint
from taskframework.background import Background
from taskframework.brokers.rabbitmq.connection import BrokerConnection, Connector
from taskframework.brokers.rabbitmq.faults import driver_errors
from taskframework.brokers.rabbitmq.messages import Publication
from taskframework.brokers.rabbitmq.publishing_log import PublishingLog
from taskframework.brokers.rabbitmq.supervision import Supervised
from taskframework.brokers.rabbitmq.wire import PublicationWriter, RefusedError, ReturnedError
from taskframework.errors import BrokerError, BrokerUnavailableError, PublishRefusedError

logger = logging.getLogger(__name__)


class PublishChannel:
    """A connection with one channel; when one of the two is lost, both are given up.

    After a timeout, a cancellation or an error no new message is published; those under way may still be confirmed.
    """

    def __init__(self, connection: BrokerConnection, channel: AbstractChannel, writer: PublicationWriter) -> None:
        """Take an open connection, its channel, and the writer of this channel."""
        self._connection = connection
        self._channel = channel  # keep a reference: the driver closes a channel without references
        self._writer = writer
        self._unconfirmed = 0
        self._idle = asyncio.Event()
        self.lost = asyncio.Event()
        channel.close_callbacks.add(self._on_close)

    @property
    def is_blocked(self) -> bool:
        return self._connection.is_blocked

    @property
    def has_lost_connection(self) -> bool:
        return self._connection.lost.is_set()

    async def send(self, publication: Publication, deadline: float) -> None:
        """Publish and wait for the confirm, until a time of the event loop's clock.

        Raises:
            PublishRefusedError, BrokerUnavailableError: as the port says.
            TimeoutError: if the message is not confirmed by then.
        """
        self._unconfirmed += 1
        self._idle.clear()
        try:
            await self._writer.send(publication, deadline)
            await failpoint.replied((publication.failpoint,), _connection_lost_error)
        except (ReturnedError, RefusedError) as error:
            raise _refusal_error(error, publication) from error
        except PublishRefusedError:  # nothing was sent
            raise
        except BaseException as error:
            # If the broker is blocked, a late confirm says nothing about the channel, and a new connection would only
            # hide the alarm until its first publication.
            if not self.is_blocked:
                self.lost.set()
            if isinstance(error, TimeoutError):
                raise
            with driver_errors("publishing"):
                raise
        finally:
            self._unconfirmed -= 1
            if not self._unconfirmed:
                self._idle.set()

    async def close(self) -> None:
        """Take no new publications, wait for those under way (each has its time limit), then close."""
        self.lost.set()
        if self._unconfirmed:
            await self._idle.wait()
        await self._connection.close()

    def _on_close(self, _: object, __: BaseException | None) -> None:
        self.lost.set()


def _refusal_error(error: ReturnedError | RefusedError, publication: Publication) -> PublishRefusedError:
    where = f"{publication.exchange} with key {publication.routing_key}"
    if isinstance(error, ReturnedError):
        hint = "`taskframework topology apply` declares what is missing."
        return PublishRefusedError(f"No queue takes messages of {where}.", hint=hint)
    hint = "The queue may be full or without a leader; check it in RabbitMQ."
    return PublishRefusedError(f"RabbitMQ refused a message of {where}.", hint=hint)


def _connection_lost_error() -> AMQPConnectionError:
    """Return the error that the driver raises when the connection breaks before the confirm."""
    return AMQPConnectionError("connection lost")


class Publisher:
    """Publishes whenever the broker can be reached. If a publication fails, the caller may repeat it."""

    def __init__(
        self,
        connector: Connector,
        prepare: Callable[[], Awaitable[None]],
        *,
        timeout: timedelta,
        max_unconfirmed: int,
    ) -> None:
        """Prepare without connecting.

        Args:
            connector: opens the connection.
            prepare: called before the first connection, and again after each lost connection before the next one.
            timeout: longest wait for a confirm, including the wait for a free place.
            max_unconfirmed: how many publications may be under way at once.
        """
        self._connector = connector
        self._prepare = prepare
        self._timeout = timeout.total_seconds()
        self._publish_slots = asyncio.Semaphore(max_unconfirmed)
        self._closing = Background()
        self._log = PublishingLog()
        self._is_prepared = False
        self._supervised_channel = Supervised("publisher", self._establish, self._close_channel)

    def open(self) -> None:
        self._supervised_channel.start()

    async def close(self) -> None:
        if (channel := await self._supervised_channel.stop()) is not None:
            await channel.close()
        await self._closing.finished()

    @property
    def is_connected(self) -> bool:
        channel = self._supervised_channel.value
        return channel is not None and not channel.is_blocked

    @property
    def is_blocked(self) -> bool:
        """Whether the broker takes no messages because of a memory or disk alarm."""
        channel = self._supervised_channel.value
        return channel is not None and channel.is_blocked

    async def publish(self, publication: Publication) -> None:
        """Publish and wait for the confirm.

        Raises:
            PublishRefusedError, BrokerUnavailableError: as the port says.
        """
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        deadline = begun_at + self._timeout
        channel: PublishChannel | None = None
        try:
            # No time limit if there is no wait: the time limit would cost as much as the rest of this.
            if self._publish_slots.locked():
                await self._usable_channel(deadline)  # fails at once if the broker is away
                async with asyncio.timeout_at(deadline):
                    await self._publish_slots.acquire()
            else:
                await self._publish_slots.acquire()
            try:
                channel = await self._usable_channel(deadline)
                await channel.send(publication, deadline)
            finally:
                self._publish_slots.release()
        except TimeoutError as error:
            # The broker reports an alarm only when something was published, so the first publication gets no confirm.
            where = self._connector.where
            silent = BrokerUnavailableError(f"RabbitMQ at {where} confirmed nothing within {self._timeout:g} s.")
            late = self._alarm_error() if self.is_blocked else silent
            if channel is not None:  # otherwise there is no connection, which the supervision logs, or no free place
                self._log.note_failure(late, loop.time())
            raise late from error
        except BrokerError as error:
            if _is_of_channel_alone(error):
                self._log.note_failure(error, loop.time())
            raise
        if self._log.is_failing:
            self._log.note_confirmed(begun_at, loop.time())

    async def _usable_channel(self, deadline: float) -> PublishChannel:
        channel = self._supervised_channel.value
        if channel is None:
            async with asyncio.timeout_at(deadline):
                channel = await self._supervised_channel.get()
        if channel.is_blocked:
            blocked = self._alarm_error()
            self._log.note_failure(blocked, asyncio.get_running_loop().time())
            raise blocked
        return channel

    def _alarm_error(self) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f"RabbitMQ at {self._connector.where} takes no messages: memory or disk alarm.",
            hint="Give it more memory or disk. Consuming continues meanwhile.",
        )

    async def _establish(self) -> PublishChannel:
        if not self._is_prepared:
            await self._prepare()
            self._is_prepared = True
        connection = await self._connector.open("publisher")
        try:
            channel = await connection.channel(confirms=True)
            with driver_errors("opening a channel"):
                writer = await connection.wire.writer(channel)
        except BaseException:
            await connection.close()
            raise
        return PublishChannel(connection, channel, writer)

    def _close_channel(self, channel: PublishChannel) -> None:
        # After a lost connection the broker may be another one, so prepare it again.
        self._is_prepared = not channel.has_lost_connection
        self._closing.start(channel.close())


def _is_of_channel_alone(error: BrokerError) -> bool:
    """Return whether the broker closed the channel and kept the connection. The loss of a connection is logged."""
    return isinstance(error.__cause__, AMQPChannelError)


def is_about_topology(error: BrokerError) -> bool:
    """Return whether a failed publication may mean that a queue or exchange is missing."""
    return isinstance(error.__cause__, ReturnedError | ChannelNotFoundEntity)
