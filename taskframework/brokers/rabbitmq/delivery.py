"""Deliveries, and the channel on which each must be answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from itertools import groupby
from typing import Literal, NamedTuple

import aiormq.abc
from aio_pika.abc import AbstractChannel

from taskframework.brokers.rabbitmq.connection import ANSWER_SECONDS
from taskframework.brokers.rabbitmq.faults import delivery_timeout, driver_errors
from taskframework.brokers.rabbitmq.wire import Properties, Wire
from taskframework.errors import BrokerError
from taskframework.model.status import Priority

logger = logging.getLogger(__name__)

#: Seconds for which a channel stays open after its last answer.
_LINGER_SECONDS = 1.0

Verb = Literal["ack", "reject", "put back"]


class ConsumerChannel:
    """A channel with one consumer. After the end of the consumer, it stays open until every delivery is answered.

    An answer on a closed channel would end the whole connection.
    """

    def __init__(
        self,
        channel: AbstractChannel,
        inner: aiormq.abc.AbstractChannel,
        wire: Wire,
        lane: Priority,
        on_timeout: Callable[[timedelta], None] | None = None,
    ) -> None:
        """Take a fresh channel; `on_timeout` is called with the consumer timeout if that ends the channel."""
        self._channel = channel  # keep a reference: without it the driver drops the inner channel
        self._inner = inner
        self._wire = wire
        self._on_timeout = on_timeout
        self._tag: str | None = None
        self._open_deliveries = 0
        self._answers = _Answers()
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

        def take(tag: int, body: bytes, properties: Callable[[], Properties]) -> None:
            self._open_deliveries += 1
            self._has_news = True
            self._nothing_owed.clear()
            self._answers.owe(tag)
            if self._takes_no_more:
                self.answer(tag, "put back")
            else:
                on_delivery(RabbitDelivery(self, tag, body, properties))

        self.queue = queue
        self._inner.on_consumer_cancel_callbacks.add(lambda _: self.lost.set())
        await self._channel.set_qos(prefetch, global_=False)
        self._tag = await self._wire.consume(self._channel, queue, take, arguments)

    async def is_served(self) -> bool:
        """Return whether the broker seems to serve the consumer still. Asks the broker only after a long silence.

        After RabbitMQ 3.10 was killed and restarted, it does not always tell consumers that their queue was deleted.
        """
        had_news, self._has_news = self._has_news, False
        if had_news or self._open_deliveries or self.lost.is_set():
            self._was_passed_over = False
            return True
        with driver_errors(f"looking at {self.queue}"):
            found = await self._inner.queue_declare(self.queue, passive=True, timeout=ANSWER_SECONDS)
        # Messages in the queue at one look may be on their way to the consumer; at two looks in a row they are not.
        before, self._was_passed_over = self._was_passed_over, bool(found.message_count) and not self._has_news
        return bool(found.consumer_count) and not (before and self._was_passed_over)

    async def cancel(self) -> None:
        """Cancel the consumer; after this returns no new deliveries come. Never fails."""
        if self._tag is not None and not self.is_closed:
            try:
                with driver_errors(f"cancelling the consumer of {self.queue}"):
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await self._inner.basic_cancel(self._tag)
            except BrokerError as error:
                logger.debug("%s", error)
        self.take_no_more()

    def take_no_more(self) -> None:
        """Put back all deliveries that arrive from now on."""
        self._takes_no_more = True
        self.lost.set()

    def answer(self, tag: int, verb: Verb) -> None:
        """Acknowledge, reject or put back a delivery; without effect if the channel is gone.

        The next turn of the event loop sends the answer, in one frame with equal answers to neighbouring deliveries.
        """
        self._answers.give(tag, verb)
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        # Send one after the other: the driver may delay a frame, and a frame that answers all tags up to some tag must
        # not overtake frames for earlier tags. The broker closes the channel when a tag is answered twice.
        try:
            await asyncio.sleep(0)
            while count := self._answers.waiting:
                try:
                    for answer in self._answers.take():
                        if await self._send(answer):
                            self._answers.sent(answer)
                finally:
                    self._answered(count)
        finally:
            self._flushing = None

    async def _send(self, answer: _Answer) -> bool:
        """Send the frame; return whether the driver took it."""
        last, is_multiple = answer.tags[-1], len(answer.tags) > 1
        try:
            with driver_errors(f"{answer.verb} of a delivery of {self.queue}"):
                async with asyncio.timeout(ANSWER_SECONDS):
                    if answer.verb == "ack":
                        await self._inner.basic_ack(last, multiple=is_multiple, wait=False)
                    else:
                        requeue = answer.verb == "put back"
                        await self._inner.basic_nack(last, multiple=is_multiple, requeue=requeue, wait=False)
        except BrokerError as error:
            logger.debug("it will be delivered again: %s", error)
            return False
        return True

    def _answered(self, count: int) -> None:
        self._open_deliveries -= count
        if not self._open_deliveries:
            self._nothing_owed.set()

    async def close_when_answered(self) -> None:
        """Close the channel soon after every delivery is answered."""
        if self._open_deliveries and not self.is_closed:
            await self._nothing_owed.wait()
        # RabbitMQ passes acknowledgements to a quorum queue about 30 at a time, and drops the rest with the channel.
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


class _Answer(NamedTuple):
    """One frame: the same answer to some deliveries. With several tags, all older deliveries are answered already."""

    verb: Verb
    tags: Sequence[int]


class _Answers:
    """The answers for the broker: one frame for all tags up to a tag where that is right, otherwise one per tag."""

    def __init__(self) -> None:
        #: The tags of deliveries whose answers were not sent, the oldest first.
        self._open: OrderedDict[int, None] = OrderedDict()
        self._given: dict[int, Verb] = {}

    def owe(self, tag: int) -> None:
        """Note a new delivery; each tag is larger than the one before."""
        self._open[tag] = None

    def give(self, tag: int, verb: Verb) -> None:
        self._given[tag] = verb

    def sent(self, answer: _Answer) -> None:
        for tag in answer.tags:
            del self._open[tag]

    @property
    def waiting(self) -> int:
        return len(self._given)

    def take(self) -> Iterator[_Answer]:
        """Yield the answers given so far, in the order of the tags. After sending one, call `sent` before the next.

        An answer that could not be sent stays open, so that no later answer for many tags includes it.
        """
        given, self._given = self._given, {}
        for verb, run in groupby(sorted(given), key=given.__getitem__):
            tags = list(run)
            # Only the oldest open tags may share a frame, because the frame also answers all tags before its tag.
            oldest = enumerate(zip(tags, self._open, strict=False))
            together = next((number for number, (tag, open_tag) in oldest if tag != open_tag), len(tags))
            if together:
                yield _Answer(verb, tags[:together])
            yield from (_Answer(verb, [tag]) for tag in tags[together:])


class RabbitDelivery:
    """`Delivery` of the port."""

    def __init__(self, channel: ConsumerChannel, tag: int, body: bytes, properties: Callable[[], Properties]) -> None:
        self._channel = channel
        self._tag = tag
        self._read = properties
        self._answered = False
        self.body = body
        self.queue, self.lane = channel.queue, channel.lane

    @cached_property
    def _properties(self) -> Properties:
        return self._read()

    @property
    def headers(self) -> Mapping[str, str]:
        return self._properties.headers

    @property
    def content_type(self) -> str:
        return self._properties.content_type

    @property
    def is_void(self) -> bool:
        """Whether the channel is gone, so that the broker delivers the message again."""
        return self._channel.is_closed

    async def ack(self) -> None:
        await self._answer("ack")

    async def reject(self) -> None:
        await self._answer("reject")

    async def put_back(self) -> None:
        """Put the message back into the queue; for deliveries that arrived after consuming was stopped."""
        await self._answer("put back")

    async def _answer(self, verb: Verb) -> None:
        # A second answer would close the channel, and all its other deliveries would be lost.
        if not self._answered:
            self._answered = True
            self._channel.answer(self._tag, verb)
