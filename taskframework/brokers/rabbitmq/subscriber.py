"""The queue of a subscriber to the events exchange."""

from __future__ import annotations

from functools import partial

from aio_pika.abc import AbstractChannel

from taskframework.brokers.rabbitmq.consumer import Source
from taskframework.brokers.rabbitmq.topology import NO_DELIVERY_LIMIT, QUORUM, Names

#: A message has up to a hundred events when many are published.
_PREFETCH = 100


def event_source(names: Names, durable_name: str | None) -> Source:
    """Return the source of a subscriber."""
    name = f"events ({durable_name or 'exclusive'})"
    # An event that comes after a later one of its task is dropped as old, so the next subscriber needs the order.
    return Source(name, _PREFETCH, partial(_declare_queue, names, durable_name), keeps_order=True)


async def _declare_queue(names: Names, durable_name: str | None, channel: AbstractChannel) -> str:
    """Declare and bind the queue of a subscriber on its own channel.

    Returns:
        The queue's name; the broker chooses the name of an exclusive queue.
    """
    exchange = await channel.declare_exchange(names.events, "fanout", durable=True)
    if durable_name is None:
        # Deleted together with its consumer: otherwise it would fill up as long as the connection is open.
        queue = await channel.declare_queue(exclusive=True, auto_delete=True, arguments={"x-queue-type": "classic"})
    else:
        queue = await channel.declare_queue(
            names.subscription(durable_name),
            durable=True,
            arguments={"x-queue-type": QUORUM, "x-delivery-limit": NO_DELIVERY_LIMIT},
        )
    await queue.bind(exchange)
    return queue.name
