"""Broker suite: deliveries, acknowledgements and dead letters."""

from __future__ import annotations

from datetime import timedelta

from taskframework.brokers.base import Broker
from taskframework.model.status import Priority
from taskframework.testing.conformance.broker_suite import (
    GARBAGE,
    TYPE,
    BrokerSuite,
    Inbox,
    task_message,
    wait_until_live,
)


class ConsumingCases(BrokerSuite):
    """A message is delivered until somebody acknowledges it."""

    async def test_a_consumption_is_live_until_it_is_stopped(self, broker: Broker) -> None:
        consumption = self.consume(broker, Inbox())
        await wait_until_live(consumption)
        await consumption.stop()
        assert not consumption.is_live

    async def test_a_consumption_waits_for_its_queues(self, broker: Broker) -> None:
        inbox = Inbox()
        consumption = self.consume(broker, inbox, types=["later"])
        await broker.declare(["later"])
        await wait_until_live(consumption)
        await broker.publish(task_message(task_type="later"))
        await inbox.first(1)

    async def test_no_more_than_the_prefetch_is_unacknowledged_in_each_queue(self, broker: Broker) -> None:
        for number in range(5):
            await broker.publish(task_message(number))
        await broker.publish(task_message(lane=Priority.HIGH))
        inbox = Inbox()
        self.consume(broker, inbox, prefetch=2)
        first = await inbox.first(3)
        await self.expect_depth(broker, 3)
        await self.expect_depth(broker, 0, Priority.HIGH)
        await inbox.only(3)
        await next(delivery for delivery in first if delivery.lane is Priority.NORMAL).ack()
        await self.expect_depth(broker, 2)
        await inbox.only(4)

    async def test_consumers_share_a_queue(self, broker: Broker) -> None:
        first, second = Inbox(), Inbox()
        await wait_until_live(self.consume(broker, first, prefetch=1), self.consume(broker, second, prefetch=1))
        await broker.publish(task_message(1))
        await broker.publish(task_message(2))
        await first.only(1)
        await second.only(1)
        assert first.bodies != second.bodies

    async def test_acknowledged_deliveries_are_gone_and_the_others_come_again(self, broker: Broker) -> None:
        inbox = Inbox()
        self.consume(broker, inbox)
        messages = [task_message(number) for number in range(4)]
        for message in messages:
            await broker.publish(message)
        deliveries = await inbox.first(4)
        await deliveries[1].ack()
        await broker.close()
        await deliveries[2].ack()  # too late, but no error
        await deliveries[3].reject()
        reopened, later = await self.open_broker(), Inbox()
        self.consume(reopened, later)
        await later.first(3)
        await self.expect_depth(reopened, 0)
        assert later.bodies == [messages[number].to_body() for number in (0, 2, 3)]
        for delivery in later.deliveries:
            await delivery.ack()
        await reopened.close()

    async def test_after_a_stop_no_delivery_comes_and_those_in_hand_can_be_acknowledged(self, broker: Broker) -> None:
        inbox = Inbox()
        consumption = self.consume(broker, inbox)
        await broker.publish(task_message(1))
        (delivery,) = await inbox.first(1)
        await consumption.stop()
        await broker.publish(task_message(2))
        await self.expect_depth(broker, 1)
        await inbox.only(1)
        await delivery.ack()
        await broker.close()
        reopened, later = await self.open_broker(), Inbox()
        self.consume(reopened, later)
        await later.first(1)
        assert later.bodies == [task_message(2).to_body()]
        await later.deliveries[0].ack()
        await reopened.close()

    async def test_deliveries_that_are_put_back_come_first_to_another_consumer(self, broker: Broker) -> None:
        inbox = Inbox()
        consumption = self.consume(broker, inbox, prefetch=3)
        messages = [task_message(number) for number in range(4)]
        for message in messages:
            await broker.publish(message)
        deliveries = await inbox.first(3)
        await consumption.stop()
        await deliveries[0].ack()
        for delivery in deliveries[1:]:
            await delivery.put_back()
        later = Inbox()
        self.consume(broker, later)
        await later.first(3)
        assert later.bodies == [message.to_body() for message in messages[1:]]
        await deliveries[1].ack()  # answered already
        for delivery in later.deliveries:
            await delivery.ack()
        await self.expect_depth(broker, 0)

    async def test_a_consumer_timeout_is_none_or_positive(self, broker: Broker) -> None:
        timeout = broker.consumer_timeout
        assert timeout is None or timeout > timedelta(0)


class DeadLetterCases(BrokerSuite):
    """A rejected delivery is kept for the consumer of dead letters."""

    async def test_a_rejected_message_goes_to_the_dead_letters_whole(self, broker: Broker) -> None:
        inbox, dead = Inbox(), Inbox()
        self.consume(broker, inbox)
        await broker.publish(task_message(1, headers={"correlation_id": "c"}))
        (delivery,) = await inbox.first(1)
        await delivery.reject()
        # The dead letters wait for a consumer.
        broker.consume_dead_letters(dead)
        (letter,) = await dead.first(1)
        assert letter.body == delivery.body
        assert letter.headers["correlation_id"] == "c"
        assert letter.headers["x-first-death-queue"] == delivery.queue
        await letter.ack()
        await self.expect_depth(broker, 0)
        await inbox.only(1)

    async def test_a_dead_letter_stays_until_it_is_acknowledged(self, broker: Broker) -> None:
        inbox, dead = Inbox(), Inbox()
        self.consume(broker, inbox)
        broker.consume_dead_letters(dead)
        await broker.publish(task_message(1))
        await (await inbox.first(1))[0].reject()
        await dead.first(1)
        await broker.close()
        reopened, later = await self.open_broker(), Inbox()
        reopened.consume_dead_letters(later)
        (letter,) = await later.first(1)
        assert letter.body == task_message(1).to_body()
        await letter.ack()
        await reopened.close()

    async def test_garbage_is_delivered_and_can_be_rejected(self, broker: Broker) -> None:
        inbox, dead = Inbox(), Inbox()
        self.consume(broker, inbox, prefetch=1)
        broker.consume_dead_letters(dead)
        await self.publish_raw(broker, f"{TYPE}.normal", GARBAGE)
        await self.publish_raw(broker, f"{TYPE}.normal", b"")
        await broker.publish(task_message())
        good = task_message().to_body()
        # In any order: RabbitMQ 4.3 delivers priority 0, with which other programs may publish, after messages without.
        for number in range(3):
            delivery = (await inbox.first(number + 1))[number]
            await (delivery.ack() if delivery.body == good else delivery.reject())
        assert sorted(inbox.bodies) == sorted([GARBAGE, b"", good])
        await dead.first(2)
        assert sorted(dead.bodies) == [b"", GARBAGE]
        for letter in dead.deliveries:
            await letter.ack()
