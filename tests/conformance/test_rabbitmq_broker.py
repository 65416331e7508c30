"""The broker suite on RabbitMQ."""

from __future__ import annotations

from typing import Literal

import aio_pika
import pytest

from taskframework.brokers.base import Broker
from taskframework.brokers.rabbitmq import RabbitBroker
from taskframework.settings.servers import BrokerSettings
from taskframework.testing.conformance.broker import BrokerConformance


class TestRabbitBroker(BrokerConformance):
    """Each test has a virtual host; all brokers it makes meet there."""

    _url: str
    _fast_path: Literal["auto", "off"] = "auto"

    @pytest.fixture(autouse=True)
    def _virtual_host(self, amqp_url: str) -> None:
        self._url = amqp_url

    async def make_broker(self) -> Broker:
        return RabbitBroker(BrokerSettings(url=self._url, fast_path=self._fast_path))

    async def publish_raw(self, broker: Broker, routing_key: str, body: bytes) -> None:
        connection = await aio_pika.connect(self._url)
        channel = await connection.channel(on_return_raises=True)
        exchange = await channel.get_exchange("tasks.exchange", ensure=False)
        await exchange.publish(aio_pika.Message(body), routing_key)
        await connection.close()


class TestRabbitBrokerThePlainWay(TestRabbitBroker):
    """The same with nothing but the driver's public calls."""

    _fast_path = "off"
