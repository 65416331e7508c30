"""A consumer that the broker forgot without a word: how it finds out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from taskframework.brokers.rabbitmq.connection import BrokerConnection
from taskframework.brokers.rabbitmq.consumer import Troubles
from taskframework.brokers.rabbitmq.delivery import ConsumerChannel
from taskframework.brokers.rabbitmq.plain import PlainWire
from taskframework.errors import BrokerUnavailableError
from taskframework.model.status import Priority


class FakeInner:
    """Answers what the queue has."""

    is_closed = False

    def __init__(self, consumers: int, messages: int) -> None:
        self._found = SimpleNamespace(consumer_count=consumers, message_count=messages)
        self.asked = 0

    async def queue_declare(self, *_: object, **__: object) -> SimpleNamespace:
        self.asked += 1
        return self._found


@pytest.mark.parametrize(
    ("consumers", "messages", "answers"),
    [
        (1, 0, [True, True, True]),
        (0, 0, [True, False, False]),
        (1, 7, [True, True, False]),  # the first time the messages may be on their way
    ],
)
async def test_a_silent_consumer_asks_whether_it_is_still_one(
    consumers: int, messages: int, answers: list[bool]
) -> None:
    inner = FakeInner(consumers, messages)
    channel = SimpleNamespace(close_callbacks=set())
    consumer = ConsumerChannel(cast(Any, channel), cast(Any, inner), PlainWire(), Priority.NORMAL)
    assert [await consumer.is_served() for _ in answers] == answers
    assert inner.asked == len(answers) - 1, "what has just begun is not asked for"


def test_consumers_that_are_lost_together_are_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("taskframework.brokers.rabbitmq.consumer.time.monotonic", lambda: now)
    troubles = Troubles()
    assert [troubles.begin(name) for name in ("a", "b", "c")] == [True, False, False]
    now += 5
    assert troubles.end("a") == 5
    assert not troubles.begin("d"), "the others are still in trouble"
    now += 30
    assert troubles.begin("e"), "this is another problem, however long that of the others lasts"


class SilentConnection:
    """A connection of the driver on which no channel opens."""

    transport = None

    def __init__(self) -> None:
        self.close_callbacks = set[object]()

    def channel(self, **_: object) -> SimpleNamespace:
        async def initialize() -> None:
            raise ConnectionError("no answer")

        return SimpleNamespace(initialize=initialize)


async def test_a_connection_that_is_given_up_is_reported_as_lost_once() -> None:
    losses: list[object] = []
    connection = BrokerConnection(cast(Any, SilentConnection()), PlainWire(), losses.append)
    for _ in range(2):
        with pytest.raises(BrokerUnavailableError, match="no answer"):
            await connection.channel()
    assert connection.lost.is_set()
    assert len(losses) == 1
