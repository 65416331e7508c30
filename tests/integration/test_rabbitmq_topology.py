"""The topology on a real RabbitMQ: what is declared, what is refused, who holds delays."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta

import aio_pika
import pytest
from aio_pika.abc import FieldValue

from taskframework.brokers.rabbitmq.connection import Connector
from taskframework.brokers.rabbitmq.messages import task_publication
from taskframework.brokers.rabbitmq.topology import (
    DELAYED_TYPE,
    Names,
    Topology,
    base_topology,
    delayed_exchange,
    task_topology,
)
from taskframework.brokers.rabbitmq.topology_keeper import declare_part
from taskframework.errors import (
    BrokerError,
    BrokerUnavailableError,
    ConfigurationError,
    PublishRefusedError,
    TopologyMismatchError,
)
from taskframework.model.status import LANES, Priority
from taskframework.settings.servers import BrokerSettings
from taskframework.testing.eventually import eventually
from tests.integration.rabbitmq_helpers import message, opened, plain_channel, rabbit_broker
from tests.support.amqp import read_properties_as_driver
from tests.support.servers import RabbitServer

_QUORUM: dict[str, FieldValue] = {
    "x-queue-type": "quorum",
    "x-dead-letter-exchange": "tasks.dlx",
    "x-delivery-limit": 20,
}


async def test_declares_quorum_queues_with_explicit_arguments_and_again_changes_nothing(amqp_url: str) -> None:
    async with opened(rabbit_broker(amqp_url), "reports") as broker:
        await broker.declare(["reports"])
        async with plain_channel(amqp_url) as channel:
            for lane in LANES:  # the broker compares the arguments and refuses others
                await channel.declare_queue(f"tasks.reports.{lane}", durable=True, arguments={**_QUORUM})
            await channel.declare_exchange("tasks.exchange", "direct", durable=True)
            await channel.declare_exchange("tasks.dlx", "fanout", durable=True)
            await channel.declare_exchange("tasks.events", "fanout", durable=True)
            await channel.declare_queue("tasks.dlq", passive=True)


async def test_the_plain_type_as_key_reaches_the_normal_lane_only(amqp_url: str) -> None:
    async with opened(rabbit_broker(amqp_url), "reports") as broker, plain_channel(amqp_url) as channel:
        exchange = await channel.get_exchange("tasks.exchange", ensure=False)
        await exchange.publish(aio_pika.Message(b"{}"), "reports")

        async def depths() -> bool:
            return [await broker.queue_depth("reports", lane) for lane in LANES] == [0, 1, 0]

        await eventually(depths)


async def test_a_queue_that_is_missing_after_a_lost_connection_is_declared_again(
    rabbit_server: RabbitServer, amqp_url: str
) -> None:
    async with opened(rabbit_broker(amqp_url), "reports") as broker:
        async with plain_channel(amqp_url) as channel:
            await channel.queue_delete("tasks.reports.low")
        assert await broker.queue_depth("reports", Priority.LOW) is None
        await asyncio.to_thread(rabbit_server.ctl, "close_all_connections", "--global", "test")

        async def is_back() -> bool:
            try:
                return await broker.queue_depth("reports", Priority.LOW) == 0
            except BrokerUnavailableError:
                return False

        await eventually(is_back)


async def test_a_process_that_declares_a_deleted_exchange_binds_all_queues_again(amqp_url: str) -> None:
    async with opened(rabbit_broker(amqp_url), "reports") as worker, opened(rabbit_broker(amqp_url)) as api:
        async with plain_channel(amqp_url) as channel:
            await channel.exchange_delete("tasks.exchange")

        async def is_sent() -> bool:
            try:
                await api.publish(message("t1", "reports"))
            except BrokerError:
                return False
            return True

        await eventually(is_sent)
        assert await worker.queue_depth("reports", Priority.NORMAL) == 1


async def test_another_prefix_is_another_installation(amqp_url: str) -> None:
    async with opened(rabbit_broker(amqp_url, prefix="blue"), "reports"), plain_channel(amqp_url) as channel:
        await channel.declare_queue("blue.reports.high", passive=True)
        await channel.declare_exchange("blue.exchange", passive=True)


async def test_a_mismatch_names_queue_and_argument_and_the_rest_is_declared(amqp_url: str) -> None:
    async with plain_channel(amqp_url) as channel:
        await channel.declare_queue("tasks.bad.normal", durable=True, arguments={**_QUORUM, "x-max-length": 5})
    async with opened(rabbit_broker(amqp_url)) as broker:
        with pytest.raises(TopologyMismatchError, match=r"tasks\.bad\.normal.*x-max-length.*5") as caught:
            await broker.declare(["bad", "good"])
        assert caught.value.name == "tasks.bad.normal"
        assert await broker.queue_depth("good", Priority.LOW) == 0


async def test_an_exchange_of_another_type_is_a_mismatch(amqp_url: str) -> None:
    async with plain_channel(amqp_url) as channel:
        await channel.declare_exchange("tasks.exchange", "topic", durable=True)
    with pytest.raises(TopologyMismatchError, match=r"tasks\.exchange.*type.*topic"):
        await rabbit_broker(amqp_url).declare(["reports"])


async def test_depth_counts_ready_messages_and_knows_no_foreign_queue(amqp_url: str) -> None:
    async with opened(rabbit_broker(amqp_url), "reports") as broker:
        await broker.publish(message("t1"))

        async def one() -> bool:
            return await broker.queue_depth("reports", Priority.NORMAL) == 1

        await eventually(one)
        assert await broker.queue_depth("unknown", Priority.NORMAL) is None
        assert await broker.queue_depth("reports", Priority.HIGH) == 0


@pytest.fixture
async def url_without_plugin(amqp_url: str) -> str:
    """The private node has no delayed-message plugin; a broker of others may have it."""
    async with opened(rabbit_broker(amqp_url, delay="auto"), "probed") as broker:
        if broker.holds_delays:
            pytest.skip("this broker has the delayed-message plugin")
    return amqp_url


async def test_auto_finds_no_plugin_and_leaves_delays_to_the_store(url_without_plugin: str) -> None:
    async with opened(rabbit_broker(url_without_plugin, delay="auto"), "reports") as broker:
        with pytest.raises(PublishRefusedError, match="cannot hold delayed messages"):
            await broker.publish(message("t1"), delay=timedelta(seconds=1))
        assert (await broker.inspect()).facts["delays are held by"] == "the store"


async def test_a_demanded_plugin_that_is_missing_is_an_error_with_a_remedy(url_without_plugin: str) -> None:
    async with opened(rabbit_broker(url_without_plugin, delay="plugin")) as broker:
        with pytest.raises(ConfigurationError, match="rabbitmq_delayed_message_exchange") as caught:
            await broker.declare(["reports"])
        assert caught.value.key == "broker.delay"
        assert any("rabbitmq_delayed_message_exchange" in problem for problem in (await broker.inspect()).problems)


async def test_every_lane_of_a_delayed_message_is_routed_on_to_its_queue(amqp_url: str) -> None:
    """The plugin routes like a direct exchange once the delay is over; here a direct exchange stands in for it."""
    names = Names("tasks")
    stand_in = dataclasses.replace(delayed_exchange(names), type="direct", arguments={})
    assert delayed_exchange(names).type == DELAYED_TYPE
    queues = task_topology(names, "reports", delivery_limit=20, with_plugin=True)
    connector = Connector(BrokerSettings(url=amqp_url))
    async with connector.temporary_connection("test") as connection:
        channel = await connection.channel()
        for part in (base_topology(names), Topology(exchanges=(stand_in,)), queues):
            await declare_part(channel, part)
        inner = await channel.get_underlay_channel()
        for lane in LANES:
            sent = task_publication(names, message("t1", lane=lane), timedelta(seconds=1))
            await inner.basic_publish(
                sent.body,
                exchange=sent.exchange,
                routing_key=sent.routing_key,
                properties=read_properties_as_driver(sent.properties),
            )
        for lane in LANES:
            queue = await channel.get_queue(names.queue("reports", lane), ensure=False)

            async def arrived(name: str = queue.name) -> bool:
                return (await channel.declare_queue(name, passive=True)).declaration_result.message_count == 1

            await eventually(arrived, what=f"a message in {queue.name}")


async def test_inspect_works_without_open_and_tells_what_is_missing(amqp_url: str) -> None:
    broker = rabbit_broker(amqp_url)
    report = await broker.inspect()
    assert report.facts["server"].startswith("RabbitMQ ")
    (missing,) = report.problems
    assert missing.count("queue tasks.dlq") == missing.count("exchange tasks.events") == 1
    assert "topology apply" in missing
    assert "queue tasks.dlq" not in report.facts
    await broker.declare(["reports"])
    report = await broker.inspect(["reports"])
    assert report.problems == ()
    assert report.facts["queue tasks.reports.high"] == "0 ready"


async def test_inspect_tells_which_queues_a_worker_with_these_settings_would_refuse(amqp_url: str) -> None:
    await rabbit_broker(amqp_url).declare(["reports"])
    (problem,) = (await rabbit_broker(amqp_url, delivery_limit=7).inspect(["reports"])).problems
    assert "argument x-delivery-limit: received '7' but current is '20'" in problem
    assert all(f"queue tasks.reports.{lane}" in problem for lane in LANES)
    assert "topology migrate" in problem


async def test_inspect_explains_wrong_credentials_and_virtual_hosts_without_the_password(amqp_url: str) -> None:
    wrong_password = await rabbit_broker(amqp_url.replace("guest:guest@", "guest:s3cret@")).inspect()
    assert "password is wrong" in wrong_password.problems[0]
    assert "s3cret" not in repr(wrong_password)
    wrong_vhost = await rabbit_broker(amqp_url + "-none").inspect()
    assert "virtual host does not exist" in wrong_vhost.problems[0]


@pytest.mark.parametrize("delay", ["auto", "store"])
async def test_a_user_who_may_not_declare_works_with_what_another_user_has_declared(
    amqp_url: str, rabbit_server: RabbitServer, delay: str
) -> None:
    await rabbit_broker(amqp_url).declare(["reports"])
    vhost = amqp_url.rsplit("/", 1)[1]
    await asyncio.to_thread(rabbit_server.ctl, "set_permissions", "-p", vhost, "guest", "^$", ".*", ".*")
    limited = rabbit_broker(amqp_url, delay=delay)
    report = await limited.inspect(["reports"])
    assert report.problems == ()
    assert report.facts["queue tasks.reports.high"] == "0 ready"
    await limited.declare(["reports"])

    with pytest.raises(BrokerError, match="ACCESS_REFUSED") as refused:
        await limited.declare(["reports", "letters"])
    assert "Give the user of broker.url the permission" in refused.value.hint
    (problem,) = (await limited.inspect(["reports", "letters"])).problems
    assert "Missing on the broker: " in problem
    assert "queue tasks.letters.high" in problem


async def test_inspect_of_a_broker_that_is_away_names_host_and_port() -> None:
    report = await rabbit_broker("amqp://u:s3cret@127.0.0.1:1/").inspect()
    assert "127.0.0.1:1:" in report.problems[0]
    assert "s3cret" not in repr(report)
