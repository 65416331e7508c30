"""The topology of a broker is compared with what is wanted, and moved while messages come and go."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest

from taskframework.brokers.base import ConsumeRequest
from taskframework.brokers.rabbitmq import topology_mover
from taskframework.brokers.rabbitmq.topology_mover import TopologyMover
from taskframework.errors import BrokerError
from taskframework.model.status import LANES
from taskframework.settings.servers import BrokerSettings
from tests.integration.rabbitmq_helpers import Recorder, connected, message, opened, plain_channel, rabbit_broker


def _mover(url: str, **settings: object) -> TopologyMover:
    return TopologyMover(BrokerSettings.model_validate({"url": url, "delay": "store", **settings}), ["reports"])


async def _made_by_hand(url: str, kind: str = "classic") -> None:
    """The queues of a type as somebody made them once, bound as they should be."""
    async with plain_channel(url) as channel:
        exchange = await channel.declare_exchange("tasks.exchange", "direct", durable=True)
        for lane in LANES:
            arguments = {"x-queue-type": kind, "x-dead-letter-exchange": "tasks.dlx"}
            queue = await channel.declare_queue(f"tasks.reports.{lane}", durable=True, arguments={**arguments})
            await queue.bind(exchange, f"reports.{lane}")


async def test_a_plan_tells_what_is_missing_and_what_differs_and_changes_nothing(amqp_url: str) -> None:
    mover = _mover(amqp_url)
    missing = await mover.plan()
    assert len(missing) == 7, "three exchanges, the dead letters, three lanes"
    assert all(difference.is_missing for difference in missing)
    assert await mover.plan() == missing
    await _made_by_hand(amqp_url)
    differs = [difference for difference in await mover.plan() if not difference.is_missing]
    assert [difference.name for difference in differs] == [f"tasks.reports.{lane}" for lane in LANES]
    assert "argument x-queue-type: received 'quorum' but current is 'classic'" in str(differs[0])


async def test_classic_queues_are_moved_under_traffic_and_no_message_is_lost(amqp_url: str) -> None:
    await _made_by_hand(amqp_url)
    await _wait_in(amqp_url, "low", 250)
    recorder = Recorder()
    async with opened(rabbit_broker(amqp_url, delay="store")) as broker:
        await connected(broker)
        broker.consume(ConsumeRequest(["reports"], 20), recorder)
        await recorder.has("waits-0")
        moved = asyncio.create_task(_mover(amqp_url).migrate())
        sent = 0
        while sent < 50 or not moved.done():
            await broker.publish(message(f"task-{sent}", lane=LANES[sent % 2]))  # raises where nobody takes it
            sent += 1
        assert await moved == [f"tasks.reports.{lane}" for lane in LANES]
        assert await _mover(amqp_url).plan() == []
        await recorder.has(
            *(f"task-{number}" for number in range(sent)), *(f"waits-{n}" for n in range(250)), timeout=60
        )
    async with plain_channel(amqp_url) as channel:
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await channel.declare_queue("tasks.reports.high.moving", passive=True)


async def test_a_move_that_broke_off_goes_on_and_a_changed_argument_is_moved(
    amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(rabbit_broker(amqp_url, delay="store", delivery_limit=7), "reports"):
        pass
    await _wait_in(amqp_url, "normal", 250)  # more than is carried together
    carried = topology_mover._move_some_messages

    async def breaks(*where: object) -> bool:
        await carried(*where)  # type: ignore[arg-type]
        raise BrokerError("the mover dies")

    monkeypatch.setattr(topology_mover, "_move_some_messages", breaks)
    with pytest.raises(BrokerError, match="dies"):
        await _mover(amqp_url).migrate()
    monkeypatch.setattr(topology_mover, "_move_some_messages", carried)
    assert f"tasks.reports.{LANES[1]}" in await _mover(amqp_url).migrate()
    assert await _mover(amqp_url).plan() == []
    assert await _mover(amqp_url).migrate() == []
    async with opened(rabbit_broker(amqp_url, delay="store")) as broker:
        assert await broker.queue_depth("reports", LANES[1]) == 250


async def test_a_consumer_of_a_queue_that_is_moved_goes_on(amqp_url: str) -> None:
    """The worker has the old settings still: it is restarted after the move."""
    recorder = Recorder()
    async with opened(rabbit_broker(amqp_url, delay="store", delivery_limit=7), "reports") as broker:
        broker.consume(ConsumeRequest(["reports"], 20), recorder)
        for lane in LANES:
            await broker.publish(message(f"before-{lane}", lane=lane))
        await recorder.has(*(f"before-{lane}" for lane in LANES))
        assert len(await _mover(amqp_url).migrate()) == len(LANES)
        for lane in LANES:
            await broker.publish(message(f"after-{lane}", lane=lane))
        await recorder.has(*(f"after-{lane}" for lane in LANES), timeout=20)


async def test_an_exchange_that_differs_is_not_moved(amqp_url: str) -> None:
    async with plain_channel(amqp_url) as channel:
        await channel.declare_exchange("tasks.exchange", "topic", durable=True)
    with pytest.raises(BrokerError, match=r"exchange tasks\.exchange differs: argument type: received 'direct'"):
        await _mover(amqp_url).migrate()


async def _wait_in(url: str, lane: str, count: int) -> None:
    async with plain_channel(url) as channel:
        exchange = await channel.get_exchange("tasks.exchange", ensure=False)
        waiting = (aio_pika.Message(b"{}", headers={"task_id": f"waits-{number}"}) for number in range(count))
        await asyncio.gather(*(exchange.publish(each, f"reports.{lane}", timeout=10) for each in waiting))
