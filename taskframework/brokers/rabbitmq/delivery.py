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
#: The same for a channel that is closed without all answers. Of 100 channels closed at once, 25 acknowledgements were
#: lost; after this time none. A lost one only means that its message comes again.
_SHORT_LINGER_SECONDS = 0.1

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
        *,
        keeps_order: bool = False,
    ) -> None:
        """Take a fresh channel.

        Args:
            channel: of the driver.
            inner: the channel inside it.
            wire: carries the messages.
            lane: of the queue.
            on_timeout: called with the consumer timeout if that ends the channel.
            keeps_order: whether messages go back to the queue only with the end of the channel, all in their order.
        """
        self._channel = channel  # keep a reference: without it the driver drops the inner channel
        self._inner = inner
        self._wire = wire
        self._on_timeout = on_timeout
        self._keeps_order = keeps_order
        self._tag: str | None = None
        self._open_deliveries = 0
        self._answers = _Answers()
        self._flush_task: asyncio.Task[None] | None = None
        #: The time of the last answer; before that, of the start.
        self._active_at = asyncio.get_running_loop().time()
        self._has_new_deliveries = True
        self._has_idle_messages = False
        self._puts_back_deliveries = False
        self._all_answered = asyncio.Event()
        self._closed = asyncio.Event()
        self.queue = ""
        self.lane = lane
        self.has_delivered = False
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

        def on_message(tag: int, body: bytes, properties: Callable[[], Properties]) -> None:
            self._open_deliveries += 1
            self.has_delivered = True
            self._has_new_deliveries = True
            self._all_answered.clear()
            self._answers.add_delivery(tag)
            if self._puts_back_deliveries:
                self.answer(tag, "put back")
            else:
                on_delivery(RabbitDelivery(self, tag, body, properties))

        self.queue = queue
        self._inner.on_consumer_cancel_callbacks.add(lambda _: self.lost.set())
        await self._channel.set_qos(prefetch, global_=False)
        self._tag = await self._wire.consume(self._channel, queue, on_message, arguments)

    @property
    def silence_seconds(self) -> float:
        """Seconds since the last answer or the start; 0 while a delivery is unanswered."""
        return 0.0 if self._open_deliveries else asyncio.get_running_loop().time() - self._active_at

    async def is_served(self) -> bool:
        """Return whether the broker seems to serve the consumer still. Asks the broker only after a long silence.

        After RabbitMQ 3.10 was killed and restarted, it does not always tell consumers that their queue was deleted.
        """
        had_new_deliveries, self._has_new_deliveries = self._has_new_deliveries, False
        if had_new_deliveries or self._open_deliveries or self.lost.is_set():
            self._has_idle_messages = False
            return True
        with driver_errors(f"looking at {self.queue}"):
            found = await self._inner.queue_declare(self.queue, passive=True, timeout=ANSWER_SECONDS)
        # Messages in the queue at one look may be on their way to the consumer; at two looks in a row they are not.
        had_idle_messages = self._has_idle_messages
        self._has_idle_messages = bool(found.message_count) and not self._has_new_deliveries
        return bool(found.consumer_count) and not (had_idle_messages and self._has_idle_messages)

    async def cancel(self) -> None:
        """Cancel the consumer; after this returns no new deliveries come. Never fails."""
        if self._tag is not None and not self.is_closed:
            try:
                with driver_errors(f"cancelling the consumer of {self.queue}"):
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await self._inner.basic_cancel(self._tag)
            except BrokerError as error:
                logger.debug("%s", error)
        self.put_back_later_deliveries()

    def put_back_later_deliveries(self) -> None:
        """Put back all deliveries that arrive from now on."""
        self._puts_back_deliveries = True
        self.lost.set()

    def answer(self, tag: int, verb: Verb) -> None:
        """Acknowledge, reject or put back a delivery; without effect if the channel is gone.

        The next turn of the event loop sends the answer, in one frame with equal answers to neighbouring deliveries.
        """
        self._answers.set_answer(tag, verb)
        if self._flush_task is None:
            self._flush_task = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        # Send one after the other: the driver may delay a frame, and a frame that answers all tags up to some tag must
        # not overtake frames for earlier tags. The broker closes the channel when a tag is answered twice.
        try:
            await asyncio.sleep(0)
            while count := self._answers.count:
                try:
                    for answer in self._answers.pop_answers():
                        if await self._send(answer):
                            self._answers.mark_sent(answer)
                finally:
                    self._note_answered(count)
        finally:
            self._flush_task = None

    async def _send(self, answer: _Answer) -> bool:
        """Send the frame; return whether the driver took it.

        A slow connection may take no frame for a while. The answer is not given up before the channel is closed,
        because until then the broker would count the delivery against the prefetch, and not deliver it again.
        """
        if answer.verb == "put back" and self._keeps_order:
            return False  # the end of the channel puts it back
        last, is_multiple = answer.tags[-1], len(answer.tags) > 1
        while True:
            try:
                with driver_errors(f"{answer.verb} of a delivery of {self.queue}"):
                    async with asyncio.timeout(ANSWER_SECONDS):
                        if answer.verb == "ack":
                            await self._inner.basic_ack(last, multiple=is_multiple, wait=False)
                        else:
                            requeue = answer.verb == "put back"
                            await self._inner.basic_nack(last, multiple=is_multiple, requeue=requeue, wait=False)
                return True
            except BrokerError as error:
                if not isinstance(error.__cause__, TimeoutError):
                    logger.debug("it will be delivered again: %s", error)
                    return False

    def _note_answered(self, count: int) -> None:
        self._active_at = asyncio.get_running_loop().time()
        self._open_deliveries -= count
        if not self._open_deliveries:
            self._all_answered.set()

    async def close_when_answered(self) -> None:
        """Close the channel soon after every delivery is answered."""
        if self._open_deliveries and not self.is_closed:
            await self._all_answered.wait()
        await self._close(_LINGER_SECONDS)

    async def close_unanswered(self) -> None:
        """Close the channel soon, so that the queue gets all unanswered messages back, in their order.

        If the consumer were cancelled first, RabbitMQ would put messages that are on their way back before those that
        are put back from here.
        """
        await self._close(_SHORT_LINGER_SECONDS)
        self.lost.set()

    async def _close(self, linger_seconds: float) -> None:
        # RabbitMQ passes acknowledgements to a quorum queue about 30 at a time, and drops the rest with the channel.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self.is_closed else linger_seconds):
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
        self._all_answered.set()


class _Answer(NamedTuple):
    """One frame: the same answer to some deliveries. With several tags, all older deliveries are answered already."""

    verb: Verb
    tags: Sequence[int]


class _Answers:
    """The answers for the broker: one frame for all tags up to a tag where that is right, otherwise one per tag."""

    def __init__(self) -> None:
        #: The tags of deliveries whose answers were not sent, the oldest first.
        self._open: OrderedDict[int, None] = OrderedDict()
        self._answers: dict[int, Verb] = {}

    def add_delivery(self, tag: int) -> None:
        """Note a new delivery; each tag is larger than the one before."""
        self._open[tag] = None

    def set_answer(self, tag: int, verb: Verb) -> None:
        self._answers[tag] = verb

    def mark_sent(self, answer: _Answer) -> None:
        for tag in answer.tags:
            del self._open[tag]

    @property
    def count(self) -> int:
        return len(self._answers)

    def pop_answers(self) -> Iterator[_Answer]:
        """Yield the answers given so far, in the order of the tags. After sending one, call `mark_sent` first.

        An answer that could not be sent stays open, so that no later answer for many tags includes it.
        """
        answers, self._answers = self._answers, {}
        for verb, run in groupby(sorted(answers), key=answers.__getitem__):
            tags = list(run)
            # Only the oldest open tags may share a frame, because the frame also answers all tags before its tag.
            oldest = enumerate(zip(tags, self._open, strict=False))
            shared = next((number for number, (tag, open_tag) in oldest if tag != open_tag), len(tags))
            if shared:
                yield _Answer(verb, tags[:shared])
            yield from (_Answer(verb, [tag]) for tag in tags[shared:])


class RabbitDelivery:
    """`Delivery` of the port."""

    def __init__(self, channel: ConsumerChannel, tag: int, body: bytes, properties: Callable[[], Properties]) -> None:
        self._channel = channel
        self._tag = tag
        self._read = properties
        self._is_answered = False
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
        if not self._is_answered:
            self._is_answered = True
            self._channel.answer(self._tag, verb)
