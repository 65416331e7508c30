"""Broker suite: the events exchange."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from taskframework.brokers.base import Broker, Consumption, ExternalMessage
from taskframework.errors import PublishRefusedError
from taskframework.testing.conformance.broker_suite import BrokerSuite, Listener, event, wait_until_live
from taskframework.testing.eventually import eventually


class EventCases(BrokerSuite):
    """Every subscriber hears every event, in order, until it has handled the event."""

    async def test_every_subscriber_hears_every_event_in_order(self, broker: Broker) -> None:
        first, second = Listener(), Listener()
        await wait_until_live(broker.subscribe(first), broker.subscribe(second, durable_name="other"))
        texts = [str(number) for number in range(50)]
        for text in texts:
            await broker.publish_event(event(text))
        await first.expect(*texts)
        await second.expect(*texts)
        message = first.messages[0]
        assert message.content_type == "application/cloudevents+json"
        assert message.headers["for"] == "tests"

    async def test_an_event_can_be_published_without_a_subscriber(self, broker: Broker) -> None:
        await broker.publish_event(event("unheard"))
        listener = Listener()
        await wait_until_live(broker.subscribe(listener))
        await broker.publish_event(event("heard"))
        await listener.expect("heard")

    async def test_a_durable_queue_collects_while_nobody_listens(self, broker: Broker) -> None:
        before, after = Listener(), Listener()
        subscription = broker.subscribe(before, durable_name="billing")
        await wait_until_live(subscription)
        await subscription.stop()
        assert not subscription.is_live
        await broker.publish_event(event("1"))
        await broker.publish_event(event("2"))
        broker.subscribe(after, durable_name="billing")
        await after.expect("1", "2")
        assert before.received == []

    async def test_events_in_hand_at_the_stop_come_again_in_order(self, broker: Broker) -> None:
        """A subscriber drops an event that comes after a later one of its task, so it would never hear of it."""
        finish = asyncio.Event()
        texts = [str(number) for number in range(200)]
        subscription = await self._hold_first(broker, texts, until=finish)
        stopping = asyncio.create_task(subscription.stop())
        finish.set()
        await stopping
        after = Listener()
        broker.subscribe(after, durable_name="billing")
        await after.expect(*texts[1:])

    async def test_an_exclusive_queue_goes_with_its_subscription(self, broker: Broker) -> None:
        before, after = Listener(), Listener()
        subscription = broker.subscribe(before)
        await wait_until_live(subscription)
        await subscription.stop()
        with contextlib.suppress(PublishRefusedError):  # RabbitMQ 4.3 refuses while it deletes the queue
            await broker.publish_event(event("missed"))
        await wait_until_live(broker.subscribe(after))
        await broker.publish_event(event("heard"))
        await after.expect("heard")
        assert before.received == []

    async def test_subscribers_of_one_durable_queue_share_its_events(self, broker: Broker) -> None:
        first, second = Listener(), Listener()
        await wait_until_live(
            broker.subscribe(first, durable_name="both"), broker.subscribe(second, durable_name="both")
        )
        texts = [str(number) for number in range(20)]
        for text in texts:
            await broker.publish_event(event(text))
        await eventually(lambda: len(first.received) + len(second.received) >= 20, what="all events are heard")
        assert sorted(first.received + second.received) == sorted(texts)

    @pytest.mark.parametrize("durable_name", [None, "careful"])
    async def test_an_event_that_failed_comes_again_before_the_next(
        self, broker: Broker, durable_name: str | None
    ) -> None:
        listener = Listener("1", "3")
        await wait_until_live(broker.subscribe(listener, durable_name=durable_name))
        for text in ("0", "1", "2", "3", "4"):
            await broker.publish_event(event(text))
        await listener.expect("0", "1", "1", "2", "3", "3", "4")

    async def test_the_next_event_waits_until_the_last_is_handled(self, broker: Broker) -> None:
        started, finish = asyncio.Event(), asyncio.Event()
        heard: list[bytes] = []

        async def listen(message: ExternalMessage) -> None:
            heard.append(message.body)
            started.set()
            await finish.wait()

        watching = Listener()
        await wait_until_live(broker.subscribe(listen), broker.subscribe(watching))
        await broker.publish_event(event("1"))
        await broker.publish_event(event("2"))
        await started.wait()
        await watching.expect("1", "2")
        assert heard == [b"1"]
        finish.set()
        await eventually(lambda: heard == [b"1", b"2"], what="the second event is handled")

    async def test_events_in_hand_at_the_close_come_again_in_order_to_a_durable_queue(self, broker: Broker) -> None:
        texts = [str(number) for number in range(10)]
        subscription = await self._hold_first(broker, texts, until=asyncio.Event())
        await subscription.stop()
        await broker.close()
        reopened, listener = await self.open_broker(), Listener()
        reopened.subscribe(listener, durable_name="billing")
        await listener.expect(*texts)
        await reopened.close()

    async def _hold_first(self, broker: Broker, texts: Sequence[str], until: asyncio.Event) -> Consumption:
        """Publish events to a durable queue whose listener stays with the first one."""
        started = asyncio.Event()

        async def hold(_: ExternalMessage) -> None:
            started.set()
            await until.wait()

        subscription = broker.subscribe(hold, durable_name="billing")
        await wait_until_live(subscription)
        for text in texts:
            await broker.publish_event(event(text))
        await started.wait()
        return subscription
