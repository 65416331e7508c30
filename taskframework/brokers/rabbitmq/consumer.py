"""Consuming: one supervised consumer for each queue, made again after each loss of connection, channel or queue."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from aio_pika.abc import AbstractChannel
from aiormq.exceptions import ChannelAccessRefused, ChannelNotFoundEntity, ChannelPreconditionFailed

from taskframework.background import Background
from taskframework.brokers.rabbitmq.connection import BrokerConnection
from taskframework.brokers.rabbitmq.delivery import ConsumerChannel, RabbitDelivery
from taskframework.brokers.rabbitmq.faults import driver_errors
from taskframework.brokers.rabbitmq.supervision import Supervised
from taskframework.errors import BrokerError, BrokerUnavailableError
from taskframework.model.status import Priority
from taskframework.model.wording import duration_text

logger = logging.getLogger(__name__)

#: After this many seconds without a delivery a consumer asks the broker whether it is still served.
_WATCH_INTERVAL_SECONDS = 5.0
#: After this many seconds without a delivery the consumer of a queue of tasks registers again, and then after up to
#: twice as long each time, up to the maximum. By chance it is less than twice as long, so that the idle consumers of a
#: process do not all register at once. When a queue is deleted and declared again, RabbitMQ 3.10 may list a consumer,
#: count messages as delivered to it, and send none; a new consumer gets them. Reasons in docs/decisions/0052.
_FIRST_SILENCE_SECONDS = 30.0
_MAX_SILENCE_SECONDS = 900.0
#: Consumers that are lost within so many seconds count as lost for one cause: each looks after five seconds of silence,
#: and an attempt to register again takes up to ten.
_SAME_CAUSE_SECONDS = 20.0
#: Longest time to register a consumer, its declarations included, in seconds.
_REGISTER_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Source:
    """The queue of a consumer, and how it is consumed."""

    #: The queue's name; if `declare` is given, only for the log.
    name: str
    prefetch: int
    #: Declares the queue on the consumer's own channel and returns its name.
    declare: Callable[[AbstractChannel], Awaitable[str]] | None = None
    #: Called when the queue does not exist, before the next attempt.
    repair: Callable[[], Awaitable[None]] | None = None
    lane: Priority = Priority.NORMAL
    #: Arguments of the consumer, not of the queue.
    arguments: Mapping[str, int] | None = None
    #: Called with the broker's consumer timeout when a delivery was kept for longer.
    on_timeout: Callable[[timedelta], None] | None = None
    #: At the end, unanswered messages go back to the queue in their order. Otherwise they can be answered later.
    keeps_order: bool = False


class Troubles:
    """The consumers of a process that are not served. If several are lost within seconds, they most probably have one
    cause, such as a silent network or a user without rights: only the first one is worth a warning. Any other refusal
    always is.
    """

    def __init__(self) -> None:
        self._began: dict[object, float] = {}

    def begin(self, consumer: object) -> bool:
        """Note that a consumer is not served; return whether it is worth a warning."""
        now = time.monotonic()
        is_first = all(now - began > _SAME_CAUSE_SECONDS for began in self._began.values())
        self._began[consumer] = now
        return is_first

    def end(self, consumer: object) -> float:
        """Note that it is served again; return for how many seconds it was not."""
        return time.monotonic() - self._began.pop(consumer)


class QueueConsumer:
    """Consumes one queue until stopped, on a separate channel, so that problems with it affect no other queue."""

    def __init__(
        self,
        connection: Supervised[BrokerConnection],
        source: Source,
        on_delivery: Callable[[RabbitDelivery], None],
        background: Background,
        troubles: Troubles,
    ) -> None:
        self._connection = connection
        self._source = source
        self._on_delivery = on_delivery
        self._background = background
        self._arguments = source.arguments
        self._max_silence = _FIRST_SILENCE_SECONDS
        self._troubles = troubles
        #: While it is not served: the level of its lines in the log.
        self._trouble_level: int | None = None
        self._channel = Supervised(
            f"consumer of {source.name}",
            self._establish,
            self._close_channel,
            lambda: self._trouble_level != logging.DEBUG,
        )
        self._channel.start()
        self.is_stopped = False

    @property
    def is_live(self) -> bool:
        return self._channel.value is not None

    async def stop(self) -> None:
        self.is_stopped = True
        channel = await self._channel.stop()
        if self._trouble_level is not None:  # only now: an attempt to register may have failed until here
            self._troubles.end(self)
            self._trouble_level = None
        if channel is not None:
            await self._end(channel)

    async def _end(self, channel: ConsumerChannel) -> None:
        """End a consumer; after this returns no new deliveries come."""
        if self._source.keeps_order:
            await channel.close_unanswered()
        else:
            await channel.cancel()
            self._close_channel(channel)

    def _close_channel(self, channel: ConsumerChannel) -> None:
        self._background.start(channel.close_when_answered())

    async def _establish(self) -> ConsumerChannel:
        try:
            consumer = await self._make_consumer()
        except Exception as error:
            self._note_trouble()
            # A refusal has a reason in its queue; but if access is refused, it is for the virtual host or by the user.
            if not isinstance(error, BrokerUnavailableError) and not isinstance(error.__cause__, ChannelAccessRefused):
                self._trouble_level = logging.WARNING
            raise
        if self._trouble_level is not None:
            level = min(self._trouble_level, logging.INFO)
            lasted = duration_text(self._troubles.end(self))
            logger.log(level, "the consumer of %s is registered again after %s", self._source.name, lasted)
            self._trouble_level = None
        return consumer

    def _note_trouble(self) -> int:
        """Note that it is not served; return the level at which this is logged."""
        if self._trouble_level is None:
            is_first = self._troubles.begin(self)
            self._trouble_level = logging.WARNING if is_first else logging.DEBUG
        return self._trouble_level

    async def _make_consumer(self) -> ConsumerChannel:
        connection = await self._connection.wait()
        channel = await connection.channel()
        inner = await channel.get_underlay_channel()
        source = self._source
        consumer = ConsumerChannel(
            channel, inner, connection.wire, source.lane, source.on_timeout, keeps_order=source.keeps_order
        )
        registering = asyncio.create_task(self._register(channel, consumer))
        try:
            # Shielded: a cancelled request would close the channel, and deliveries may have come on it already.
            await asyncio.shield(registering)
        except asyncio.CancelledError:
            self._background.start(self._end_once_registered(registering, consumer))
            try:
                # Deliveries that have come are handed over: if they were put back, they would count as failed. If the
                # broker does not answer, the next cancellation ends the wait.
                await consumer.lost.wait()
            finally:
                consumer.put_back_later_deliveries()
            raise
        except Exception as error:
            self._close_channel(consumer)
            if self._arguments and _is_about_arguments(error.__cause__, self._arguments):
                # RabbitMQ 4.3 accepts this argument for quorum queues but not for classic queues; older ones ignore it.
                self._arguments = None
                return await self._make_consumer()
            if self._source.repair is not None and isinstance(error.__cause__, ChannelNotFoundEntity):
                await self._source.repair()
            raise
        self._background.start(self._watch(consumer))
        return consumer

    async def _end_once_registered(self, registering: asyncio.Task[None], consumer: ConsumerChannel) -> None:
        await asyncio.gather(registering, return_exceptions=True)
        await self._end(consumer)

    async def _watch(self, consumer: ConsumerChannel) -> None:
        """Register the consumer again if the broker stops serving it without a message about that."""
        while not consumer.lost.is_set():
            try:
                async with asyncio.timeout(_WATCH_INTERVAL_SECONDS):
                    await consumer.lost.wait()
            except TimeoutError:
                if not await self._is_served(consumer):
                    text = "the consumer of %s is no longer served; registering it again"
                    logger.log(self._note_trouble(), text, self._source.name)
                    consumer.lost.set()
                elif self._is_silent(consumer):
                    logger.debug("the consumer of %s got nothing for long; registering it again", self._source.name)
                    self._max_silence = min(random.uniform(1.5, 2) * self._max_silence, _MAX_SILENCE_SECONDS)
                    await consumer.cancel()
                    return
        self._max_silence = _FIRST_SILENCE_SECONDS

    async def _is_served(self, consumer: ConsumerChannel) -> bool:
        try:
            return await consumer.is_served()
        except BrokerError as error:
            logger.debug("%s", error)
            return False

    def _is_silent(self, consumer: ConsumerChannel) -> bool:
        if consumer.has_delivered:
            self._max_silence = _FIRST_SILENCE_SECONDS
        return self._source.declare is None and consumer.silence_seconds > self._max_silence

    async def _register(self, channel: AbstractChannel, consumer: ConsumerChannel) -> None:
        with driver_errors(f"consuming {self._source.name}"):
            async with asyncio.timeout(_REGISTER_TIMEOUT_SECONDS):
                source = self._source
                queue = source.name if source.declare is None else await source.declare(channel)
                await consumer.consume(queue, source.prefetch, self._on_delivery, self._arguments)


def _is_about_arguments(cause: BaseException | None, arguments: Mapping[str, int]) -> bool:
    """Return whether the broker refused a consumer because of one of its arguments."""
    return isinstance(cause, ChannelPreconditionFailed) and any(
        f"invalid arg '{name}'" in str(cause) for name in arguments
    )


class Consumers:
    """Several queues consumed together."""

    def __init__(self, consumers: Sequence[QueueConsumer]) -> None:
        self._consumers = consumers

    @property
    def is_stopped(self) -> bool:
        return all(consumer.is_stopped for consumer in self._consumers)

    @property
    def is_live(self) -> bool:
        """Whether every consumer is registered with the broker right now."""
        return all(consumer.is_live for consumer in self._consumers)

    async def stop(self) -> None:
        """Stop consuming; after this returns no new deliveries come."""
        await asyncio.gather(*(consumer.stop() for consumer in self._consumers))

    async def close(self) -> None:
        """Stop consuming; the worker answers the deliveries that it holds."""
        await self.stop()
