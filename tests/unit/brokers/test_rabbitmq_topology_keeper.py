"""A part of the topology that RabbitMQ refuses keeps nothing else from being declared."""

from __future__ import annotations

from typing import Any, cast

import pytest
from aiormq.exceptions import AMQPConnectionError, ChannelPreconditionFailed

from taskframework.brokers.rabbitmq.connection import BrokerConnection
from taskframework.brokers.rabbitmq.topology import Names, base_topology
from taskframework.brokers.rabbitmq.topology_keeper import _declare_all
from taskframework.errors import BrokerUnavailableError

PART = base_topology(Names("tasks"))


class Refuses:
    """A connection whose first channel fails; what others declare is noted."""

    def __init__(self, error: Exception) -> None:
        self.errors = [error]
        self.declared: list[str] = []

    async def channel(self) -> Refuses:
        return self

    async def declare_exchange(self, name: str, *_: Any, **__: Any) -> Refuses:
        if self.errors:
            raise self.errors.pop()
        self.declared.append(name)
        return self

    declare_queue = get_queue = get_exchange = declare_exchange

    async def bind(self, *_: Any, **__: Any) -> None: ...

    async def close(self) -> None: ...


async def test_a_refused_part_does_not_keep_the_others_from_being_declared() -> None:
    broker = Refuses(ChannelPreconditionFailed("PRECONDITION_FAILED - queue limit in vhost '/' (10) is reached"))
    problems = await _declare_all(cast(BrokerConnection, broker), [PART, PART])
    assert ["queue limit" in str(problem) for problem in problems] == [True, False]
    assert broker.declared


async def test_a_lost_connection_is_told_as_such() -> None:
    broker = Refuses(AMQPConnectionError("Server connection unexpectedly closed"))
    with pytest.raises(BrokerUnavailableError):
        await _declare_all(cast(BrokerConnection, broker), [PART])
