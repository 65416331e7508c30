"""Finds out whether the broker has the delayed-message plugin. AMQP lists no plugins, so its exchange type is tried."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from aiormq.exceptions import ChannelPreconditionFailed, ConnectionCommandInvalid

from taskframework.brokers.rabbitmq.connection import ANSWER_SECONDS, Connector
from taskframework.brokers.rabbitmq.faults import driver_errors
from taskframework.brokers.rabbitmq.topology import Exchange
from taskframework.errors import ConfigurationError

logger = logging.getLogger(__name__)


class DelayPlugin:
    """Knows where delays are held: in the plugin, if it is allowed and present; otherwise in the store."""

    def __init__(self, mode: Literal["auto", "plugin", "store"], exchange: Exchange, connector: Connector) -> None:
        self._mode = mode
        self._exchange = exchange
        self._connector = connector
        self.is_used = False

    async def probe(self) -> bool:
        """Declare the delayed exchange if the broker can.

        Returns:
            Whether delayed publications work; `is_used` has the same value from now on.

        Raises:
            ConfigurationError: if the settings demand the plugin and it is missing.
            TopologyMismatchError: if the exchange exists with another type.
            BrokerUnavailableError: if the broker is away.
        """
        if self._mode == "store":
            return False
        self.is_used = await self._declare()
        if not self.is_used and self._mode == "plugin":
            raise ConfigurationError(
                f"broker.delay is plugin, but RabbitMQ at {self._connector.where} has no delayed-message plugin.",
                key="broker.delay",
                hint="Enable rabbitmq_delayed_message_exchange (RabbitMQ up to 4.2), or set broker.delay to auto.",
            )
        return self.is_used

    async def _declare(self) -> bool:
        # An unknown type ends the channel or, on most versions, the connection. So use a separate connection.
        async with self._connector.temporary_connection("delay probe") as connection:
            channel = await connection.channel()
            with driver_errors(f"declaring {self._exchange.name}"):
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await channel.declare_exchange(
                            self._exchange.name,
                            self._exchange.type,
                            durable=True,
                            arguments={**self._exchange.arguments},
                        )
                except (ConnectionCommandInvalid, ChannelPreconditionFailed) as error:
                    if "exchange type" not in str(error):
                        raise
                    logger.debug("no delayed-message plugin: %s", error)
                    return False
        return True
