"""A broker inside the process that works as a real broker: acknowledgement, redelivery, dead letters, delays.

Its messages are lost when the process ends; then the sweeper sends new messages, as after the loss of any broker.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from taskframework.background import Background
from taskframework.brokers.base import (
    BrokerReport,
    ConsumeRequest,
    Consumption,
    ExternalMessage,
    OnDelivery,
    OnExternalMessage,
)
from taskframework.brokers.embedded_queues import Consumer, EmbeddedDelivery, Message, Queue
from taskframework.brokers.subscription import Subscription
from taskframework.clock import Clock, SystemClock
from taskframework.errors import BrokerUnavailableError, PublishRefusedError
from taskframework.model.message import TaskMessage
from taskframework.model.status import LANES, Priority

logger = logging.getLogger(__name__)

#: The most messages that a durable events queue keeps while nobody consumes it; beyond that the oldest are lost.
MAX_KEPT_EVENTS = 100_000
#: The most delayed messages, each of which waits in memory; as many as the producer has timers (`max_pending`). For
#: all others the producer uses its timers, and then the sweeper sends them in time.
MAX_DELAYED_MESSAGES = 20_000
_DEAD_LETTER_PREFETCH = 100
_SYSTEM_CLOCK = SystemClock()


class EmbeddedBroker:
    """`Broker` in process, for one event loop."""

    outlives_process = False
    consumer_timeout = None

    def __init__(self, *, clock: Clock = _SYSTEM_CLOCK, prefix: str = "tasks") -> None:
        """Make an empty broker.

        Args:
            clock: decides when delayed messages are due.
            prefix: first part of the queues' names.
        """
        self._clock = clock
        self._prefix = prefix
        self._numbers = itertools.count()
        self._dead_letters = Queue(f"{prefix}.dlq", is_declared=True)
        self._queues: dict[str, Queue] = {}
        self._event_queues: dict[str, Queue] = {}
        #: Delayed messages. They continue to wait while the broker is closed.
        self._delayed = Background()
        # A dict keeps the order: consumers of a queue take turns in the order in which they came.
        self._consumptions: dict[_Consumption, None] = {}
        self._subscriptions: list[Subscription] = []
        self._is_open = False
        self._is_interrupted = False

    async def open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._connect()

    async def close(self) -> None:
        """Stop everything; messages that were delivered but not acknowledged are ready again for the next `open`."""
        self._is_open = False
        self._disconnect()
        self._consumptions.clear()
        for subscription in self._subscriptions:
            await subscription.close()
        self._subscriptions.clear()

    @property
    def is_connected(self) -> bool:
        return self._is_open and not self._is_interrupted

    @property
    def is_blocked(self) -> bool:
        return False

    @property
    def holds_delays(self) -> bool:
        return len(self._delayed.tasks) < MAX_DELAYED_MESSAGES

    async def declare(self, task_types: Sequence[str]) -> None:
        if self._is_interrupted:
            raise BrokerUnavailableError
        for task_type in task_types:
            for lane in LANES:
                self._queue(task_type, lane).is_declared = True

    async def publish(self, message: TaskMessage, *, delay: timedelta | None = None) -> None:
        self._require_connection()
        name = f"{self._prefix}.{message.task_type}.{message.lane}"
        queued = self._message(message.to_body(), message.headers)
        if delay is not None and delay > timedelta(0):
            self._delayed.start(self._put_later(delay, name, queued))
            return
        queue = self._queues.get(name)
        if queue is None or not queue.is_declared:
            raise PublishRefusedError(
                f"There is no queue {name}.", hint="Start a program that has this task type registered."
            )
        queue.put(queued)

    def publish_raw(self, routing_key: str, body: bytes, headers: Mapping[str, str | int] | None = None) -> None:
        """Publish any message, as another program may do; for tests.

        Args:
            routing_key: `<task_type>.<lane>`, or `<task_type>` for the normal lane.
            body: any bytes.
            headers: any headers.
        """
        for name in (f"{self._prefix}.{routing_key}", f"{self._prefix}.{routing_key}.{Priority.NORMAL}"):
            if (queue := self._queues.get(name)) is not None:
                queue.put(self._message(body, headers))

    async def queue_depth(self, task_type: str, lane: Priority) -> int | None:
        self._require_connection()
        queue = self._queues.get(f"{self._prefix}.{task_type}.{lane}")
        return len(queue.ready) if queue is not None and queue.is_declared else None

    def consume(self, request: ConsumeRequest, on_delivery: OnDelivery) -> Consumption:
        queues = [self._queue(task_type, lane) for task_type in request.task_types for lane in LANES]
        return self._start(_Consumption(self, queues, request.prefetch, on_delivery))

    def consume_dead_letters(self, on_delivery: OnDelivery) -> Consumption:
        return self._start(_Consumption(self, [self._dead_letters], _DEAD_LETTER_PREFETCH, on_delivery))

    async def publish_event(self, message: ExternalMessage) -> None:
        self._require_connection()
        queued = self._message(message.body, message.headers, message.content_type)
        for queue in self._event_queues.values():
            queue.put(queued)

    def subscribe(self, on_message: OnExternalMessage, *, durable_name: str | None = None) -> Consumption:
        subscription = Subscription(
            on_message,
            lambda on_delivery: self._start(_EventConsumption(self, on_delivery, durable_name)),
            self._clock.sleep,
        )
        self._subscriptions = [known for known in self._subscriptions if not known.is_stopped] + [subscription]
        return subscription

    async def inspect(self, task_types: Sequence[str] = ()) -> BrokerReport:
        # No counts: `doctor` is a process of its own, whose broker is always empty.
        facts = {"broker": "embedded: its messages are in the memory of the process that executes tasks"}
        return BrokerReport(facts, ())

    def interrupt(self) -> None:
        """Behave as a broker that has stopped, until `restore`; for tests."""
        self._is_interrupted = True
        self._disconnect()

    def restore(self) -> None:
        """Come back after `interrupt` and deliver all unacknowledged messages again."""
        self._is_interrupted = False
        self._connect()

    def _start(self, consumption: _Consumption) -> Consumption:
        self._consumptions[consumption] = None
        if self.is_connected:
            consumption.connect()
        return consumption

    def _connect(self) -> None:
        if self.is_connected:
            for consumption in self._consumptions:
                consumption.connect()

    def _disconnect(self) -> None:
        for consumption in self._consumptions:
            consumption.disconnect()
        for queue in (*self._queues.values(), *self._event_queues.values(), self._dead_letters):
            queue.take_back()

    def _require_connection(self) -> None:
        if not self.is_connected:
            raise BrokerUnavailableError

    def _queue(self, task_type: str, lane: Priority) -> Queue:
        name = f"{self._prefix}.{task_type}.{lane}"
        if name not in self._queues:
            self._queues[name] = Queue(name, lane=lane, dead_letters=self._dead_letters)
        return self._queues[name]

    def _message(self, body: bytes, headers: Mapping[str, str | int] | None, content_type: str = "") -> Message:
        texts = {key: str(value) for key, value in headers.items()} if headers else {}
        # Copy the bytes, because bytes from orjson occupy at least 4 KB, and a backlog has many messages.
        return Message(next(self._numbers), bytes(memoryview(body)), texts, content_type)

    async def _put_later(self, delay: timedelta, name: str, message: Message) -> None:
        await self._clock.sleep(delay.total_seconds())
        if (queue := self._queues.get(name)) is not None and queue.is_declared:
            queue.put(message)
        else:
            logger.warning("a delayed message was lost: there is no queue %s", name)


class _Consumption:
    """`Consumption` of task queues or dead letters."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        queues: Sequence[Queue],
        prefetch: int,
        on_delivery: Callable[[EmbeddedDelivery], None],
    ) -> None:
        self._broker = broker
        self._queues = queues
        self._prefetch = prefetch
        self._on_delivery = on_delivery
        self._consumers: list[Consumer] = []

    def connect(self) -> None:
        self._consumers = [Consumer(queue, self._prefetch, self._on_delivery) for queue in self._queues]

    def disconnect(self) -> None:
        for consumer in self._consumers:
            consumer.cancel()

    async def stop(self) -> None:
        self._broker._consumptions.pop(self, None)
        self.disconnect()

    @property
    def is_live(self) -> bool:
        running = self._broker.is_connected and self in self._broker._consumptions
        return running and all(queue.is_declared for queue in self._queues)


class _EventConsumption(_Consumption):
    """`Consumption` of a subscriber's queue. A queue without a durable name ends with the connection."""

    def __init__(
        self, broker: EmbeddedBroker, on_delivery: Callable[[EmbeddedDelivery], None], name: str | None
    ) -> None:
        super().__init__(broker, (), 1, on_delivery)
        self._is_durable = name is not None
        self._name = f"{broker._prefix}.events.{name or f'exclusive-{next(broker._numbers)}'}"

    def connect(self) -> None:
        queue = Queue(self._name, limit=MAX_KEPT_EVENTS, is_declared=True)
        self._queues = [self._broker._event_queues.setdefault(self._name, queue)]
        super().connect()

    def disconnect(self) -> None:
        super().disconnect()
        if not self._is_durable:
            self._broker._event_queues.pop(self._name, None)
