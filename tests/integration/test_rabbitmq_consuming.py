"""Consuming from a real RabbitMQ: consumers come back by themselves, and an answer never fails its caller."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from taskframework.brokers.base import ConsumeRequest, Delivery
from taskframework.errors import BrokerError
from taskframework.model.status import LANES, Priority
from taskframework.testing.eventually import eventually
from tests.integration.rabbitmq_helpers import (
    QUICK,
    MakeBroker,
    Recorder,
    connected,
    message,
    opened,
    plain_channel,
    rabbit_broker,
)
from tests.support.servers import RabbitServer

_REPORTS = ConsumeRequest(["reports"], 10)


async def test_messages_of_twenty_types_in_three_lanes_are_consumed(make_broker: MakeBroker) -> None:
    types = [f"type-{number}" for number in range(20)]
    async with opened(make_broker(), *types) as broker:
        received = Recorder()
        consumption = broker.consume(ConsumeRequest(types, 10), received)
        wanted = {f"{name}.{lane}": (name, lane) for name in types for lane in LANES}
        await asyncio.gather(*(broker.publish(message(key, name, lane)) for key, (name, lane) in wanted.items()))
        await received.has(*wanted)
        assert len(received.deliveries) == len(wanted)
        for delivery in received.deliveries:
            assert delivery.queue == f"tasks.{delivery.headers['task_id']}"
            assert delivery.lane == wanted[delivery.headers["task_id"]][1]
        await eventually(lambda: consumption.is_live)


async def test_a_queue_that_refuses_an_argument_is_consumed_without_it(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a classic queue of RabbitMQ 4.3 refuses `x-consumer-timeout`; each release refuses a priority that is none."""
    async with opened(make_broker(), "reports") as broker:
        monkeypatch.setattr(broker, "_consumer_arguments", {"x-priority": "high"})
        received = Recorder()
        broker.consume(_REPORTS, received)
        await broker.publish(message("t1"))
        await received.has("t1")
    assert not caplog.records


async def test_prefetch_counts_for_each_queue(make_broker: MakeBroker) -> None:
    async with opened(make_broker(), "reports") as broker:
        for number in range(6):
            await broker.publish(message(f"n{number}"))
            await broker.publish(message(f"h{number}", lane=Priority.HIGH))
        received = Recorder(holds=True)
        broker.consume(ConsumeRequest(["reports"], 2), received)
        await received.has("n0", "n1", "h0", "h1")

        async def the_rest_waits() -> bool:
            return [await broker.queue_depth("reports", lane) for lane in LANES] == [4, 4, 0]

        await eventually(the_rest_waits)
        assert Counter(delivery.lane for delivery in received.deliveries) == {Priority.NORMAL: 2, Priority.HIGH: 2}


async def test_after_a_stop_no_delivery_comes_and_those_in_hand_are_answered(make_broker: MakeBroker) -> None:
    async with opened(make_broker(), "reports") as broker:
        await broker.publish(message("t1"))
        first = Recorder(holds=True)
        consumption = broker.consume(_REPORTS, first)
        await first.has("t1")
        await consumption.stop()
        assert not consumption.is_live
        await broker.publish(message("t2"))
        await first.deliveries[0].ack()
        second = Recorder()
        broker.consume(_REPORTS, second)
        await second.has("t2")
        assert first.task_ids == ["t1"]
        assert second.task_ids == ["t2"]


async def test_stopping_under_load_loses_nothing(make_broker: MakeBroker) -> None:
    names = {f"t{number}" for number in range(500)}
    async with opened(make_broker(), "reports") as broker:
        await asyncio.gather(*(broker.publish(message(name)) for name in names))
        received = Recorder()
        while len(set(received.task_ids)) < len(names):
            received.arrived.clear()
            consumption = broker.consume(ConsumeRequest(["reports"], 50), received)
            await received.arrived.wait()
            await consumption.stop()
            at_stop = len(received.deliveries)
            await asyncio.sleep(0)
            assert len(received.deliveries) == at_stop
        assert set(received.task_ids) == names
        assert max(Counter(received.task_ids).values()) == 1, "a delivery handed over was delivered again"


async def test_rejected_messages_reach_the_dead_letters_with_their_history(make_broker: MakeBroker) -> None:
    async with opened(make_broker(), "reports") as broker:
        work, dead = Recorder(holds=True), Recorder()
        broker.consume(_REPORTS, work)
        broker.consume_dead_letters(dead)
        await broker.publish(message("t1"))
        await work.has("t1")
        await work.deliveries[0].reject()
        await dead.has("t1")
        [delivery] = dead.deliveries
        assert delivery.queue == "tasks.dlq"
        assert delivery.body == work.deliveries[0].body
        [death] = json.loads(delivery.headers["x-death"])
        assert (death["queue"], death["reason"]) == ("tasks.reports.normal", "rejected")


async def test_acknowledgements_and_rejects_of_one_moment_each_reach_their_own_message(make_broker: MakeBroker) -> None:
    names = [f"t{number:02}" for number in range(60)]
    rejected = [name for number, name in enumerate(names) if number // 3 % 2 or number == 30]
    async with opened(make_broker(), "reports") as broker:
        work, dead = Recorder(holds=True), Recorder()
        consumption = broker.consume(ConsumeRequest(["reports"], len(names)), work)
        broker.consume_dead_letters(dead)
        for name in names:
            await broker.publish(message(name))
        await work.has(*names)
        deliveries = {delivery.headers["task_id"]: delivery for delivery in work.deliveries}
        for name in [*names[40:], *names[:40]]:
            await (deliveries[name].reject() if name in rejected else deliveries[name].ack())
        await dead.has(*rejected)
        await broker.publish(message("after"))
        await work.has(*names, "after")
        assert sorted(dead.task_ids) == rejected
        assert len(work.deliveries) == len(names) + 1, "the channel broke, and some came again"
        assert consumption.is_live


async def test_a_queue_deleted_under_its_consumer_is_declared_and_consumed_again(
    make_broker: MakeBroker, amqp_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "taskframework.brokers.rabbitmq.consumer")
    async with opened(make_broker(), "reports", "others") as broker, plain_channel(amqp_url) as channel:
        received = Recorder()
        consumption = broker.consume(ConsumeRequest(["reports", "others"], 10), received)
        await eventually(lambda: consumption.is_live)
        await channel.queue_delete("tasks.reports.normal")
        await eventually(lambda: not consumption.is_live)
        await eventually(lambda: consumption.is_live)
        await broker.publish(message("t1"))
        await broker.publish(message("t2", "others"))
        await received.has("t1", "t2")
    told = [text.partition(" after ")[0] for text in caplog.messages if "registered again" in text]
    assert told == ["the consumer of tasks.reports.normal is registered again"], "each warning has its end"


async def test_queues_nobody_declared_are_declared_by_their_consumer(make_broker: MakeBroker) -> None:
    async with opened(make_broker()) as broker:
        received, dead = Recorder(), Recorder()
        consumptions = [broker.consume(_REPORTS, received), broker.consume_dead_letters(dead)]
        await eventually(lambda: all(consumption.is_live for consumption in consumptions))
        await broker.publish(message("t1"))
        await received.has("t1")


async def test_a_queue_that_cannot_be_declared_leaves_the_others_alone(make_broker: MakeBroker, amqp_url: str) -> None:
    async with plain_channel(amqp_url) as channel:
        await channel.declare_exchange("tasks.exchange", "direct", durable=True)
        await channel.declare_queue("tasks.bad.high", durable=True, arguments={"x-queue-type": "classic"})
    async with opened(make_broker(), "good") as broker:
        received = Recorder()
        broker.consume(ConsumeRequest(["bad", "good"], 10), received)
        await broker.publish(message("t1", "good"))
        await received.has("t1")


async def test_more_types_than_the_broker_allows_channels_leave_the_others_alone(
    rabbit_server: RabbitServer, make_broker: MakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker would end the connection, again and again, and with it all consumers."""

    async def allow_channels(number: int) -> None:
        await asyncio.to_thread(rabbit_server.ctl, "eval", f"application:set_env(rabbit, channel_max, {number}).")

    types = [f"type-{number}" for number in range(10)]
    await allow_channels(20)
    try:
        async with opened(make_broker(), *types) as broker:
            received = Recorder()
            broker.consume(ConsumeRequest(types, 10), received)
            await eventually(lambda: "allows 20 channels on a connection" in caplog.text)
            assert "Raise `channel_max`" in caplog.text
            await asyncio.gather(*(broker.publish(message(name, name)) for name in types))
            # Six types have all their three channels; no delivery comes a second time, as after a lost connection.
            await eventually(lambda: len(received.deliveries) >= 5)
            await broker.publish(message("later", received.deliveries[0].headers["task_id"]))
            await received.has("later")
            ids = [delivery.headers["task_id"] for delivery in received.deliveries]
            assert len(ids) == len(set(ids))
    finally:
        await allow_channels(2047)


async def test_a_second_answer_and_an_answer_after_the_end_do_nothing(make_broker: MakeBroker) -> None:
    received = Recorder(holds=True)
    async with opened(make_broker(), "reports") as broker:
        broker.consume(_REPORTS, received)
        await broker.publish(message("t1"))
        await broker.publish(message("t2"))
        await received.has("t1", "t2")
        await received.deliveries[0].ack()
        await received.deliveries[0].ack()
        await received.deliveries[0].reject()
        await broker.publish(message("t3"))
        await received.has("t3")
    for delivery in received.deliveries:
        await delivery.ack()


async def test_acknowledgements_given_just_before_close_reach_the_broker(make_broker: MakeBroker) -> None:
    # No more than RabbitMQ hands to a quorum queue at once; what is beyond comes again, and the claim refuses it.
    names = [f"t{number}" for number in range(20)]
    async with opened(make_broker(), "reports") as broker:
        await asyncio.gather(*(broker.publish(message(name)) for name in names))
        received = Recorder(holds=True)
        broker.consume(ConsumeRequest(["reports"], 500), received)
        await received.has(*names)
        await asyncio.gather(*(delivery.ack() for delivery in received.deliveries))
    async with opened(make_broker(), "reports") as broker:
        assert await broker.queue_depth("reports", Priority.NORMAL) == 0


async def test_a_stop_while_channels_are_opened_is_no_warning_for_each_of_them(
    make_broker: MakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    types = [f"type-{number}" for number in range(10)]
    async with opened(make_broker(), *types) as broker:
        for turns in range(0, 60, 3):
            consumption = broker.consume(ConsumeRequest(types, 10), Recorder())
            for _ in range(turns):
                await asyncio.sleep(0)
            await consumption.stop()
    told = [record.getMessage() for record in caplog.records if record.name.startswith("aiormq")]
    assert told == []


async def test_closing_leaves_no_tasks(make_broker: MakeBroker) -> None:
    before = asyncio.all_tasks()
    async with opened(make_broker(), "reports") as broker:
        received = Recorder(holds=True)
        broker.consume(_REPORTS, received)
        broker.consume_dead_letters(received)
        await broker.queue_depth("reports", Priority.HIGH)
        await broker.publish(message("t1"))
        await received.has("t1")
    await eventually(lambda: asyncio.all_tasks() == before)


async def test_lost_connections_are_replaced_and_the_work_in_hand_is_not_disturbed(
    rabbit_server: RabbitServer, make_broker: MakeBroker
) -> None:
    async with opened(make_broker(**QUICK), "reports") as broker:
        finished: list[str] = []
        release = asyncio.Event()
        running: set[asyncio.Task[None]] = set()

        def take(delivery: Delivery) -> None:
            running.add(asyncio.create_task(work(delivery)))

        async def work(delivery: Delivery) -> None:
            await release.wait()
            await delivery.ack()
            finished.append(delivery.headers["task_id"])

        consumption = broker.consume(_REPORTS, take)
        await asyncio.gather(*(broker.publish(message(f"t{number}")) for number in range(5)))
        await eventually(lambda: len(running) == 5)
        await asyncio.to_thread(rabbit_server.ctl, "close_all_connections", "--global", "test")
        await eventually(lambda: len(running) == 10, what="all five were delivered again")
        release.set()
        await asyncio.gather(*running)
        assert Counter(finished) == Counter({f"t{number}": 2 for number in range(5)})
        await eventually(lambda: consumption.is_live)
        await connected(broker)


@pytest.mark.parametrize("how", ["stop_app", "kill"])
@pytest.mark.timeout(120)
async def test_a_broker_that_restarts_is_used_again_by_itself(
    rabbit_server: RabbitServer, amqp_url: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "taskframework.brokers.rabbitmq.connection")
    async with opened(rabbit_broker(amqp_url, **QUICK), "reports") as broker:
        assert await broker.queue_depth("reports", Priority.NORMAL) == 0
        received = Recorder()
        consumption = broker.consume(_REPORTS, received)
        await broker.publish(message("before"))
        await received.has("before")
        await asyncio.to_thread(_go_down, rabbit_server, how)
        await eventually(lambda: not broker.is_connected and not consumption.is_live)
        with pytest.raises(BrokerError):
            await broker.publish(message("meanwhile"))
        await asyncio.to_thread(_come_up, rabbit_server, how)
        await eventually(lambda: broker.is_connected and consumption.is_live, timeout=40)
        await broker.publish(message("after"))
        await received.has("after")
        assert await broker.queue_depth("reports", Priority.NORMAL) == 0
        told = [text for text in caplog.messages if "is back after" in text]
        assert {text.partition("(")[2].partition(")")[0] for text in told} == {"publisher", "consumer"}, (
            "the connection for depths is opened when somebody asks, so nobody knows for how long it was away"
        )


def _go_down(server: RabbitServer, how: str) -> None:
    if how == "stop_app":
        server.ctl("stop_app")
    else:
        # RabbitMQ 3.10 keeps the address of a new quorum queue in memory for a moment before it is on disk; killed in
        # that moment, it cannot start the queue ever again.
        server.ctl("eval", "[dets:sync(Table) || Table <- dets:all()].")
        server.kill()


def _come_up(server: RabbitServer, how: str) -> None:
    if how == "stop_app":
        server.ctl("start_app")
    else:
        server.start()


@pytest.mark.parametrize("is_stopped_before", [False, True])
async def test_a_delivery_acknowledged_right_before_the_end_does_not_come_again(
    make_broker: MakeBroker, is_stopped_before: bool
) -> None:
    count = 25
    recorder = Recorder(holds=True)
    async with opened(make_broker(), "reports") as broker:
        for number in range(count):
            await broker.publish(message(f"t{number}"))
        consumption = broker.consume(ConsumeRequest(["reports"], count), recorder)
        await recorder.has(*(f"t{number}" for number in range(count)))
        if is_stopped_before:
            await consumption.stop()
        for delivery in recorder.deliveries[1:]:
            await delivery.ack()
        await recorder.deliveries[0].ack()
    async with opened(make_broker(), "reports") as broker:
        later = Recorder()
        broker.consume(ConsumeRequest(["reports"], count), later)
        await broker.publish(message("last"))
        await later.has("last")
        assert later.task_ids == ["last"]
