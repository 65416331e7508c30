"""The queues of the embedded broker: which consumer gets which message, and which messages are unacknowledged."""

from __future__ import annotations

import asyncio
import bisect
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from taskframework.model.status import Priority

logger = logging.getLogger(__name__)


class Message(NamedTuple):
    """A message as a queue keeps it."""

    #: Grows with every publication, so that a message that is put back returns to its old place.
    number: int
    body: bytes
    headers: Mapping[str, str]
    content_type: str


class EmbeddedDelivery:
    """`Delivery` of the port."""

    __slots__ = ("body", "consumer", "content_type", "headers", "lane", "message", "queue")

    def __init__(self, message: Message, consumer: Consumer) -> None:
        self.message = message
        self.consumer = consumer
        _, self.body, self.headers, self.content_type = message
        self.queue = consumer.queue.name
        self.lane = consumer.queue.lane

    @property
    def is_void(self) -> bool:
        """Whether the delivery was answered, or its connection was lost."""
        return self not in self.consumer.queue.unacked

    async def ack(self) -> None:
        self.consumer.queue.settle(self)

    async def put_back(self) -> None:
        if not self.is_void:
            self.consumer.queue.put_back([self])

    async def reject(self) -> None:
        queue = self.consumer.queue
        if queue.settle(self) and queue.dead_letters is not None:
            death_headers = {"x-first-death-queue": queue.name, "x-first-death-reason": "rejected"}
            queue.dead_letters.put(self.message._replace(headers={**self.message.headers, **death_headers}))


class Consumer:
    """One consumer of one queue, on one connection."""

    __slots__ = ("_on_delivery", "prefetch", "queue", "unanswered_count")

    def __init__(self, queue: Queue, prefetch: int, on_delivery: Callable[[EmbeddedDelivery], None]) -> None:
        self.queue = queue
        self.prefetch = prefetch
        self.unanswered_count = 0
        self._on_delivery = on_delivery
        queue.consumers.append(self)
        queue.wake()

    def cancel(self) -> None:
        """Stop further deliveries."""
        if self in self.queue.consumers:
            self.queue.consumers.remove(self)

    def deliver(self, message: Message) -> None:
        delivery = EmbeddedDelivery(message, self)
        self.unanswered_count += 1
        self.queue.unacked.add(delivery)
        try:
            self._on_delivery(delivery)
        except Exception:
            logger.exception("a consumer of %s failed on a delivery; it stays unacknowledged", self.queue.name)


class Queue:
    """Messages in order. Consumers get them in turn, each no more than its prefetch."""

    def __init__(
        self,
        name: str,
        *,
        lane: Priority = Priority.NORMAL,
        dead_letters: Queue | None = None,
        limit: int | None = None,
        is_declared: bool = False,
    ) -> None:
        self.name = name
        self.lane = lane
        self.dead_letters = dead_letters
        self.is_declared = is_declared
        self.ready: deque[Message] = deque()
        self.unacked: set[EmbeddedDelivery] = set()
        self.consumers: deque[Consumer] = deque()
        self._max_messages = limit
        self._overflowed = False
        self._scheduled = False

    def put(self, message: Message) -> None:
        self.ready.append(message)
        if self._max_messages is not None and len(self.ready) > self._max_messages:
            self._drop_oldest(self._max_messages)
        self.wake()

    def settle(self, delivery: EmbeddedDelivery) -> bool:
        """End a delivery; return False if it was void already, so that its message is delivered again."""
        if delivery not in self.unacked:
            logger.info("a delivery of %s was lost here; it will be delivered again", self.name)
            return False
        self.unacked.remove(delivery)
        delivery.consumer.unanswered_count -= 1
        self.wake()
        return True

    def take_back(self) -> None:
        """Make all messages ready again that were delivered but not answered."""
        self.put_back(list(self.unacked))

    def put_back(self, deliveries: Sequence[EmbeddedDelivery]) -> None:
        """Make the messages of these deliveries ready again, each at its old place."""
        self.unacked.difference_update(deliveries)
        for delivery in deliveries:
            delivery.consumer.unanswered_count -= 1
        # From the last to the first, so that each is inserted near the front, however many messages wait.
        for message in sorted((delivery.message for delivery in deliveries), reverse=True):
            bisect.insort(self.ready, message)
        self.wake()

    def wake(self) -> None:
        """Deliver soon: one callback of the event loop hands out all messages that are ready."""
        if not self._scheduled and self.ready and self.consumers:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        while self.ready and (consumer := self._next_consumer()) is not None:
            consumer.deliver(self.ready.popleft())

    def _next_consumer(self) -> Consumer | None:
        for _ in range(len(self.consumers)):
            consumer = self.consumers[0]
            self.consumers.rotate(-1)
            if consumer.unanswered_count < consumer.prefetch:
                return consumer
        return None

    def _drop_oldest(self, limit: int) -> None:
        self.ready.popleft()
        if not self._overflowed:
            self._overflowed = True
            logger.warning(
                "%s holds %d messages that nobody consumes; from now on the oldest are dropped", self.name, limit
            )
