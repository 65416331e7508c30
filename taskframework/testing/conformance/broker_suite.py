"""Broker suite: the methods that an adapter provides, and the helpers of all cases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta

import pytest

from taskframework.brokers.base import Broker, ConsumeRequest, Consumption, Delivery, ExternalMessage
from taskframework.model.message import TaskMessage
from taskframework.model.status import Priority
from taskframework.testing.eventually import eventually

TYPE = "count-words"
GARBAGE = b"\x00\xff{not a message"
DELAY = timedelta(seconds=0.5)


class Inbox:
    """Keeps deliveries in the order of arrival."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []

    def __call__(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)

    async def first(self, count: int) -> list[Delivery]:
        """Wait for so many deliveries."""
        await eventually(lambda: len(self.deliveries) >= count, what=f"{count} deliveries arrive")
        return self.deliveries[:count]

    async def only(self, count: int) -> list[Delivery]:
        """Wait for so many deliveries; there must be no more."""
        found = await self.first(count)
        assert len(self.deliveries) == count
        return found

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries]


class Listener:
    """Hears the events exchange; fails on the texts in `fail_once_on`, once each."""

    def __init__(self, *fail_once_on: str) -> None:
        self.received: list[str] = []
        self.messages: list[ExternalMessage] = []
        self._fail_once_on = set(fail_once_on)

    async def __call__(self, message: ExternalMessage) -> None:
        text = message.body.decode()
        self.received.append(text)
        self.messages.append(message)
        if text in self._fail_once_on:
            self._fail_once_on.remove(text)
            raise RuntimeError(f"the listener fails once on {text}")

    async def expect(self, *texts: str) -> None:
        """Wait until exactly these were heard, in this order."""
        await eventually(lambda: len(self.received) >= len(texts), what=f"{len(texts)} events are heard")
        assert self.received == list(texts)


def task_message(
    number: int = 1,
    task_type: str = TYPE,
    lane: Priority = Priority.NORMAL,
    headers: Mapping[str, str | int] | None = None,
) -> TaskMessage:
    return TaskMessage(f"task-{number}", task_type, 1, lane, headers)


def event(text: str) -> ExternalMessage:
    return ExternalMessage(text.encode(), "application/cloudevents+json", {"for": "tests"})


async def wait_until_live(*consumptions: Consumption) -> None:
    await eventually(lambda: all(consumption.is_live for consumption in consumptions), what="consumers are registered")


class BrokerSuite:
    """A subclass provides `make_broker` and `publish_raw`; everything else is the suite."""

    async def make_broker(self) -> Broker:
        """Make a broker that is not open yet. The brokers of one test share their queues; no other test knows these."""
        raise NotImplementedError

    async def publish_raw(self, broker: Broker, routing_key: str, body: bytes) -> None:
        """Publish to the exchange of the tasks as a foreign client does, with this key, and wait for the confirm."""
        raise NotImplementedError

    @pytest.fixture
    async def broker(self) -> AsyncIterator[Broker]:
        """An open, connected broker with the queues of `TYPE`."""
        broker = await self.open_broker()
        await broker.declare([TYPE])
        yield broker
        await broker.close()

    async def open_broker(self) -> Broker:
        broker = await self.make_broker()
        await broker.open()
        await eventually(lambda: broker.is_connected, what="the broker is connected")
        return broker

    @staticmethod
    async def expect_depth(broker: Broker, expected: int, lane: Priority = Priority.NORMAL) -> None:
        async def depth() -> bool:
            found = await broker.queue_depth(TYPE, lane)
            assert found == expected, f"{found} messages are ready"
            return True

        await eventually(depth, what=f"{expected} messages are ready in lane {lane}")

    @staticmethod
    def consume(broker: Broker, inbox: Inbox, prefetch: int = 10, types: Sequence[str] = (TYPE,)) -> Consumption:
        return broker.consume(ConsumeRequest(types, prefetch), inbox)
