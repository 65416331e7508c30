"""Deliveries, and the channel on which each must be answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial

import aiormq.abc
from aio_pika.abc import AbstractChannel

from taskframework.background import Background
from taskframework.brokers.rabbitmq.connection import ANSWER_SECONDS
from taskframework.brokers.rabbitmq.faults import delivery_timeout, driver_errors
from taskframework.brokers.rabbitmq.properties import Received, read_properties
from taskframework.brokers.rabbitmq.reading import IncomingFrames
from taskframework.errors import BrokerError
from taskframework.model.status import Priority

logger = logging.getLogger(__name__)

_LINGER_SECONDS = 1.0


class ConsumerChannel:
    """A channel with one consumer on it, kept open after the consumer's end until every delivery has its answer.

    An answer on a closed channel number would cost the whole connection, so only a channel that owes none is closed.
    """

    def __init__(
        self,
        channel: AbstractChannel,
        inner: aiormq.abc.AbstractChannel,
        incoming: IncomingFrames,
        lane: Priority,
        on_timeout: Callable[[timedelta], None] | None = None,
    ) -> None:
        """Take a fresh channel; `on_timeout` is told the broker's consumer timeout when it ends the channel for it."""
        self._channel = channel  # held: the driver drops the inner one with it
        self._inner = inner
        self._incoming = incoming
        self._on_timeout = on_timeout
        self._tag: str | None = None
        self._open_deliveries = 0
        self._answers = _Answers()
        self._putting_back = Background()
        self._flushing: asyncio.Task[None] | None = None
        self._has_news = True
        self._was_passed_over = False
        self._takes_no_more = False
        self._nothing_owed = asyncio.Event()
        self._closed = asyncio.Event()
        self.queue = ""
        self.lane = lane
        #: The consumer is gone: the channel was closed, or the broker cancelled it because the queue was deleted.
        self.lost = asyncio.Event()
        channel.close_callbacks.add(self._on_close)

    @property
    def is_closed(self) -> bool:
        return self._inner.is_closed

    async def consume(
        self,
        queue: str,
        prefetch: int,
        on_delivery: Callable[[RabbitDelivery], None],
        arguments: Mapping[str, int] | None = None,
    ) -> None:
        """Register the consumer of a queue.

        Raises:
            The driver's errors.
        """

        def take(tag: int, header: bytes, body: bytes) -> None:
            # Runs while the socket is read, so it only hands over.
            self._open_deliveries += 1
            self._has_news = True
            self._nothing_owed.clear()
            self._answers.owe(tag)
            delivery = RabbitDelivery(self, tag, header, body)
            if self._takes_no_more:
                self._putting_back.start(delivery.put_back())
            else:
                on_delivery(delivery)

        self.queue = queue
        self._inner.on_consumer_cancel_callbacks.add(lambda _: self.lost.set())
        await self._channel.set_qos(prefetch, global_=False)
        self._incoming.register(self._inner.number, take)
        registered = await self._inner.basic_consume(self.queue, _take_nothing, arguments={**(arguments or {})})
        self._tag = registered.consumer_tag

    async def is_served(self) -> bool:
        """Whether the broker still knows the consumer, as far as one can tell. Asks only when it has long been silent.

        RabbitMQ 3.10 that was killed and started again does not always tell consumers that their queue was deleted.
        """
        had_news, self._has_news = self._has_news, False
        if had_news or self._open_deliveries or self.lost.is_set():
            self._was_passed_over = False
            return True
        with driver_errors(f"looking at {self.queue}"):
            found = await self._inner.queue_declare(self.queue, passive=True, timeout=ANSWER_SECONDS)
        # Once may be a message on its way to us.
        before, self._was_passed_over = self._was_passed_over, bool(found.message_count) and not self._has_news
        return bool(found.consumer_count) and not (before and self._was_passed_over)

    async def cancel(self) -> None:
        """No new deliveries after this returns. Never fails."""
        if self._tag is not None and not self.is_closed:
            try:
                with driver_errors(f"cancelling the consumer of {self.queue}"):
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await self._inner.basic_cancel(self._tag)
            except BrokerError as error:
                logger.debug("%s", error)
        self.take_no_more()

    def take_no_more(self) -> None:
        """Put back whatever arrives from now on."""
        self._takes_no_more = True
        self.lost.set()

    async def answer(self, tag: int, verb: str) -> None:
        """Acknowledge, reject or put back a delivery; without effect if the channel is gone.

        An acknowledgement goes out in the next moment, in one frame with those that are given now.
        """
        if verb == "ack":
            self._answers.acknowledge(tag)
            if self._flushing is None:
                self._flushing = asyncio.create_task(self._flush())
            return
        try:
            if await self._send(verb, lambda: self._inner.basic_reject(tag, requeue=verb == "put back", wait=False)):
                # Only now: until the broker was told, an acknowledgement of all up to a later one must not include it.
                self._answers.answered(tag)
        finally:
            self._answered(1)

    async def _flush(self) -> None:
        # One after the other: the driver lets a frame wait, and one that acknowledges all up to a tag must not overtake
        # those for single tags before it. The broker closes the channel over a tag that it was answered already.
        try:
            await asyncio.sleep(0)
            while self._answers.are_waiting:
                count, tags = self._answers.take()
                try:
                    for tag, is_multiple in tags:
                        await self._send("ack", partial(self._inner.basic_ack, tag, multiple=is_multiple, wait=False))
                finally:
                    self._answered(count)
        finally:
            self._flushing = None

    async def _send(self, verb: str, frame: Callable[[], Awaitable[None]]) -> bool:
        """Whether the frame is on its way."""
        try:
            with driver_errors(f"{verb} of a delivery of {self.queue}"):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await frame()
        except BrokerError as error:
            logger.debug("it comes again: %s", error)
            return False
        return True

    def _answered(self, count: int) -> None:
        self._open_deliveries -= count
        if not self._open_deliveries:
            self._nothing_owed.set()

    async def close_when_answered(self) -> None:
        """Close the channel soon after no delivery waits for its answer."""
        if self._open_deliveries and not self.is_closed:
            await self._nothing_owed.wait()
        # RabbitMQ hands a quorum queue some 30 acknowledgements at a time and forgets the others with the channel.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self.is_closed else _LINGER_SECONDS):
                await self._closed.wait()
        try:
            with driver_errors(f"closing the channel of {self.queue}"):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._channel.close()
        except BrokerError as error:
            logger.debug("%s", error)

    def _on_close(self, _: object, reason: BaseException | None) -> None:
        if self._on_timeout is not None and (timeout := delivery_timeout(reason)) is not None:
            self._on_timeout(timeout)
        self._closed.set()
        self.lost.set()
        self._nothing_owed.set()


async def _take_nothing(_: aiormq.abc.DeliveredMessage) -> None:
    """The driver wants to know whom to call, but it is not shown any delivery."""


class _Answers:
    """Which acknowledgements to send: one for all up to some tag, and one for each that is ahead of the others."""

    def __init__(self) -> None:
        #: Deliveries that the broker was not answered, the oldest first.
        self._open: OrderedDict[int, None] = OrderedDict()
        self._to_acknowledge: list[int] = []

    def owe(self, tag: int) -> None:
        """A delivery came; their tags rise."""
        self._open[tag] = None

    def acknowledge(self, tag: int) -> None:
        self._to_acknowledge.append(tag)

    def answered(self, tag: int) -> None:
        del self._open[tag]

    @property
    def are_waiting(self) -> bool:
        return bool(self._to_acknowledge)

    def take(self) -> tuple[int, list[tuple[int, bool]]]:
        """How many acknowledgements were waiting, and what to send: tags, each with "and all before it"."""
        waiting, self._to_acknowledge = sorted(self._to_acknowledge), []
        for tag in waiting:
            del self._open[tag]
        first_open = next(iter(self._open), math.inf)
        # The broker knows no tag that it was answered before, so the one named is one of these.
        together = [tag for tag in waiting if tag < first_open]
        single = [(tag, False) for tag in waiting[len(together) :]]
        return len(waiting), [(together[-1], len(together) > 1), *single] if together else single


class RabbitDelivery:
    """A message in our hands, as the port describes it."""

    __slots__ = ("_answered", "_channel", "_header", "_properties", "_tag", "body")

    def __init__(self, channel: ConsumerChannel, tag: int, header: bytes, body: bytes) -> None:
        self._channel = channel
        self._tag = tag
        self._header = header
        self._properties: Received | None = None
        self._answered = False
        self.body = body

    @property
    def headers(self) -> Mapping[str, str]:
        return self._read().headers

    @property
    def content_type(self) -> str:
        return self._read().content_type

    @property
    def queue(self) -> str:
        return self._channel.queue

    @property
    def lane(self) -> Priority:
        return self._channel.lane

    @property
    def is_void(self) -> bool:
        """Whether its channel is gone, so that the broker delivers it again."""
        return self._channel.is_closed

    async def ack(self) -> None:
        await self._answer("ack")

    async def reject(self) -> None:
        await self._answer("reject")

    async def put_back(self) -> None:
        """Back to the queue; for what arrived after consuming was stopped."""
        await self._answer("put back")

    async def _answer(self, verb: str) -> None:
        # A second answer would close the channel under everybody else's deliveries.
        if not self._answered:
            self._answered = True
            await self._channel.answer(self._tag, verb)

    def _read(self) -> Received:
        # Only now: many a delivery is handed over or put back without anybody asking.
        if self._properties is None:
            self._properties = read_properties(self._header)
        return self._properties
