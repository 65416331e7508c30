"""What every broker must do, as a pytest suite: subclass `BrokerConformance` and say how to make a broker.

The tests wait for what must happen and never for what must not: that something stays away shows in the depth of a
queue, or in what comes after it. They need pytest-asyncio in its `auto` mode.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta

import pytest

from taskframework.brokers.base import Broker, ConsumeRequest, Consumption, Delivery, ExternalMessage
from taskframework.errors import BrokerUnavailableError, PublishRefusedError
from taskframework.model.message import TaskMessage, read_message
from taskframework.model.status import LANES, Priority
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
        """Wait for so many."""
        await eventually(lambda: len(self.deliveries) >= count, what=f"{count} deliveries arrive")
        return self.deliveries[:count]

    async def only(self, count: int) -> list[Delivery]:
        """Wait for so many, which must be all there are."""
        found = await self.first(count)
        assert len(self.deliveries) == count
        return found

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries]


class Listener:
    """Hears the events exchange; fails on the texts in `fails_on`, once each."""

    def __init__(self, *fails_on: str) -> None:
        self.heard: list[str] = []
        self.messages: list[ExternalMessage] = []
        self._fails_on = set(fails_on)

    async def __call__(self, message: ExternalMessage) -> None:
        text = message.body.decode()
        self.heard.append(text)
        self.messages.append(message)
        if text in self._fails_on:
            self._fails_on.remove(text)
            raise RuntimeError(f"the listener fails once on {text}")

    async def hears(self, *texts: str) -> None:
        """Wait until exactly these were heard, in this order."""
        await eventually(lambda: len(self.heard) >= len(texts), what=f"{len(texts)} events are heard")
        assert self.heard == list(texts)


def task_message(
    number: int = 1,
    task_type: str = TYPE,
    lane: Priority = Priority.NORMAL,
    headers: Mapping[str, str | int] | None = None,
) -> TaskMessage:
    return TaskMessage(f"task-{number}", task_type, 1, lane, headers)


def event(text: str) -> ExternalMessage:
    return ExternalMessage(text.encode(), "application/cloudevents+json", {"for": "tests"})


async def is_live(*consumptions: Consumption) -> None:
    await eventually(lambda: all(consumption.is_live for consumption in consumptions), what="consumers are registered")


class BrokerConformance:
    """Subclass it as `class TestSomeBroker(BrokerConformance)`."""

    async def make_broker(self) -> Broker:
        """A broker, not open yet. All that one test makes share their queues; no other test knows these."""
        raise NotImplementedError

    async def publish_raw(self, broker: Broker, routing_key: str, body: bytes) -> None:
        """Publish to the exchange of the tasks as a foreign client does, with this key, and wait for the confirm."""
        raise NotImplementedError

    @pytest.fixture
    async def broker(self) -> AsyncIterator[Broker]:
        """Open, connected, and with the queues of `TYPE`."""
        broker = await self.opened()
        await broker.declare([TYPE])
        yield broker
        await broker.close()

    async def opened(self) -> Broker:
        broker = await self.make_broker()
        await broker.open()
        await eventually(lambda: broker.is_connected, what="the broker is connected")
        return broker

    @staticmethod
    async def depth_is(broker: Broker, expected: int, lane: Priority = Priority.NORMAL) -> None:
        async def depth() -> bool:
            found = await broker.queue_depth(TYPE, lane)
            assert found == expected, f"{found} messages are ready"
            return True

        await eventually(depth, what=f"{expected} messages are ready in lane {lane}")

    @staticmethod
    def consume(broker: Broker, inbox: Inbox, prefetch: int = 10, types: Sequence[str] = (TYPE,)) -> Consumption:
        return broker.consume(ConsumeRequest(types, prefetch), inbox)

    # Publishing

    async def test_what_is_published_arrives_whole(self, broker: Broker) -> None:
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
            await self.depth_is(broker, 1, lane)
        inbox = Inbox()
        self.consume(broker, inbox)
        deliveries = await inbox.first(3)
        assert {delivery.lane for delivery in deliveries} == set(LANES)
        assert len({delivery.queue for delivery in deliveries}) == 3

    async def test_the_plain_task_type_as_key_means_the_normal_lane(self, broker: Broker) -> None:
        await self.publish_raw(broker, TYPE, b"1")
        await self.publish_raw(broker, f"{TYPE}.high", b"2")
        await self.depth_is(broker, 1, Priority.NORMAL)
        await self.depth_is(broker, 1, Priority.HIGH)
        await self.depth_is(broker, 0, Priority.LOW)

    async def test_to_declare_again_changes_nothing(self, broker: Broker) -> None:
        await broker.publish(task_message())
        await broker.declare([TYPE])
        await broker.declare([TYPE, "other-type"])
        await self.depth_is(broker, 1)

    async def test_a_message_that_no_queue_takes_is_refused(self, broker: Broker) -> None:
        with pytest.raises(PublishRefusedError):
            await broker.publish(task_message(task_type="never-declared"))
        await broker.publish(task_message())
        await self.depth_is(broker, 1)

    async def test_each_of_many_publishers_learns_its_own_outcome(self, broker: Broker) -> None:
        types = [TYPE, "never-declared"] * 20
        outcomes = await asyncio.gather(
            *(broker.publish(task_message(number, kind)) for number, kind in enumerate(types)), return_exceptions=True
        )
        assert [isinstance(outcome, PublishRefusedError) for outcome in outcomes] == [kind != TYPE for kind in types]
        assert [
            outcome for outcome in outcomes if outcome is not None and type(outcome) is not PublishRefusedError
        ] == []
        await self.depth_is(broker, 20)

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
        await self.depth_is(broker, 0)
        for number in range(3):
            await broker.publish(task_message(number))
        await self.depth_is(broker, 3)
        assert await broker.queue_depth("never-declared", Priority.NORMAL) is None
        await self.depth_is(broker, 3)

    async def test_a_closed_broker_is_unavailable(self, broker: Broker) -> None:
        await broker.close()
        assert not broker.is_connected
        with pytest.raises(BrokerUnavailableError):
            await broker.publish(task_message())
        with pytest.raises(BrokerUnavailableError):
            await broker.publish_event(event("x"))

    # Delays

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
        await self.depth_is(broker, 1)

    @staticmethod
    def needs_delays(broker: Broker) -> None:
        if not broker.holds_delays:
            pytest.skip("this broker leaves delays to the store")

    # Consuming

    async def test_a_consumption_is_live_until_it_is_stopped(self, broker: Broker) -> None:
        consumption = self.consume(broker, Inbox())
        await is_live(consumption)
        await consumption.stop()
        assert not consumption.is_live

    async def test_a_consumption_waits_for_its_queues(self, broker: Broker) -> None:
        inbox = Inbox()
        consumption = self.consume(broker, inbox, types=["later"])
        await broker.declare(["later"])
        await is_live(consumption)
        await broker.publish(task_message(task_type="later"))
        await inbox.first(1)

    async def test_no_more_than_the_prefetch_is_unacknowledged_in_each_queue(self, broker: Broker) -> None:
        for number in range(5):
            await broker.publish(task_message(number))
        await broker.publish(task_message(lane=Priority.HIGH))
        inbox = Inbox()
        self.consume(broker, inbox, prefetch=2)
        first = await inbox.first(3)
        await self.depth_is(broker, 3)
        await self.depth_is(broker, 0, Priority.HIGH)
        await inbox.only(3)
        await next(delivery for delivery in first if delivery.lane is Priority.NORMAL).ack()
        await self.depth_is(broker, 2)
        await inbox.only(4)

    async def test_consumers_share_a_queue(self, broker: Broker) -> None:
        one, other = Inbox(), Inbox()
        await is_live(self.consume(broker, one, prefetch=1), self.consume(broker, other, prefetch=1))
        await broker.publish(task_message(1))
        await broker.publish(task_message(2))
        await one.only(1)
        await other.only(1)
        assert one.bodies != other.bodies

    async def test_what_is_acknowledged_is_gone_and_the_rest_comes_again(self, broker: Broker) -> None:
        inbox = Inbox()
        self.consume(broker, inbox)
        messages = [task_message(number) for number in range(4)]
        for message in messages:
            await broker.publish(message)
        deliveries = await inbox.first(4)
        await deliveries[1].ack()
        await broker.close()
        await deliveries[2].ack()  # too late, and no error
        await deliveries[3].reject()
        again, later = await self.opened(), Inbox()
        self.consume(again, later)
        await later.first(3)
        await self.depth_is(again, 0)
        assert later.bodies == [messages[number].to_body() for number in (0, 2, 3)]
        for delivery in later.deliveries:
            await delivery.ack()
        await again.close()

    async def test_after_stop_nothing_comes_and_what_is_in_hand_can_be_acknowledged(self, broker: Broker) -> None:
        inbox = Inbox()
        consumption = self.consume(broker, inbox)
        await broker.publish(task_message(1))
        (delivery,) = await inbox.first(1)
        await consumption.stop()
        await broker.publish(task_message(2))
        await self.depth_is(broker, 1)
        await inbox.only(1)
        await delivery.ack()
        await broker.close()
        again, later = await self.opened(), Inbox()
        self.consume(again, later)
        await later.first(1)
        assert later.bodies == [task_message(2).to_body()]
        await later.deliveries[0].ack()
        await again.close()

    # Dead letters

    async def test_what_is_rejected_goes_to_the_dead_letters_whole(self, broker: Broker) -> None:
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
        await self.depth_is(broker, 0)
        await inbox.only(1)

    async def test_a_dead_letter_stays_until_it_is_acknowledged(self, broker: Broker) -> None:
        inbox, dead = Inbox(), Inbox()
        self.consume(broker, inbox)
        broker.consume_dead_letters(dead)
        await broker.publish(task_message(1))
        await (await inbox.first(1))[0].reject()
        await dead.first(1)
        await broker.close()
        again, later = await self.opened(), Inbox()
        again.consume_dead_letters(later)
        (letter,) = await later.first(1)
        assert letter.body == task_message(1).to_body()
        await letter.ack()
        await again.close()

    async def test_garbage_is_delivered_and_can_be_rejected(self, broker: Broker) -> None:
        inbox, dead = Inbox(), Inbox()
        self.consume(broker, inbox, prefetch=1)
        broker.consume_dead_letters(dead)
        await self.publish_raw(broker, f"{TYPE}.normal", GARBAGE)
        await self.publish_raw(broker, f"{TYPE}.normal", b"")
        await broker.publish(task_message())
        await (await inbox.first(1))[0].reject()
        await (await inbox.first(2))[1].reject()
        await (await inbox.first(3))[2].ack()
        assert inbox.bodies == [GARBAGE, b"", task_message().to_body()]
        await dead.first(2)
        assert sorted(dead.bodies) == [b"", GARBAGE]
        for letter in dead.deliveries:
            await letter.ack()

    # Events

    async def test_every_subscriber_hears_every_event_in_order(self, broker: Broker) -> None:
        one, other = Listener(), Listener()
        await is_live(broker.subscribe(one), broker.subscribe(other, durable_name="other"))
        texts = [str(number) for number in range(50)]
        for text in texts:
            await broker.publish_event(event(text))
        await one.hears(*texts)
        await other.hears(*texts)
        message = one.messages[0]
        assert message.content_type == "application/cloudevents+json"
        assert message.headers["for"] == "tests"

    async def test_nobody_needs_to_listen(self, broker: Broker) -> None:
        await broker.publish_event(event("unheard"))
        listener = Listener()
        await is_live(broker.subscribe(listener))
        await broker.publish_event(event("heard"))
        await listener.hears("heard")

    async def test_a_durable_queue_collects_while_nobody_listens(self, broker: Broker) -> None:
        before, after = Listener(), Listener()
        subscription = broker.subscribe(before, durable_name="billing")
        await is_live(subscription)
        await subscription.stop()
        assert not subscription.is_live
        await broker.publish_event(event("1"))
        await broker.publish_event(event("2"))
        broker.subscribe(after, durable_name="billing")
        await after.hears("1", "2")
        assert before.heard == []

    async def test_an_exclusive_queue_goes_with_its_subscription(self, broker: Broker) -> None:
        before, after = Listener(), Listener()
        subscription = broker.subscribe(before)
        await is_live(subscription)
        await subscription.stop()
        await broker.publish_event(event("missed"))
        await is_live(broker.subscribe(after))
        await broker.publish_event(event("heard"))
        await after.hears("heard")
        assert before.heard == []

    async def test_subscribers_of_one_durable_queue_share_its_events(self, broker: Broker) -> None:
        one, other = Listener(), Listener()
        await is_live(broker.subscribe(one, durable_name="both"), broker.subscribe(other, durable_name="both"))
        texts = [str(number) for number in range(20)]
        for text in texts:
            await broker.publish_event(event(text))
        await eventually(lambda: len(one.heard) + len(other.heard) >= 20, what="all events are heard")
        assert sorted(one.heard + other.heard) == sorted(texts)

    @pytest.mark.parametrize("durable_name", [None, "careful"])
    async def test_an_event_that_failed_comes_again_before_the_next(
        self, broker: Broker, durable_name: str | None
    ) -> None:
        listener = Listener("1", "3")
        await is_live(broker.subscribe(listener, durable_name=durable_name))
        for text in ("0", "1", "2", "3", "4"):
            await broker.publish_event(event(text))
        await listener.hears("0", "1", "1", "2", "3", "3", "4")

    async def test_the_next_event_waits_until_the_last_is_handled(self, broker: Broker) -> None:
        started, finish = asyncio.Event(), asyncio.Event()
        heard: list[bytes] = []

        async def listen(message: ExternalMessage) -> None:
            heard.append(message.body)
            started.set()
            await finish.wait()

        watching = Listener()
        await is_live(broker.subscribe(listen), broker.subscribe(watching))
        await broker.publish_event(event("1"))
        await broker.publish_event(event("2"))
        await started.wait()
        await watching.hears("1", "2")
        assert heard == [b"1"]
        finish.set()
        await eventually(lambda: heard == [b"1", b"2"], what="the second event is handled")

    async def test_an_event_in_hand_at_the_close_comes_again_to_a_durable_queue(self, broker: Broker) -> None:
        started = asyncio.Event()

        async def hang(_: ExternalMessage) -> None:
            started.set()
            await asyncio.Event().wait()

        await is_live(broker.subscribe(hang, durable_name="billing"))
        await broker.publish_event(event("1"))
        await started.wait()
        await broker.close()
        again, listener = await self.opened(), Listener()
        again.subscribe(listener, durable_name="billing")
        await listener.hears("1")
        await again.close()

    async def test_inspect_works_without_a_connection(self) -> None:
        report = await (await self.make_broker()).inspect()
        assert report.facts
        assert not report.problems
