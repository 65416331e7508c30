"""The broker port: everything that the framework requires of a message broker.

A message is a doorbell. A broker may lose, duplicate, delay or reorder messages; this costs time, but never a task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from logging import Logger
from typing import Protocol

from taskframework.errors import TaskframeworkError
from taskframework.frames import is_ours
from taskframework.model.message import TaskMessage
from taskframework.model.status import Priority


class Delivery(Protocol):
    """A message that a worker holds. Exactly one of its three methods is called, after all other work with it.

    If the connection is lost before the call, the method logs this and returns: the broker delivers the message again,
    and the claim refuses it.
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
        """Send the message to the dead-letter exchange; it is not delivered again."""
        ...

    async def put_back(self) -> None:
        """Put the message back into the queue. Only after its consumption was stopped: otherwise it comes back here."""
        ...


#: Called for every delivery, inside the broker's own callback. Must return quickly.
OnDelivery = Callable[[Delivery], None]


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """The queues to consume."""

    task_types: Sequence[str]
    #: Unacknowledged deliveries per queue.
    prefetch: int


class Consumption(Protocol):
    """Running consumers. After each broken connection they are registered again, until `stop`."""

    async def stop(self) -> None:
        """Stop new deliveries; after this returns none come. Present ones can be answered until the broker closes."""
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


class EventNotHandledError(TaskframeworkError):
    """A handler failed. The text names the event and the handler, without any content; the cause is the error."""


def log_event_failure(logger: Logger, retry: str, error: BaseException | None) -> None:
    """Log that an event could not be handled, with the error of the handler and the frames of the author's code.

    Args:
        logger: of the subscriber.
        retry: the text about the next attempt.
        error: the failure. Its message is shown only if it is our own: that of another error may have any content.
    """
    cause, what = (error.__cause__, f": {error}") if isinstance(error, EventNotHandledError) else (error, "")
    traceback = None if cause is None else cause.__traceback__
    while traceback is not None and traceback.tb_next is not None and is_ours(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    info = None if cause is None else (type(cause), cause, traceback)
    logger.warning("an event could not be handled%s%s", retry, what, exc_info=info)


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """What `doctor` shows of a broker: facts, and problems with their remedy."""

    facts: dict[str, str]
    problems: tuple[str, ...]


class Broker(Protocol):
    """A broker with a queue for each task type and lane, a dead-letter queue and an events exchange."""

    async def open(self) -> None:
        """Start connecting in the background. If the broker is away, this does not fail, but keeps trying."""
        ...

    async def close(self) -> None: ...

    @property
    def is_connected(self) -> bool:
        """Whether a publication may succeed right now."""
        ...

    @property
    def is_blocked(self) -> bool:
        """Whether publications fail although there is a connection: the broker takes none because of an alarm. Then
        consumers continue.
        """
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
        """How long a delivery may stay unacknowledged until the broker takes it back; None means without limit.

        The value may become shorter: only a delivery that the broker takes back tells the adapter the broker's limit.
        """
        ...

    async def declare(self, task_types: Sequence[str]) -> None:
        """Declare exchanges and the queues of these types; if they exist, nothing changes.

        Raises:
            TopologyMismatchError: if a queue or an exchange exists with other arguments; names it.
            BrokerUnavailableError: if the broker is away.
        """
        ...

    async def publish(self, message: TaskMessage, *, delay: timedelta | None = None) -> None:
        """Publish a task message, persistent, and wait for the confirm.

        Raises:
            PublishRefusedError: if the broker refuses the message, or if no queue takes it, except a delayed message.
            BrokerUnavailableError: not connected, or no confirm in time; the message may still have been delivered.
        """
        ...

    async def queue_depth(self, task_type: str, lane: Priority) -> int | None:
        """Return the number of ready messages in a queue; None when there is no such queue.

        Raises:
            BrokerUnavailableError: if the broker is away.
        """
        ...

    def consume(self, request: ConsumeRequest, on_delivery: OnDelivery) -> Consumption:
        """Start consuming with manual acknowledgement; returns at once and keeps trying."""
        ...

    def consume_dead_letters(self, on_delivery: OnDelivery) -> Consumption:
        """Consume the dead-letter queue. Several processes may do so; each message goes to one of them."""
        ...

    async def publish_event(self, message: ExternalMessage) -> None:
        """Publish to the events exchange, persistent, and wait for the confirm. This succeeds without listeners too.

        Raises:
            PublishRefusedError, BrokerUnavailableError: as `publish`.
        """
        ...

    def subscribe(self, on_message: OnExternalMessage, *, durable_name: str | None = None) -> Consumption:
        """Receive from the events exchange, one message at a time, acknowledged after `on_message` returned.

        Args:
            on_message: awaited for each message, in the order of arrival.
            durable_name: name of a queue that stays and collects messages while nobody listens. Without a name, an
                exclusive queue is used, which ends with the connection.
        """
        ...

    async def inspect(self, task_types: Sequence[str] = ()) -> BrokerReport:
        """Report versions, the plugin and the queues of these types, for `doctor`. Works without `open`."""
        ...
