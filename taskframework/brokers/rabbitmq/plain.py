"""The plain way: messages through the driver's public calls, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aio_pika
from aio_pika import DeliveryMode
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aio_pika.exceptions import DeliveryError, PublishError

from taskframework.brokers.rabbitmq.messages import Publication
from taskframework.brokers.rabbitmq.wire import (
    OnMessage,
    PublicationWriter,
    RefusedError,
    ReturnedError,
    to_properties,
)
from taskframework.errors import PublishRefusedError


class PlainWire:
    """Consumes and publishes with aio-pika."""

    async def consume(
        self, channel: AbstractChannel, queue: str, on_message: OnMessage, arguments: Mapping[str, int] | None
    ) -> str:
        async def receive(message: AbstractIncomingMessage) -> None:
            # Runs as an asyncio task of the driver, which starts these in order and cancels them with the channel.
            if message.delivery_tag is not None:
                on_message(
                    message.delivery_tag, message.body, lambda: to_properties(message.content_type, message.headers)
                )

        consumed = await channel.get_queue(queue, ensure=False)
        return await consumed.consume(receive, arguments={**(arguments or {})})

    async def writer(self, channel: AbstractChannel) -> PublicationWriter:
        return PlainWriter(channel)


class PlainWriter:
    """Publishes with aio-pika on a channel that confirms, and that raises an error for each returned message."""

    def __init__(self, channel: AbstractChannel) -> None:
        self._channel = channel

    async def send(self, publication: Publication, deadline: float) -> None:
        message = aio_pika.Message(
            publication.body,
            headers={**publication.headers},
            content_type=publication.content_type,
            delivery_mode=DeliveryMode.PERSISTENT,
            correlation_id=publication.correlation_id,
            message_id=publication.message_id,
        )
        exchange = await self._channel.get_exchange(publication.exchange, ensure=False)
        try:
            async with asyncio.timeout_at(deadline):
                await exchange.publish(message, publication.routing_key, mandatory=publication.mandatory)
        except PublishError as error:
            raise ReturnedError from error
        except DeliveryError as error:
            raise RefusedError from error
        except (TypeError, ValueError) as error:  # before anything is sent
            raise PublishRefusedError(f"The message cannot be written: {error}.") from error
