"""Broker suite: publications, delays, and the depth of queues."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from taskframework.brokers.base import Broker, ConsumeRequest, Delivery
from taskframework.errors import BrokerUnavailableError, PublishRefusedError
from taskframework.model.message import read_message
from taskframework.model.status import LANES, Priority
from taskframework.testing.conformance.broker_suite import DELAY, TYPE, BrokerSuite, Inbox, event, task_message
from taskframework.testing.eventually import eventually


class PublishingCases(BrokerSuite):
    """A publication arrives or is refused, or the broker is unavailable."""

    async def test_a_published_message_arrives_whole(self, broker: Broker) -> None:
        inbox = Inbox()
        self.consume(broker, inbox)
        message = task_message(7, headers={"correlation_id": "c-ä", "x-retry-count": 3})
        await broker.publish(message)
        (delivery,) = await inbox.first(1)
        assert delivery.body == message.to_body()
        assert read_message(delivery.body).task_id == "task-7"
        assert delivery.headers["correlation_id"] == "c-ä"
        assert delivery.headers["x-retry-count"] == "3"
        assert delivery.lane is Priority.NORMAL
        assert TYPE in delivery.queue
        await delivery.ack()

    async def test_every_lane_has_a_queue_of_its_own(self, broker: Broker) -> None:
        for lane in LANES:
            await broker.publish(task_message(lane=lane))
        for lane in LANES:
            await self.expect_depth(broker, 1, lane)
        inbox = Inbox()
        self.consume(broker, inbox)
        deliveries = await inbox.first(3)
        assert {delivery.lane for delivery in deliveries} == set(LANES)
        assert len({delivery.queue for delivery in deliveries}) == 3

    async def test_the_plain_task_type_as_key_means_the_normal_lane(self, broker: Broker) -> None:
        await self.publish_raw(broker, TYPE, b"1")
        await self.publish_raw(broker, f"{TYPE}.high", b"2")
        await self.expect_depth(broker, 1, Priority.NORMAL)
        await self.expect_depth(broker, 1, Priority.HIGH)
        await self.expect_depth(broker, 0, Priority.LOW)

    async def test_to_declare_again_changes_nothing(self, broker: Broker) -> None:
        await broker.publish(task_message())
        await broker.declare([TYPE])
        await broker.declare([TYPE, "other-type"])
        await self.expect_depth(broker, 1)

    async def test_a_message_that_no_queue_takes_is_refused(self, broker: Broker) -> None:
        with pytest.raises(PublishRefusedError):
            await broker.publish(task_message(task_type="never-declared"))
        await broker.publish(task_message())
        await self.expect_depth(broker, 1)

    async def test_each_of_many_publications_has_its_own_outcome(self, broker: Broker) -> None:
        types = [TYPE, "never-declared"] * 20
        outcomes = await asyncio.gather(
            *(broker.publish(task_message(number, kind)) for number, kind in enumerate(types)), return_exceptions=True
        )
        assert [isinstance(outcome, PublishRefusedError) for outcome in outcomes] == [kind != TYPE for kind in types]
        assert [
            outcome for outcome in outcomes if outcome is not None and type(outcome) is not PublishRefusedError
        ] == []
        await self.expect_depth(broker, 20)

    async def test_a_thousand_concurrent_publications_arrive(self, broker: Broker) -> None:
        arrived: set[bytes] = set()
        acking: set[asyncio.Task[None]] = set()

        def take(delivery: Delivery) -> None:
            arrived.add(delivery.body)
            acking.add(asyncio.ensure_future(delivery.ack()))

        broker.consume(ConsumeRequest([TYPE], 50), take)
        messages = [task_message(number) for number in range(1_000)]
        await asyncio.gather(*(broker.publish(message) for message in messages))
        expected = {message.to_body() for message in messages}
        await eventually(lambda: arrived == expected, timeout=30, what="all of 1,000 messages arrive")
        await asyncio.gather(*acking)

    async def test_the_depth_counts_what_is_ready(self, broker: Broker) -> None:
        await self.expect_depth(broker, 0)
        for number in range(3):
            await broker.publish(task_message(number))
        await self.expect_depth(broker, 3)
        assert await broker.queue_depth("never-declared", Priority.NORMAL) is None
        await self.expect_depth(broker, 3)

    async def test_a_closed_broker_is_unavailable(self, broker: Broker) -> None:
        await broker.close()
        assert not broker.is_connected
        with pytest.raises(BrokerUnavailableError):
            await broker.publish(task_message())
        with pytest.raises(BrokerUnavailableError):
            await broker.publish_event(event("x"))

    async def test_inspect_works_without_a_connection(self) -> None:
        report = await (await self.make_broker()).inspect()
        assert report.facts


class DelayCases(BrokerSuite):
    """Delayed messages, if the broker holds them."""

    async def test_a_delayed_message_comes_when_it_is_due(self, broker: Broker) -> None:
        self.needs_delays(broker)
        loop = asyncio.get_running_loop()
        arrivals: list[tuple[bytes, float]] = []
        broker.consume(ConsumeRequest([TYPE], 10), lambda delivery: arrivals.append((delivery.body, loop.time())))
        late, soon, now = (task_message(number) for number in range(3))
        start = loop.time()
        await broker.publish(late, delay=2 * DELAY)
        await broker.publish(soon, delay=DELAY)
        await broker.publish(now)
        await eventually(lambda: len(arrivals) == 3, what="the delayed messages arrive")
        assert [body for body, _ in arrivals] == [now.to_body(), soon.to_body(), late.to_body()]
        # A broker may round to milliseconds, and its clock is not ours.
        assert arrivals[1][1] - start >= 0.95 * DELAY.total_seconds()
        assert arrivals[2][1] - start >= 1.95 * DELAY.total_seconds()

    async def test_a_delayed_message_is_never_refused(self, broker: Broker) -> None:
        self.needs_delays(broker)
        await broker.publish(task_message(task_type="never-declared"), delay=timedelta(milliseconds=1))
        await broker.publish(task_message(), delay=timedelta(milliseconds=1))
        await self.expect_depth(broker, 1)

    @staticmethod
    def needs_delays(broker: Broker) -> None:
        if not broker.holds_delays:
            pytest.skip("this broker leaves delays to the store")
