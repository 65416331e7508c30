"""Publishing to a real RabbitMQ: every publication ends, and nothing that failed looks like success."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest

from taskframework.brokers.base import ConsumeRequest, ExternalMessage
from taskframework.errors import BrokerError, BrokerUnavailableError, PublishRefusedError
from taskframework.model.message import read_message
from taskframework.model.status import Priority
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


async def test_a_published_message_has_the_documented_form_on_the_wire(make_broker: MakeBroker, amqp_url: str) -> None:
    async with opened(make_broker(), "reports") as broker, plain_channel(amqp_url) as channel:
        await broker.publish(message("t1", lane=Priority.HIGH))
        queue = await channel.get_queue("tasks.reports.high", ensure=False)
        got = await queue.get(timeout=20)
        assert read_message(got.body).task_id == "t1"
        assert (got.content_type, got.delivery_mode) == ("application/json", aio_pika.DeliveryMode.PERSISTENT)
        assert (got.exchange, got.routing_key) == ("tasks.exchange", "reports.high")
        assert got.headers["dispatch_id"] == "t1-1"
        assert got.headers["task_id"] == "t1"
        assert got.message_id not in (None, "", "t1")


async def test_bodies_of_all_sizes_and_headers_of_all_kinds_arrive_as_they_are(
    make_broker: MakeBroker, amqp_url: str
) -> None:
    frame = 131_072 - 8
    bodies = [bytes(size) for size in (0, 1, frame - 1, frame, frame + 1, 2 * frame, 1_000_000)]
    headers = {"\u4e2d": "ä\U0001f600", "": "", "n" * 128: "v", "i": -(2**31), "l": 2**63 - 1}
    async with opened(make_broker(), "reports") as broker, plain_channel(amqp_url) as channel:
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind("tasks.events")
        events = [ExternalMessage(body, "application/\u4e2d", headers) for body in bodies]  # type: ignore[arg-type]
        await asyncio.gather(*map(broker.publish_event, events))
        for body in bodies:
            got = await queue.get(timeout=20)
            assert (len(got.body), got.body) == (len(body), body)
            assert (got.content_type, got.headers) == ("application/\u4e2d", headers)


async def test_hundreds_of_concurrent_publications_are_all_confirmed_and_stored(make_broker: MakeBroker) -> None:
    async with opened(make_broker(max_unconfirmed=50), "reports") as broker:
        await asyncio.gather(*(broker.publish(message(f"t{number}")) for number in range(300)))

        async def all_there() -> bool:
            return await broker.queue_depth("reports", Priority.NORMAL) == 300

        await eventually(all_there)


async def test_an_unroutable_message_is_refused_and_the_queue_comes_back(
    make_broker: MakeBroker, amqp_url: str
) -> None:
    async with opened(make_broker(), "reports") as broker, plain_channel(amqp_url) as channel:
        with pytest.raises(PublishRefusedError, match=r"No queue takes messages of tasks\.exchange with key nobodys"):
            await broker.publish(message("t1", "nobodys"))
        await channel.queue_delete("tasks.reports.normal")
        with pytest.raises(PublishRefusedError):
            await broker.publish(message("t2"))

        async def published() -> bool:
            try:
                await broker.publish(message("t3"))
            except PublishRefusedError:
                return False
            return True

        await eventually(published, what="the deleted queue of a declared type was declared again")


async def test_outcomes_are_not_swapped_between_concurrent_publications(make_broker: MakeBroker) -> None:
    async with opened(make_broker(), "reports") as broker:
        # Two attempts of one dispatch: same body, same stable id.
        publications = [message("t1", "nobodys"), message("t1")] * 20
        outcomes = await asyncio.gather(*map(broker.publish, publications), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [PublishRefusedError, type(None)] * 20


async def test_a_refusal_by_the_queue_is_an_error(make_broker: MakeBroker, amqp_url: str) -> None:
    async with opened(make_broker(), "reports") as broker, plain_channel(amqp_url) as channel:
        full = await channel.declare_queue(
            "full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )
        await full.bind("tasks.exchange", "reports.normal")
        await broker.publish(message("t1"))
        with pytest.raises(PublishRefusedError, match="refused a message"):
            await broker.publish(message("t2"))
        assert broker.is_connected


async def test_no_publication_is_lost_silently_when_the_exchange_is_deleted(
    make_broker: MakeBroker, amqp_url: str
) -> None:
    async with opened(make_broker(), "reports") as broker, plain_channel(amqp_url) as channel:
        confirmed: list[str] = []

        async def publish(task_id: str) -> BaseException | None:
            try:
                await broker.publish(message(task_id))
            except BrokerError as error:
                return error
            confirmed.append(task_id)
            return None

        running = [asyncio.create_task(publish(f"t{number}")) for number in range(4000)]
        await eventually(lambda: confirmed)
        await channel.exchange_delete("tasks.exchange")
        errors = [error for error in await asyncio.gather(*running) if error is not None]
        assert errors, "the exchange was deleted too late to show anything"
        assert {type(error) for error in errors} <= {BrokerUnavailableError, PublishRefusedError}

        async def works_again() -> bool:
            return await publish("last") is None

        await eventually(works_again, timeout=20)
        received = Recorder()
        broker.consume(ConsumeRequest(["reports"], 100), received)
        await received.has(*confirmed)


async def test_a_cancelled_publication_harms_no_other(make_broker: MakeBroker) -> None:
    async with opened(make_broker(), "reports") as broker:
        running = [asyncio.create_task(broker.publish(message(f"t{number}"))) for number in range(50)]
        await asyncio.sleep(0)
        running[20].cancel()
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        assert isinstance(outcomes.pop(20), asyncio.CancelledError)
        assert set(outcomes) == {None}
        await connected(broker)
        await broker.publish(message("later"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("user_id", "\ud800"), ("correlation_id", "x" * 256), ("x" * 256, ""), ("n", 2**63), ("n", 0.5), ("n", ["a"])],
    ids=lambda value: str(value)[:14],
)
async def test_a_value_that_cannot_be_written_is_refused_and_harms_no_other(
    make_broker: MakeBroker, name: str, value: object
) -> None:
    async with opened(make_broker(), "reports") as broker:
        bad = message("t1")
        bad.headers[name] = value  # type: ignore[index]
        channel = broker._publisher._supervised_channel.value
        publications = [message("t2"), bad, message("t3"), bad, message("t4")]
        outcomes = await asyncio.gather(*map(broker.publish, publications), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), PublishRefusedError] * 2 + [type(None)]
        assert "cannot be written" in str(outcomes[1])
        await broker.publish(message("t5"))
        assert broker._publisher._supervised_channel.value is channel, "the connection lives on"


async def test_an_event_without_listeners_is_confirmed(make_broker: MakeBroker) -> None:
    async with opened(make_broker(), "reports") as broker:
        await broker.publish_event(ExternalMessage(b"{}", "application/cloudevents+json", {}))


async def test_a_broker_that_is_away_is_an_error_at_once_and_is_used_when_it_is_back(
    rabbit_server: RabbitServer,
) -> None:
    vhost = rabbit_server.new_vhost()
    await asyncio.to_thread(rabbit_server.stop)
    broker = rabbit_broker(rabbit_server.url_of(vhost), **QUICK | {"publish_timeout": "30s"})
    try:
        await broker.open()
        with pytest.raises(BrokerUnavailableError, match=str(rabbit_server.port)):
            await broker.publish(message("t1"))
        with pytest.raises(BrokerUnavailableError):
            await broker.declare(["reports"])
        with pytest.raises(BrokerUnavailableError):
            await broker.queue_depth("reports", Priority.NORMAL)
        await asyncio.to_thread(rabbit_server.start)
        await connected(broker)
        await broker.publish(message("t2"))  # its queue was asked for while the broker was away
    finally:
        await broker.close()


async def test_questions_to_a_frozen_broker_do_not_wait_for_one_another(
    rabbit_server: RabbitServer, make_broker: MakeBroker
) -> None:
    async with opened(make_broker(), "reports") as broker:
        assert await broker.queue_depth("reports", Priority.NORMAL) == 0
        rabbit_server.pause()
        try:
            async with asyncio.timeout(30):  # one after the other they would take a minute
                asked = [broker.queue_depth("reports", Priority.NORMAL) for _ in range(10)]
                answers = await asyncio.gather(*asked, return_exceptions=True)
        finally:
            rabbit_server.resume()
        assert {type(answer) for answer in answers} == {BrokerUnavailableError}

        async def is_repeated() -> bool:
            return await broker.queue_depth("reports", Priority.NORMAL) == 0

        await eventually(is_repeated)


async def test_a_frozen_broker_costs_the_time_limit_and_no_more(
    rabbit_server: RabbitServer, make_broker: MakeBroker
) -> None:
    async with opened(make_broker(**QUICK), "reports") as broker:
        rabbit_server.pause()
        try:
            async with asyncio.timeout(40):
                outcomes = await asyncio.gather(
                    *(broker.publish(message(f"t{number}")) for number in range(100)), return_exceptions=True
                )
            assert {type(outcome) for outcome in outcomes} == {BrokerUnavailableError}
            await eventually(lambda: not broker.is_connected)
        finally:
            rabbit_server.resume()
        await connected(broker)
        await broker.publish(message("later"))


async def test_a_memory_alarm_stops_publishing_in_time_and_acknowledging_not_at_all(
    rabbit_server: RabbitServer, make_broker: MakeBroker
) -> None:
    async with opened(make_broker(**QUICK), "reports") as broker:
        received = Recorder(holds=True)
        consumption = broker.consume(ConsumeRequest(["reports"], 10), received)
        await broker.publish(message("t1"))
        await received.has("t1")
        await asyncio.to_thread(rabbit_server.ctl, "set_vm_memory_high_watermark", "absolute", "1MB")
        try:
            for task_id in ("t2", "t3"):  # of these, one waits for its confirm, and the other is refused at once
                with pytest.raises(BrokerUnavailableError, match="memory or disk alarm"):
                    await broker.publish(message(task_id))
            assert (broker.is_connected, broker.is_blocked) == (False, True)
            assert any("memory or disk alarm" in problem for problem in (await broker.inspect(["reports"])).problems)
            await received.deliveries[0].ack()
            await consumption.stop()  # its answer comes after the acknowledgement
        finally:
            await asyncio.to_thread(rabbit_server.ctl, "set_vm_memory_high_watermark", "0.4")
        await connected(broker)
        assert not broker.is_blocked
        assert not any("alarm" in problem for problem in (await broker.inspect(["reports"])).problems)
        await broker.publish(message("t4"))
        again = Recorder()
        broker.consume(ConsumeRequest(["reports"], 10), again)
        await again.has("t4")
        assert "t1" not in again.task_ids
