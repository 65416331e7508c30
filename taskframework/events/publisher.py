"""The publisher: sends external events as confirmed messages to the events exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from taskframework.brokers.base import Broker
from taskframework.events.external import ExternalEvent, to_message

#: The most events and bytes of one message: subscribers read a whole message, and any AMQP client can take this size.
MAX_EVENTS_PER_MESSAGE = 100
MAX_MESSAGE_BYTES = 256 * 1024


class TaskEventPublisher:
    """Publishes events in the order given, several to a message when several wait."""

    def __init__(self, broker: Broker, on_published: Callable[[str], None] = lambda _: None) -> None:
        """Prepare to publish; `on_published` is called with the type of each confirmed event."""
        self._broker = broker
        self._on_published = on_published

    async def publish(self, events: Sequence[ExternalEvent]) -> None:
        """Publish and wait for the confirms, one message after the other, so that their order is kept.

        Raises:
            BrokerError: at the first message that was not confirmed; all messages before it were confirmed.
        """
        for group in _split_into_messages(events):
            await self._broker.publish_event(to_message(group))
            for event in group:
                self._on_published(event.type)


def _split_into_messages(events: Sequence[ExternalEvent]) -> Iterator[list[ExternalEvent]]:
    group: list[ExternalEvent] = []
    size = 0
    for event in events:
        bytes_of_event = _estimate_bytes(event)
        if group and (len(group) >= MAX_EVENTS_PER_MESSAGE or size + bytes_of_event > MAX_MESSAGE_BYTES):
            yield group
            group, size = [], 0
        group.append(event)
        size += bytes_of_event
    if group:
        yield group


def _estimate_bytes(event: ExternalEvent) -> int:
    """Return about how many bytes an event has; more exact for the parts that can be large, result and progress."""
    base_bytes = 1_500
    result, progress = event.data.get("result"), event.data.get("progress")
    return base_bytes + (len(repr(result)) if result is not None else 0) + (len(repr(progress)) if progress else 0)
