"""Finds where the broker differs from the wanted topology, and moves queues while messages come and go.

A queue cannot change its type and arguments. So a queue with a wrong type or arguments is moved. A second queue beside
it takes new messages, and the waiting messages are carried to it. Then the old queue is deleted and declared again, and
all messages are carried back. At each moment every message has a queue. A message is acknowledged only when the other
queue has confirmed it, so a crash leaves some messages twice. This is harmless: the claim uses one message of a task.

AMQP says of a queue only whether a declaration fits it. Bindings cannot be read, so they are made again each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aiormq.exceptions import ChannelAccessRefused, ChannelNotFoundEntity, ChannelPreconditionFailed

from taskframework.brokers.rabbitmq.connection import BrokerConnection, Connector
from taskframework.brokers.rabbitmq.delay_plugin import DelayPlugin
from taskframework.brokers.rabbitmq.faults import driver_errors, translate_error
from taskframework.brokers.rabbitmq.topology import (
    Binding,
    Exchange,
    Names,
    Queue,
    Topology,
    delayed_exchange,
    whole_topology,
)
from taskframework.brokers.rabbitmq.topology_keeper import declare_part
from taskframework.errors import BrokerError, TopologyMismatchError
from taskframework.settings.servers import BrokerSettings

logger = logging.getLogger(__name__)

#: How many messages are carried together.
_CARRY_BATCH_SIZE = 200
#: How often a move is tried. A process with other settings may declare the queue as it was, at most once a second.
_MAX_MOVE_TRIES = 5
#: Seconds that one publication or declaration may take.
_TIMEOUT_SECONDS = 30.0
#: Seconds in which a message arrives that was on its way to a queue when the bindings of the queue were removed.
_ARRIVAL_SECONDS = 0.5
#: Seconds in which the broker tells consumers that their queue is gone. If a quorum queue comes back before that,
#: RabbitMQ 3.10 seems to keep its consumers, and hands them messages that never reach their programs.
_CONSUMERS_TOLD_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Difference:
    """A queue or an exchange on the broker that is not as it should be."""

    kind: Literal["exchange", "queue"]
    name: str
    #: `missing`, or the difference, in the broker's words.
    what: str

    @property
    def is_missing(self) -> bool:
        return self.what == "missing"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.what}"


class TopologyMover:
    """Compares the broker with the topology of some task types in the settings, and moves queues that differ."""

    def __init__(self, settings: BrokerSettings, task_types: Sequence[str]) -> None:
        """Prepare without connecting.

        Raises:
            ConfigurationError: if the address cannot be read.
        """
        self._settings = settings
        self._task_types = tuple(task_types)
        self._connector = Connector(settings)

    async def plan(self) -> list[Difference]:
        """Return what is missing or differs; nothing is changed.

        Raises:
            BrokerUnavailableError: if the broker is away.
        """
        async with self._connector.temporary_connection("topology plan") as connection:
            return await self._differences(connection, await self._wanted_topology(should_probe=False))

    async def migrate(self) -> list[str]:
        """Make the broker as it is wanted: declare what is missing, move the queues that differ.

        Returns:
            The queues that were moved.

        Raises:
            BrokerError: if an exchange differs, or a queue could not be moved. Its messages then stay in
                `<queue>.moving`; call this again to continue.
            BrokerUnavailableError: if the broker is away.
        """
        wanted = await self._wanted_topology(should_probe=True)
        moved = []
        async with self._connector.temporary_connection("topology migrate") as connection:
            for difference in await self._differences(connection, wanted):
                if difference.kind == "exchange" and not difference.is_missing:
                    raise BrokerError(
                        f"RabbitMQ: exchange {difference.name} differs: {difference.what}.",
                        hint="An exchange cannot be moved. Delete it, and run `taskframework topology apply`.",
                    )
            await _declare(connection, replace(wanted, queues=(), bindings=()))
            for queue in wanted.queues:
                bindings = [binding for binding in wanted.bindings if binding.target == queue.name]
                if await _QueueMove(connection, queue, bindings).move():
                    moved.append(queue.name)
            await _declare(connection, wanted)
        return moved

    async def _wanted_topology(self, *, should_probe: bool) -> Topology:
        names = Names(self._settings.prefix)
        plugin = DelayPlugin(self._settings.delay, delayed_exchange(names), self._connector)
        has_plugin = await plugin.probe() if should_probe else self._settings.delay == "plugin"
        limit = self._settings.delivery_limit
        return whole_topology(names.prefix, self._task_types, delivery_limit=limit, with_plugin=has_plugin)

    async def _differences(self, connection: BrokerConnection, wanted: Topology) -> list[Difference]:
        items: list[Exchange | Queue] = [*wanted.exchanges, *wanted.queues]
        found = [(item, await _difference(connection, item)) for item in items]
        return [Difference(_kind_of(item), item.name, what) for item, what in found if what is not None]


class _QueueMove:
    """Moves one queue if it differs, or continues a move that was interrupted."""

    def __init__(self, connection: BrokerConnection, queue: Queue, bindings: Sequence[Binding]) -> None:
        self._connection = connection
        self._queue = queue
        self._bindings = bindings
        self._temporary = replace(queue, name=f"{queue.name}.moving")

    async def move(self) -> bool:
        """Move the queue; return False if there was nothing to move."""
        difference = await _difference(self._connection, self._queue)
        was_begun = await _difference(self._connection, self._temporary) != "missing"
        if difference in (None, "missing") and not was_begun:
            return False
        await self._bind(self._temporary)
        for _ in range(_MAX_MOVE_TRIES):
            if difference not in (None, "missing"):
                logger.info("moving %s: %s", self._queue.name, difference)
                await self._move_messages(self._queue, self._temporary)
            if await self._try_to_bind():
                await self._move_messages(self._temporary, self._queue)
                return True
            difference = await _difference(self._connection, self._queue)
        raise BrokerError(
            f"RabbitMQ: {self._queue.name} is declared again as before: {difference}.",
            hint="A process with other settings declares it. Give all processes the new settings, then run this again. "
            f"Until then, messages wait in {self._temporary.name}.",
        )

    async def _bind(self, queue: Queue) -> None:
        bindings = tuple(replace(binding, target=queue.name) for binding in self._bindings)
        await _declare(self._connection, Topology(queues=(queue,), bindings=bindings))

    async def _try_to_bind(self) -> bool:
        try:
            await self._bind(self._queue)
        except BrokerError:
            return False
        return True

    async def _move_messages(self, old: Queue, new: Queue) -> None:
        """Remove the bindings of a queue, carry its waiting messages to another queue, and delete it.

        Deliveries of it that workers hold are lost with the queue; the drivers of their tasks continue these tasks.
        """
        channel = await self._connection.channel(confirms=True)
        with driver_errors(f"moving {old.name}"):
            source = await channel.get_queue(old.name, ensure=False)
            for binding in self._bindings:
                await source.unbind(binding.source, binding.key)
            while await _move_some_messages(channel, source, new.name):
                pass
            # Wait and carry again, because RabbitMQ cannot delete a quorum queue on the condition that it is empty.
            await asyncio.sleep(_ARRIVAL_SECONDS)
            while await _move_some_messages(channel, source, new.name):
                pass
            await channel.queue_delete(old.name)
            await asyncio.sleep(_CONSUMERS_TOLD_SECONDS)
            await channel.close()


def _kind_of(item: Exchange | Queue) -> Literal["exchange", "queue"]:
    return "queue" if isinstance(item, Queue) else "exchange"


async def _move_some_messages(channel: AbstractChannel, source: AbstractQueue, target: str) -> bool:
    taken: list[AbstractIncomingMessage] = []
    while len(taken) < _CARRY_BATCH_SIZE and (message := await source.get(fail=False)) is not None:
        taken.append(message)
    await asyncio.gather(
        *(channel.default_exchange.publish(message, target, timeout=_TIMEOUT_SECONDS) for message in taken)
    )
    if taken:
        await taken[-1].ack(multiple=True)
    return bool(taken)


async def _declare(connection: BrokerConnection, part: Topology) -> None:
    channel = await connection.channel()
    with driver_errors("declaring the topology"):
        await declare_part(channel, part)
        await channel.close()


async def _difference(connection: BrokerConnection, item: Exchange | Queue) -> str | None:
    """Return `missing`, the difference, or None. Declares the item only if it exists, so that this does not make it.

    Without the right to configure, only a missing item is noticed.
    """
    for is_passive in (True, False):
        channel = await connection.channel()
        with driver_errors(f"comparing {item.name}"):
            try:
                async with asyncio.timeout(_TIMEOUT_SECONDS):
                    declared: Any = {"durable": True, "passive": is_passive, "arguments": {**item.arguments}}
                    if isinstance(item, Queue):
                        await channel.declare_queue(item.name, **declared)
                    else:
                        await channel.declare_exchange(item.name, item.type, **declared)
            except ChannelNotFoundEntity:
                return "missing"
            except ChannelAccessRefused:
                if is_passive:
                    raise
                return None
            except ChannelPreconditionFailed as error:
                told = translate_error(error, f"comparing {item.name}")
                return told.detail if isinstance(told, TopologyMismatchError) else told.message.rstrip(".")
            await channel.close()
    return None
