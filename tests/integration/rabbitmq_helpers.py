"""What the RabbitMQ tests share: an open broker, a recording consumer, and a plain connection to look from outside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel

from taskframework.brokers.base import Delivery
from taskframework.brokers.rabbitmq import RabbitBroker
from taskframework.model.message import TaskMessage
from taskframework.model.status import Priority
from taskframework.settings.servers import BrokerSettings
from taskframework.testing.eventually import eventually

MakeBroker = Callable[..., RabbitBroker]
#: Short time limits, for tests that wait for them.
QUICK = {"connect_timeout": "5s", "publish_timeout": "4s"}


@contextlib.asynccontextmanager
async def opened(broker: RabbitBroker, *task_types: str) -> AsyncIterator[RabbitBroker]:
    """The broker, connected and with the queues of these types."""
    await broker.open()
    try:
        if task_types:
            await broker.declare(task_types)
            await connected(broker)
        yield broker
    finally:
        await broker.close()


async def connected(broker: RabbitBroker) -> None:
    await eventually(lambda: broker.is_connected, timeout=30, what="the publisher is connected")


def rabbit_broker(url: str, **settings: Any) -> RabbitBroker:
    """A broker with these settings, by their names in the section `broker`."""
    return RabbitBroker(BrokerSettings(url=url, **settings))


def message(task_id: str, task_type: str = "reports", lane: Priority = Priority.NORMAL) -> TaskMessage:
    return TaskMessage(task_id, task_type, 1, lane, {"task_id": task_id, "user_id": "u1", "x-retry-count": 0})


class Recorder:
    """Takes deliveries; answers each at once unless told to hold them."""

    def __init__(self, *, holds: bool = False) -> None:
        self.deliveries: list[Delivery] = []
        self.arrived = asyncio.Event()
        self._holds = holds
        self._answers: set[asyncio.Task[None]] = set()

    def __call__(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self.arrived.set()
        if not self._holds:
            answer = asyncio.create_task(delivery.ack())
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)

    @property
    def task_ids(self) -> list[str]:
        return [delivery.headers["task_id"] for delivery in self.deliveries]

    async def has(self, *task_ids: str, timeout: float = 20) -> None:
        await eventually(
            lambda: set(task_ids) <= set(self.task_ids),
            timeout=timeout,
            what=f"{len(task_ids)} deliveries, has {len(self.deliveries)}",
        )


@contextlib.asynccontextmanager
async def plain_channel(url: str) -> AsyncIterator[AbstractChannel]:
    """A channel that is not the broker's, to look at things and to break them."""
    connection = await aio_pika.connect(url)
    try:
        yield await connection.channel(on_return_raises=True)
    finally:
        await connection.close()
