"""Hearing the events exchange: one message at a time, in order, acknowledged after it was heard."""

from __future__ import annotations

import asyncio
import logging

from aio_pika.abc import AbstractChannel
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from taskframework.brokers.base import ExternalMessage, OnExternalMessage
from taskframework.brokers.rabbitmq.connection import Line
from taskframework.brokers.rabbitmq.consumer import QueueConsumer, Source
from taskframework.brokers.rabbitmq.delivery import RabbitDelivery
from taskframework.brokers.rabbitmq.supervision import Background, Kept
from taskframework.brokers.rabbitmq.topology import NO_DELIVERY_LIMIT, QUORUM, Names

logger = logging.getLogger(__name__)

_PREFETCH = 100
#: Longest pause before a message that could not be handled is handed over again, in seconds.
_LONGEST_PAUSE = 5.0


async def subscription_queue(channel: AbstractChannel, names: Names, durable_name: str | None) -> str:
    """Declare and bind the queue of a subscriber on its own channel.

    Returns:
        The queue's name; the broker chooses that of an exclusive one.
    """
    exchange = await channel.declare_exchange(names.events, "fanout", durable=True)
    if durable_name is None:
        # Gone with its consumer: it would fill for as long as the connection lives.
        queue = await channel.declare_queue(exclusive=True, auto_delete=True, arguments={"x-queue-type": "classic"})
    else:
        queue = await channel.declare_queue(
            names.subscription(durable_name),
            durable=True,
            arguments={"x-queue-type": QUORUM, "x-delivery-limit": NO_DELIVERY_LIMIT},
        )
    await queue.bind(exchange)
    return queue.name


class Subscription:
    """A running subscriber."""

    def __init__(
        self,
        lines: Kept[Line],
        names: Names,
        on_message: OnExternalMessage,
        durable_name: str | None,
        background: Background,
    ) -> None:
        self._on_message = on_message
        self._arrived: asyncio.Queue[RabbitDelivery] = asyncio.Queue()
        self._consumer = QueueConsumer(
            lines,
            Source(
                name=f"events ({durable_name or 'exclusive'})",
                prefetch=_PREFETCH,
                queue=lambda channel: subscription_queue(channel, names, durable_name),
            ),
            self._arrived.put_nowait,
            background,
        )
        self._worker = asyncio.create_task(self._work())

    @property
    def is_live(self) -> bool:
        return self._consumer.is_live and not self._worker.done()

    @property
    def is_stopped(self) -> bool:
        return self._consumer.is_stopped

    async def stop(self) -> None:
        """No message is handed over after this returns; what was not heard to the end goes back to the queue."""
        await self._consumer.stop()
        self._worker.cancel()
        await asyncio.wait([self._worker])
        while not self._arrived.empty():
            await self._arrived.get_nowait().put_back()

    async def _work(self) -> None:
        while True:
            delivery = await self._arrived.get()
            try:
                await self._hand_over(delivery)
            except asyncio.CancelledError:
                await delivery.put_back()
                raise
            except Exception as error:
                logger.debug("an event was lost with its channel and comes again: %r", error)

    async def _hand_over(self, delivery: RabbitDelivery) -> None:
        """Repeat until it is heard. Here and not through the broker, which would put others before it."""
        message = ExternalMessage(delivery.body, delivery.content_type, delivery.headers)
        patience = AsyncRetrying(
            wait=wait_random_exponential(multiplier=0.1, max=_LONGEST_PAUSE),
            retry=retry_if_exception(lambda error: isinstance(error, Exception) and not delivery.is_void),
            before_sleep=_log_failure,
            reraise=True,
        )
        if not delivery.is_void:
            await patience(self._on_message, message)
            await delivery.ack()


def _log_failure(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    logger.warning("an event could not be handled, attempt %d", state.attempt_number, exc_info=error)
