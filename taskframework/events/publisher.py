"""The publisher: sends external events as confirmed messages to the events exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from taskframework.brokers.base import Broker
from taskframework.events.external import ExternalEvent, to_message

#: The most events and bytes of one message: subscribers read a whole message, and any AMQP client can take this size.
MAX_EVENTS = 100
MAX_BYTES = 256 * 1024


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
        for group in _groups(events):
            await self._broker.publish_event(to_message(group))
            for event in group:
                self._on_published(event.type)


def _groups(events: Sequence[ExternalEvent]) -> Iterator[list[ExternalEvent]]:
    group: list[ExternalEvent] = []
    size = 0
    for event in events:
        weight = _weight(event)
        if group and (len(group) >= MAX_EVENTS or size + weight > MAX_BYTES):
            yield group
            group, size = [], 0
        group.append(event)
        size += weight
    if group:
        yield group


def _weight(event: ExternalEvent) -> int:
    """Return about how many bytes an event has; more exact for the parts that can be large, result and progress."""
    small = 1_500
    result, progress = event.data.get("result"), event.data.get("progress")
    return small + (len(repr(result)) if result is not None else 0) + (len(repr(progress)) if progress else 0)
