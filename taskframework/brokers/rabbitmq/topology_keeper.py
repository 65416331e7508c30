"""Declares the topology, each time on a separate connection, so that a refusal disturbs no other work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from aio_pika.abc import AbstractChannel
from aiormq.exceptions import AMQPChannelError, ChannelAccessRefused

from taskframework.background import end
from taskframework.brokers.rabbitmq.connection import BrokerConnection, Connector
from taskframework.brokers.rabbitmq.delay_plugin import DelayPlugin
from taskframework.brokers.rabbitmq.faults import driver_errors
from taskframework.brokers.rabbitmq.topology import Names, Topology, base_topology, task_topology
from taskframework.errors import BrokerError, BrokerUnavailableError, TaskframeworkError

logger = logging.getLogger(__name__)

#: Seconds that one declaration may take: a quorum queue is made on several nodes.
_DECLARE_TIMEOUT_SECONDS = 10.0
#: How many task types are declared at once, each on its own channel.
_MAX_CONCURRENT_PARTS = 8
#: Seconds between two repairs at least.
_REPAIR_INTERVAL_SECONDS = 1.0


class TopologyKeeper:
    """Knows for which task types this process needs queues, and declares missing queues and exchanges again."""

    def __init__(self, connector: Connector, names: Names, delivery_limit: int, plugin: DelayPlugin) -> None:
        self._connector = connector
        self._names = names
        self._delivery_limit = delivery_limit
        self._plugin = plugin
        self._task_types: set[str] = set()
        self._types_to_repair: set[str] = set()
        self._repairing: asyncio.Task[None] | None = None
        self._next_repair = 0.0
        #: The problem of each part that the log has already. Without a permission, the same refusal comes every second.
        self._logged: dict[str, str] = {}

    @property
    def task_types(self) -> tuple[str, ...]:
        return tuple(sorted(self._task_types))

    def remember(self, task_types: Iterable[str]) -> None:
        """Note that this process needs the queues of these types."""
        self._task_types.update(task_types)

    async def declare(self, task_types: Iterable[str]) -> None:
        """Declare exchanges and the queues of these types. After an error the other types are still declared.

        Raises:
            TopologyMismatchError: for the first exchange or queue that exists with other arguments.
            ConfigurationError: if the settings demand the delayed-message plugin and it is missing.
            BrokerUnavailableError: if the broker is away. The types are declared when it is back.
        """
        types = sorted(set(task_types))
        self.remember(types)
        await self._plugin.probe()
        if problems := await self._declare(types):
            raise next(iter(problems.values()))

    async def restore(self) -> None:
        """Look for the plugin and declare everything that is remembered; called at first, and after a lost connection.

        Raises:
            BrokerUnavailableError: if the broker is away. Other errors are only logged, so that all else works.
        """
        await self._probe_plugin()
        if self._task_types:
            self._log_problems(await self._declare(self.task_types))

    async def repair(self, task_types: Iterable[str]) -> None:
        """Declare missing queues and exchanges again. Requests at the same time share the work. Never fails."""
        self._types_to_repair.update(task_types)
        if self._repairing is None or self._repairing.done():
            self._repairing = asyncio.create_task(self._repair())
        await asyncio.shield(self._repairing)

    async def close(self) -> None:
        if self._repairing is not None:
            await end(self._repairing)

    async def _repair(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Pause, because every publication reports a queue as missing that cannot be declared.
            await asyncio.sleep(max(0.0, self._next_repair - loop.time()))
            self._next_repair = loop.time() + _REPAIR_INTERVAL_SECONDS
            types, self._types_to_repair = sorted(self._types_to_repair), set()
            try:
                await self._probe_plugin()
                problems = await self._declare(types)
            except BrokerUnavailableError as error:
                logger.debug("repair postponed: %s", error)
            else:
                if not problems:
                    what = ", ".join(types) or self._names.prefix
                    logger.warning("queues or exchanges were missing; declared again: %s", what)
                self._log_problems(problems)
            if not self._types_to_repair:
                return

    async def _probe_plugin(self) -> None:
        try:
            await self._plugin.probe()
        except BrokerUnavailableError:
            raise
        except TaskframeworkError as error:
            self._log_problems({"plugin": error})
        else:
            self._logged.pop("plugin", None)

    async def _declare(self, task_types: Iterable[str]) -> dict[str, BrokerError]:
        """Declare exchanges and the queues of these types; return the problem of each part that was refused."""
        task_types = list(task_types)
        with_plugin = self._plugin.is_used
        parts = [
            task_topology(self._names, name, delivery_limit=self._delivery_limit, with_plugin=with_plugin)
            for name in task_types
        ]
        async with self._connector.temporary_connection("topology") as connection:
            first = await _try_to_declare(connection, base_topology(self._names))  # first: the others are bound to it
            errors = [first, *await _declare_all(connection, parts)]
        names = ["exchanges", *(f"queues of {name}" for name in task_types)]
        problems = {name: error for name, error in zip(names, errors, strict=True) if error is not None}
        for name in set(names) - set(problems):
            self._logged.pop(name, None)
        return problems

    def _log_problems(self, problems: Mapping[str, TaskframeworkError]) -> None:
        """Log the problem of each part once, and again if it is another one, or has come back after a success."""
        for part, problem in problems.items():
            if self._logged.get(part) != (text := str(problem)):
                self._logged[part] = text
                logger.error("%s", text)


async def _declare_all(connection: BrokerConnection, parts: Iterable[Topology]) -> list[BrokerError | None]:
    """Declare parts, several at once, because the broker waits for its disk for each queue.

    Raises:
        BrokerUnavailableError: if the broker is away.
    """
    semaphore = asyncio.Semaphore(_MAX_CONCURRENT_PARTS)

    async def declare_one(part: Topology) -> BrokerError | None:
        async with semaphore:
            return await _try_to_declare(connection, part)

    return await asyncio.gather(*map(declare_one, parts))


async def _try_to_declare(connection: BrokerConnection, part: Topology) -> BrokerError | None:
    refused = await _declare_or_find(connection, part)
    if refused is None or not isinstance(refused.__cause__, ChannelAccessRefused):
        return refused
    # The user may not declare: `taskframework topology apply` of another user has, if all is there.
    return None if await _declare_or_find(connection, part, is_passive=True) is None else refused


async def _declare_or_find(
    connection: BrokerConnection, part: Topology, *, is_passive: bool = False
) -> BrokerError | None:
    # A refusal closes the channel, so each part has its own channel.
    channel = await connection.channel()
    try:
        with driver_errors("declaring the topology"):
            await declare_part(channel, part, is_passive=is_passive)
            await channel.close()
    except BrokerError as error:
        # A refusal of this part alone must not keep this process from its connection, and from all other parts.
        if isinstance(error, BrokerUnavailableError) and not isinstance(error.__cause__, AMQPChannelError):
            raise
        return error
    return None


async def declare_part(channel: AbstractChannel, part: Topology, *, is_passive: bool = False) -> None:
    """Declare a part of the topology on one channel.

    Args:
        channel: the channel, which an error closes.
        part: the part.
        is_passive: whether its queues and exchanges must exist already, with any arguments. This needs no right to
            configure, and the bindings do not either.

    Raises:
        The driver's errors.
    """
    for exchange in part.exchanges:
        async with asyncio.timeout(_DECLARE_TIMEOUT_SECONDS):
            await channel.declare_exchange(
                exchange.name, exchange.type, durable=True, passive=is_passive, arguments={**exchange.arguments}
            )
    for queue in part.queues:
        async with asyncio.timeout(_DECLARE_TIMEOUT_SECONDS):
            await channel.declare_queue(queue.name, durable=True, passive=is_passive, arguments={**queue.arguments})
    for binding in part.bindings:
        async with asyncio.timeout(_DECLARE_TIMEOUT_SECONDS):
            target = await (channel.get_exchange if binding.to_exchange else channel.get_queue)(
                binding.target, ensure=False
            )
            await target.bind(binding.source, binding.key)
