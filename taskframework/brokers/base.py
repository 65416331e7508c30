"""The broker port: everything the framework asks of a message broker.

A message is a doorbell. A broker may lose, double, delay or reorder messages; that costs time, never a task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from taskframework.model.message import TaskMessage
from taskframework.model.status import Priority


class Delivery(Protocol):
    """A message in the hands of a worker. Exactly one of its three methods is called, as the last thing done with it.

    If the connection is lost by then, they log that and return: the broker delivers the message again, and the claim
    refuses it.
    """

    @property
    def body(self) -> bytes: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def queue(self) -> str: ...

    @property
    def lane(self) -> Priority: ...

    async def ack(self) -> None: ...

    async def reject(self) -> None:
        """Send it to the dead-letter exchange; it is not delivered again."""
        ...

    async def put_back(self) -> None:
        """Put it back into the queue. Only after its consumption was stopped: else it is delivered here again."""
        ...


#: Called for every delivery, without being awaited by the broker's own callback. Must return quickly.
OnDelivery = Callable[[Delivery], None]


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """What to consume."""

    task_types: Sequence[str]
    #: Unacknowledged deliveries per queue.
    prefetch: int


class Consumption(Protocol):
    """Running consumers, kept alive through every broken connection until `stop`."""

    async def stop(self) -> None:
        """No new deliveries after this returns; those in hand can still be acknowledged until the broker closes."""
        ...

    @property
    def is_live(self) -> bool:
        """Whether every consumer is registered with the broker right now."""
        ...


@dataclass(frozen=True, slots=True)
class ExternalMessage:
    """One message on the events exchange."""

    body: bytes
    content_type: str
    headers: Mapping[str, str]


#: Awaited before the message is acknowledged; if it raises, the message is delivered again.
OnExternalMessage = Callable[[ExternalMessage], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """What `doctor` shows of a broker: facts, and problems with their remedy."""

    facts: dict[str, str]
    problems: tuple[str, ...]


class Broker(Protocol):
    """A broker with a queue for each task type and lane, a dead-letter queue and an events exchange."""

    async def open(self) -> None:
        """Start connecting in the background. If the broker is away this does not fail, but goes on trying."""
        ...

    async def close(self) -> None: ...

    @property
    def is_connected(self) -> bool:
        """Whether a publication has a chance right now."""
        ...

    @property
    def holds_delays(self) -> bool:
        """Whether `publish` with a delay works (the delayed-message plugin, or in memory)."""
        ...

    @property
    def outlives_process(self) -> bool:
        """Whether messages survive this process. If not, only a worker in this process can consume them."""
        ...

    @property
    def consumer_timeout(self) -> timedelta | None:
        """How long a delivery may stay unacknowledged until the broker takes it back; None is for ever.

        It may become shorter: the only way to learn the broker's own limit is that it takes a delivery back.
        """
        ...

    async def declare(self, task_types: Sequence[str]) -> None:
        """Declare exchanges and the queues of these types; if they exist, nothing changes.

        Raises:
            TopologyMismatchError: naming the queue or exchange that exists with other arguments.
            BrokerUnavailableError: if the broker is away.
        """
        ...

    async def publish(self, message: TaskMessage, *, delay: timedelta | None = None) -> None:
        """Publish a task message, persistent, and wait for the confirm.

        Raises:
            PublishRefusedError: if no queue takes it, or the broker refuses it; for a delayed message the former does
                not show.
            BrokerUnavailableError: not connected, or no confirm in time; it may have been delivered all the same.
        """
        ...

    async def queue_depth(self, task_type: str, lane: Priority) -> int | None:
        """Messages ready in a queue; None when there is no such queue.

        Raises:
            BrokerUnavailableError: if the broker is away.
        """
        ...

    def consume(self, request: ConsumeRequest, on_delivery: OnDelivery) -> Consumption:
        """Start consuming with manual acknowledgement; returns at once and keeps trying."""
        ...

    def consume_dead_letters(self, on_delivery: OnDelivery) -> Consumption:
        """Consume the dead-letter queue, one consumer among several processes."""
        ...

    async def publish_event(self, message: ExternalMessage) -> None:
        """Publish to the events exchange, persistent, and wait for the confirm. Nobody listening is fine.

        Raises:
            PublishRefusedError, BrokerUnavailableError: as `publish`.
        """
        ...

    def subscribe(self, on_message: OnExternalMessage, *, durable_name: str | None = None) -> Consumption:
        """Hear the events exchange, one message at a time, acknowledged after `on_message` returned.

        Args:
            on_message: awaited for each message, in the order of arrival.
            durable_name: name of a queue that stays and collects while nobody listens; without it an exclusive
                queue that goes with the connection.
        """
        ...

    async def inspect(self, task_types: Sequence[str] = ()) -> BrokerReport:
        """Versions, plugin and the queues of these types, for `doctor`. Works without `open`."""
        ...
