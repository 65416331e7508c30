"""Hearing the events exchange: one message at a time, in order, acknowledged after it was heard."""

from __future__ import annotations

import asyncio
import logging

from aio_pika.abc import AbstractChannel
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from taskframework.background import Background, end, is_failure
from taskframework.brokers.base import ExternalMessage, OnExternalMessage
from taskframework.brokers.rabbitmq.connection import BrokerConnection
from taskframework.brokers.rabbitmq.consumer import QueueConsumer, Source
from taskframework.brokers.rabbitmq.delivery import RabbitDelivery
from taskframework.brokers.rabbitmq.supervision import Supervised
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
        connection: Supervised[BrokerConnection],
        names: Names,
        on_message: OnExternalMessage,
        durable_name: str | None,
        background: Background,
    ) -> None:
        self._on_message = on_message
        self._arrived: asyncio.Queue[RabbitDelivery] = asyncio.Queue()
        self._consumer = QueueConsumer(
            connection,
            Source(
                name=f"events ({durable_name or 'exclusive'})",
                prefetch=_PREFETCH,
                queue=lambda channel: subscription_queue(channel, names, durable_name),
            ),
            self._arrived.put_nowait,
            background,
        )
        self._is_handling = False
        self._worker = asyncio.create_task(self._work())

    @property
    def is_live(self) -> bool:
        return self._consumer.is_live

    @property
    def is_stopped(self) -> bool:
        return self._consumer.is_stopped

    async def stop(self) -> None:
        """Nothing more is handed over after this returns; what is being handled may end and is acknowledged."""
        await self._consumer.stop()
        if not self._is_handling:
            await end(self._worker)
        while not self._arrived.empty():
            await self._arrived.get_nowait().put_back()

    async def close(self) -> None:
        """Stop, and end what is being handled, unless it is the handler that asks for it."""
        await self.stop()
        if asyncio.current_task() is not self._worker:
            await end(self._worker)

    async def _work(self) -> None:
        while not self.is_stopped:
            delivery = await self._arrived.get()
            try:
                await self._hand_over(delivery)
            except BaseException as error:
                await delivery.put_back()  # no effect if its channel is gone: then it comes by itself
                if not is_failure(error):
                    raise

    async def _hand_over(self, delivery: RabbitDelivery) -> None:
        """Repeat until it is handled. Here and not through the broker, which would put others before it."""
        if delivery.is_void:
            return
        message = ExternalMessage(delivery.body, delivery.content_type, delivery.headers)
        patience = AsyncRetrying(
            wait=wait_random_exponential(multiplier=0.1, max=_LONGEST_PAUSE),
            retry=retry_if_exception(lambda error: is_failure(error) and not self.is_stopped and not delivery.is_void),
            before_sleep=_log_failure,
            reraise=True,
        )
        await patience(self._handle, message)
        await delivery.ack()

    async def _handle(self, message: ExternalMessage) -> None:
        self._is_handling = True
        try:
            await self._on_message(message)
        finally:
            self._is_handling = False


def _log_failure(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    logger.warning("an event could not be handled, attempt %d", state.attempt_number, exc_info=error)
