"""A part of the topology that RabbitMQ refuses keeps nothing else from being declared."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from aiormq.exceptions import (
    AMQPConnectionError,
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from taskframework.brokers.rabbitmq import topology_keeper
from taskframework.brokers.rabbitmq.connection import BrokerConnection, Connector
from taskframework.brokers.rabbitmq.delay_plugin import DelayPlugin
from taskframework.brokers.rabbitmq.topology import Names, base_topology, delayed_exchange
from taskframework.brokers.rabbitmq.topology_keeper import TopologyKeeper, _declare_all
from taskframework.errors import BrokerUnavailableError

PART = base_topology(Names("tasks"))


class Refuses:
    """A connection whose first declarations fail, one for each error; what others declare is noted."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = [*errors]
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

    @contextlib.asynccontextmanager
    async def temporary_connection(self, _: str) -> AsyncIterator[Refuses]:
        yield self


async def test_a_refused_part_does_not_keep_the_others_from_being_declared() -> None:
    broker = Refuses(ChannelPreconditionFailed("PRECONDITION_FAILED - queue limit in vhost '/' (10) is reached"))
    problems = await _declare_all(cast(BrokerConnection, broker), [PART, PART])
    assert ["queue limit" in str(problem) for problem in problems] == [True, False]
    assert broker.declared


async def test_a_lost_connection_is_an_unavailable_broker_and_not_a_refusal() -> None:
    broker = Refuses(AMQPConnectionError("Server connection unexpectedly closed"))
    with pytest.raises(BrokerUnavailableError):
        await _declare_all(cast(BrokerConnection, broker), [PART])


async def test_a_refusal_that_lasts_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the right to declare, every publication and every consumer asks for a repair: one each second."""
    monkeypatch.setattr(topology_keeper, "_REPAIR_INTERVAL_SECONDS", 0)
    broker, names = Refuses(), Names("tasks")
    connector = cast(Connector, broker)
    keeper = TopologyKeeper(connector, names, 20, DelayPlugin("store", delayed_exchange(names), connector))

    async def lines_of_a_repair(*errors: Exception) -> list[str]:
        caplog.clear()
        broker.errors = [*reversed(errors)]
        await keeper.repair([])
        return [record.levelname for record in caplog.records]

    refused, missing = ChannelAccessRefused("access to exchange 'tasks.exchange' refused"), ChannelNotFoundEntity("no")
    assert await lines_of_a_repair(refused, missing) == ["ERROR"]
    assert await lines_of_a_repair(refused, missing) == []
    assert await lines_of_a_repair(ChannelAccessRefused("access to queue 'tasks.dlq' refused"), missing) == ["ERROR"]
    assert await lines_of_a_repair() == ["WARNING"], "declared again"
    assert await lines_of_a_repair(refused, missing) == ["ERROR"], "it had recovered meanwhile"
    assert await lines_of_a_repair(refused) == ["WARNING"], "another user has declared it"
    await keeper.close()
