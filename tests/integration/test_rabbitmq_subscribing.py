"""Subscribers of the events exchange on a real RabbitMQ: in order, at least once, without a hot loop."""

from __future__ import annotations

import asyncio

import aio_pika
import aio_pika.exceptions

from taskframework.brokers.base import ExternalMessage
from taskframework.brokers.rabbitmq.broker import RabbitBroker
from taskframework.errors import BrokerUnavailableError
from taskframework.testing.eventually import eventually
from tests.integration.rabbitmq_helpers import MakeBroker, opened, plain_channel
from tests.support.servers import RabbitServer


def event(number: int) -> ExternalMessage:
    return ExternalMessage(str(number).encode(), "application/cloudevents+json", {"h": str(number)})


class Ear:
    """Remembers what it heard; fails as often as asked."""

    def __init__(self, *, failures: int = 0) -> None:
        self.heard: list[int] = []
        self.calls = 0
        self._failures = failures

    async def __call__(self, message: ExternalMessage) -> None:
        self.calls += 1
        if self.calls <= self._failures:
            raise RuntimeError("not now")
        assert message.content_type == "application/cloudevents+json"
        assert message.headers["h"].encode() == message.body
        self.heard.append(int(message.body))


async def test_every_subscriber_hears_every_event_in_order(make_broker: MakeBroker) -> None:
    async with opened(make_broker(), "reports") as broker:
        ears = [Ear(), Ear()]
        subscriptions = [broker.subscribe(ears[0]), broker.subscribe(ears[1], durable_name="audit")]
        await eventually(lambda: all(subscription.is_live for subscription in subscriptions))
        for number in range(50):
            await broker.publish_event(event(number))
        await eventually(lambda: [ear.heard for ear in ears] == [list(range(50))] * 2)


async def test_an_event_that_could_not_be_handled_is_handed_over_again_before_the_next(make_broker: MakeBroker) -> None:
    async with opened(make_broker(), "reports") as broker:
        ear = Ear(failures=3)
        subscription = broker.subscribe(ear)
        await eventually(lambda: subscription.is_live)
        for number in range(3):
            await broker.publish_event(event(number))
        await eventually(lambda: ear.heard == [0, 1, 2])
        assert ear.calls == 6


async def test_a_durable_name_collects_while_nobody_listens(make_broker: MakeBroker) -> None:
    async with opened(make_broker(), "reports") as broker:
        first = Ear()
        subscription = broker.subscribe(first, durable_name="audit")
        await eventually(lambda: subscription.is_live)
        await subscription.stop()
        for number in range(5):
            await broker.publish_event(event(number))
        assert first.heard == []
        second = Ear()
        broker.subscribe(second, durable_name="audit")
        await eventually(lambda: second.heard == list(range(5)))


async def test_a_stop_gives_all_events_back_in_order_and_lets_a_long_handler_end(make_broker: MakeBroker) -> None:
    async with opened(make_broker(), "reports") as broker:
        begun: asyncio.Queue[bytes] = asyncio.Queue()
        finish = asyncio.Event()

        async def slow(message: ExternalMessage) -> None:
            await begun.put(message.body)
            await finish.wait()

        subscription = broker.subscribe(slow, durable_name="audit")
        await eventually(lambda: subscription.is_live)
        for number in range(5):
            await broker.publish_event(event(number))
        assert await begun.get() == b"0"
        await subscription.stop()
        ear = Ear()
        broker.subscribe(ear, durable_name="audit")
        await eventually(lambda: ear.heard == [0, 1, 2, 3, 4])
        finish.set()
        await broker.publish_event(event(5))
        await eventually(lambda: ear.heard == [0, 1, 2, 3, 4, 5])
        assert begun.empty()


async def test_a_handler_may_stop_its_subscription_and_close_the_broker(make_broker: MakeBroker) -> None:
    closed = asyncio.Event()
    async with opened(make_broker(), "reports") as broker:

        async def handle(_: ExternalMessage) -> None:
            await subscription.stop()
            await broker.close()
            closed.set()

        subscription = broker.subscribe(handle)
        await eventually(lambda: subscription.is_live)
        await broker.publish_event(event(1))
        await closed.wait()


async def test_a_cancellation_inside_a_handler_does_not_end_the_subscription(make_broker: MakeBroker) -> None:
    async with opened(make_broker(), "reports") as broker:
        heard: list[bytes] = []

        async def handle(message: ExternalMessage) -> None:
            heard.append(message.body)
            if len(heard) == 1:
                raise asyncio.CancelledError

        subscription = broker.subscribe(handle)
        await eventually(lambda: subscription.is_live)
        await broker.publish_event(event(1))
        await eventually(lambda: heard == [b"1", b"1"])


async def test_an_exclusive_queue_goes_with_its_subscriber(make_broker: MakeBroker, amqp_url: str) -> None:
    async with opened(make_broker(), "reports") as broker:
        subscription = broker.subscribe(Ear())
        await eventually(lambda: subscription.is_live)
        await subscription.stop()
        # Unroutable now: nothing is bound to the exchange any more.
        async with plain_channel(amqp_url) as channel:
            exchange = await channel.get_exchange("tasks.events", ensure=False)

            async def nobody_listens() -> bool:
                try:
                    await exchange.publish(aio_pika.Message(b""), "")
                except aio_pika.exceptions.PublishError:
                    return True
                return False

            await eventually(nobody_listens)


async def test_a_subscriber_survives_a_lost_connection(rabbit_server: RabbitServer, make_broker: MakeBroker) -> None:
    async with opened(make_broker(), "reports") as broker:
        ear = Ear()
        subscription = broker.subscribe(ear, durable_name="audit")
        await eventually(lambda: subscription.is_live)
        await broker.publish_event(event(0))
        await eventually(lambda: ear.heard == [0])
        await asyncio.to_thread(rabbit_server.ctl, "close_all_connections", "--global", "test")
        await eventually(lambda: _published(broker, event(1)), what="the connection is back")
        await eventually(lambda: ear.heard[-1] == 1)


async def _published(broker: RabbitBroker, message: ExternalMessage) -> bool:
    """Publish, unless the connection is lost and that is not noticed yet, or not mended."""
    try:
        await broker.publish_event(message)
    except BrokerUnavailableError:
        return False
    return True
