from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from taskframework.brokers import embedded
from taskframework.brokers.base import Broker, ConsumeRequest, ExternalMessage
from taskframework.brokers.embedded import EmbeddedBroker
from taskframework.errors import BrokerUnavailableError, PublishRefusedError
from taskframework.model.status import Priority
from taskframework.submission.producer import DispatchPolicy
from taskframework.testing.clock import FakeClock
from taskframework.testing.conformance.broker import BrokerConformance
from taskframework.testing.conformance.broker_suite import TYPE, Inbox, Listener, event, task_message
from taskframework.testing.eventually import eventually


class TestEmbeddedBroker(BrokerConformance):
    """The queues of an embedded broker live and die with the object, so a test has one."""

    _broker: EmbeddedBroker | None = None

    async def make_broker(self) -> Broker:
        if self._broker is None:
            self._broker = EmbeddedBroker()
        return self._broker

    async def publish_raw(self, broker: Broker, routing_key: str, body: bytes) -> None:
        assert isinstance(broker, EmbeddedBroker)
        broker.publish_raw(routing_key, body)


@pytest.fixture
async def broker() -> EmbeddedBroker:
    broker = EmbeddedBroker()
    await broker.open()
    await broker.declare([TYPE])
    return broker


async def test_after_an_outage_messages_that_were_not_acknowledged_come_again(
    broker: EmbeddedBroker,
) -> None:
    inbox = Inbox()
    consumption = broker.consume(ConsumeRequest([TYPE], 10), inbox)
    messages = [task_message(number) for number in range(4)]
    for message in messages:
        await broker.publish(message)
    deliveries = await inbox.first(4)
    await deliveries[0].ack()
    broker.interrupt()
    assert not broker.is_connected
    assert not consumption.is_live
    for refused in (broker.publish(messages[0]), broker.publish_event(event("x")), broker.declare([TYPE])):
        with pytest.raises(BrokerUnavailableError):
            await refused
    with pytest.raises(BrokerUnavailableError):
        await broker.queue_depth(TYPE, Priority.NORMAL)
    await deliveries[1].ack()
    await deliveries[2].reject()
    broker.restore()
    assert consumption.is_live
    await inbox.only(7)
    assert inbox.bodies[4:] == [message.to_body() for message in messages[1:]]
    await broker.close()


async def test_the_embedded_broker_holds_a_bounded_number_of_delayed_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait with the producer, which has as many timers, and in the store."""
    assert DispatchPolicy().max_pending == embedded.MAX_DELAYED_MESSAGES
    monkeypatch.setattr(embedded, "MAX_DELAYED_MESSAGES", 2)
    clock = FakeClock()
    broker = EmbeddedBroker(clock=clock)
    await broker.open()
    await broker.declare([TYPE])
    held = []
    for number in range(2):
        held.append(broker.holds_delays)
        await broker.publish(task_message(number), delay=timedelta(minutes=number + 1))
    held.append(broker.holds_delays)
    await eventually(lambda: clock.sleeping == 2)
    clock.advance(60)
    await eventually(lambda: broker.holds_delays, what="one of them is in its queue")
    assert held == [True, True, False]
    assert await broker.queue_depth(TYPE, Priority.NORMAL) == 1
    clock.advance(60)
    await eventually(lambda: not broker._delayed.tasks)
    await broker.close()


async def test_an_event_that_is_handled_during_an_outage_comes_again(broker: EmbeddedBroker) -> None:
    started, finish = asyncio.Event(), asyncio.Event()
    durable, exclusive = [], Listener()

    async def listen(message: ExternalMessage) -> None:
        durable.append(message.body)
        started.set()
        await finish.wait()

    broker.subscribe(listen, durable_name="billing")
    broker.subscribe(exclusive)
    await broker.publish_event(event("1"))
    await started.wait()
    broker.interrupt()
    broker.restore()
    finish.set()
    await broker.publish_event(event("2"))
    await eventually(lambda: durable == [b"1", b"1", b"2"], what="the event in hand comes again, in order")
    await exclusive.expect("1", "2")
    await broker.close()


async def test_delays_follow_the_clock() -> None:
    clock = FakeClock()
    broker = EmbeddedBroker(clock=clock)
    await broker.open()
    await broker.declare([TYPE])
    inbox = Inbox()
    broker.consume(ConsumeRequest([TYPE], 10), inbox)
    for number, seconds in enumerate((600.1, 0.3, 30)):
        await broker.publish(task_message(number), delay=timedelta(seconds=seconds))
    await eventually(lambda: clock.sleeping == 3, what="the broker waits for each message")
    arrived = []
    for seconds in (0.3, 29.7, 570.1):
        arrived.append(len(inbox.deliveries))
        clock.advance(seconds)
        await inbox.first(len(arrived))
    assert arrived == [0, 1, 2]
    assert inbox.bodies == [task_message(number).to_body() for number in (1, 2, 0)]
    await broker.close()


async def test_delayed_messages_survive_a_close() -> None:
    clock = FakeClock()
    broker = EmbeddedBroker(clock=clock)
    await broker.open()
    await broker.declare([TYPE])
    await broker.publish(task_message(), delay=timedelta(seconds=5))
    await eventually(lambda: clock.sleeping == 1, what="the broker waits for the message")
    await broker.close()
    clock.advance(5)
    await broker.open()
    inbox = Inbox()
    broker.consume(ConsumeRequest([TYPE], 10), inbox)
    await inbox.only(1)
    await broker.close()


async def test_a_durable_queue_drops_the_oldest_events_beyond_its_limit_with_one_warning(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(embedded, "MAX_KEPT_EVENTS", 3)
    await broker.subscribe(Listener(), durable_name="away").stop()
    with caplog.at_level(logging.WARNING):
        for number in range(10):
            await broker.publish_event(event(str(number)))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    listener = Listener()
    broker.subscribe(listener, durable_name="away")
    await listener.expect("7", "8", "9")
    await broker.close()


async def test_an_exclusive_queue_does_not_collect_after_its_subscription(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(embedded, "MAX_KEPT_EVENTS", 1)
    await broker.subscribe(Listener()).stop()
    broker.subscribe(Listener())
    broker.interrupt()
    broker.restore()
    await broker.close()
    await broker.open()
    for number in range(3):
        await broker.publish_event(event(str(number)))
    assert caplog.records == []
    await broker.close()


async def test_events_of_a_stopped_subscriber_go_to_the_next_of_its_durable_queue(
    broker: EmbeddedBroker,
) -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    async def fail_later(_: ExternalMessage) -> None:
        started.set()
        await finish.wait()
        raise RuntimeError("too late")

    subscription = broker.subscribe(fail_later, durable_name="billing")
    await broker.publish_event(event("1"))
    await broker.publish_event(event("2"))
    await started.wait()
    await subscription.stop()
    finish.set()
    listener = Listener()
    broker.subscribe(listener, durable_name="billing")
    await eventually(lambda: sorted(listener.received) == ["1", "2"], what="both events are heard")
    await broker.close()


async def test_a_subscriber_that_is_stopped_while_it_pauses_gives_its_event_back() -> None:
    clock = FakeClock()
    broker = EmbeddedBroker(clock=clock)
    await broker.open()
    failing, listener = Listener("1"), Listener()
    subscription = broker.subscribe(failing, durable_name="billing")
    await broker.publish_event(event("1"))
    await broker.publish_event(event("2"))
    await eventually(lambda: clock.sleeping == 1, what="the subscription pauses")
    await subscription.stop()
    broker.subscribe(listener, durable_name="billing")
    await listener.expect("1", "2")
    await broker.close()


async def test_a_consumer_alone_makes_no_queue(broker: EmbeddedBroker) -> None:
    consumption = broker.consume(ConsumeRequest(["later"], 10), Inbox())
    assert not consumption.is_live
    assert await broker.queue_depth("later", Priority.NORMAL) is None
    with pytest.raises(PublishRefusedError):
        await broker.publish(task_message(task_type="later"))
    await broker.close()


async def test_a_subscriber_that_keeps_failing_is_asked_ever_more_seldom() -> None:
    clock = FakeClock()
    broker = EmbeddedBroker(clock=clock)
    await broker.open()
    heard_at: list[float] = []

    async def fail(_: ExternalMessage) -> None:
        heard_at.append(clock.monotonic())
        raise RuntimeError("never works")

    broker.subscribe(fail)
    await broker.publish_event(event("1"))
    for count, pause in enumerate((0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5), start=1):
        await eventually(lambda: clock.sleeping == 1, what="the subscription pauses")
        assert len(heard_at) == count
        clock.advance(pause)
    await eventually(lambda: len(heard_at) == 9, what="the event comes again")
    await broker.close()


async def test_a_cancellation_inside_a_subscriber_does_not_end_the_subscription(broker: EmbeddedBroker) -> None:
    heard: list[bytes] = []

    async def listen(message: ExternalMessage) -> None:
        heard.append(message.body)
        if len(heard) == 1:
            raise asyncio.CancelledError

    broker.subscribe(listen)
    await broker.publish_event(event("1"))
    await eventually(lambda: heard == [b"1", b"1"], what="the event comes again")
    await broker.close()


async def test_a_subscriber_may_stop_its_subscription_and_close_the_broker(broker: EmbeddedBroker) -> None:
    closed = asyncio.Event()

    async def listen(_: ExternalMessage) -> None:
        await subscription.stop()
        await broker.close()
        closed.set()

    subscription = broker.subscribe(listen)
    await broker.publish_event(event("1"))
    await asyncio.wait_for(closed.wait(), 10)


async def test_a_consumer_that_raises_does_not_stop_the_others(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()

    def broken(_: object) -> None:
        raise RuntimeError("a bug")

    broker.consume(ConsumeRequest([TYPE], 1), broken)
    broker.consume(ConsumeRequest([TYPE], 10), inbox)
    for number in range(3):
        await broker.publish(task_message(number))
    await inbox.only(2)
    assert "stays unacknowledged" in caplog.text
    await broker.close()


def test_a_program_may_end_while_a_subscriber_works() -> None:
    async def program() -> None:
        broker, started = EmbeddedBroker(), asyncio.Event()
        await broker.open()

        async def hang(_: ExternalMessage) -> None:
            started.set()
            await asyncio.Event().wait()

        broker.subscribe(hang)
        await broker.publish_event(event("1"))
        await started.wait()

    asyncio.run(program())
