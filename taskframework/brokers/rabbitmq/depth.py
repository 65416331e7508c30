"""How many messages wait in a queue, asked on a connection that stays open."""

from __future__ import annotations

import asyncio

from aio_pika.abc import AbstractChannel
from aiormq.exceptions import ChannelNotFoundEntity

from taskframework.brokers.rabbitmq.connection import ANSWER_SECONDS, BrokerConnection, Connector
from taskframework.brokers.rabbitmq.faults import driver_errors


class DepthGauge:
    """Asks by passive declaration, one question at a time."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._lock = asyncio.Lock()
        self._connection: BrokerConnection | None = None
        self._channel: AbstractChannel | None = None

    async def messages_ready(self, queue: str) -> int | None:
        """Return the number of ready messages in a queue; None when there is no such queue.

        Raises:
            BrokerUnavailableError: if the broker is away.
        """
        # The limit includes the wait for the lock: while the broker is silent, no question waits for earlier ones.
        with driver_errors(f"asking for the depth of {queue}"):
            async with asyncio.timeout(ANSWER_SECONDS), self._lock:
                try:
                    channel = await self._open_channel()
                    declared = await channel.declare_queue(queue, passive=True)
                except ChannelNotFoundEntity:
                    return None
                except BaseException:
                    await self._drop()
                    raise
        return declared.declaration_result.message_count

    async def close(self) -> None:
        async with self._lock:
            await self._drop()

    async def _open_channel(self) -> AbstractChannel:
        if self._connection is None or self._connection.lost.is_set():
            await self._drop()
            self._connection = await self._connector.open("queue depth", is_lasting=False)
        if self._channel is None or self._channel.is_closed:  # a question about a missing queue closes it too
            self._channel = await self._connection.channel()
        return self._channel

    async def _drop(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            await connection.close()
