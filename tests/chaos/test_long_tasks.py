"""Tasks that run for longer than the broker has patience."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage

from tests.chaos.conftest import MakeScenario
from tests.chaos.load import Job
from tests.chaos.scenario import Scenario
from tests.support.servers import RabbitServer

MINUTES = 3


@pytest.fixture(scope="module")
def rabbit_server() -> Iterator[RabbitServer]:
    """A broker that takes a delivery back after 20 s and closes the channel; it looks every second."""
    with closing(RabbitServer(config={"consumer_timeout": "20000"})) as server:
        server.start()
        server.ctl("eval", "application:set_env(rabbit, channel_tick_interval, 1000).")
        yield server


@pytest.mark.chaos_long
@pytest.mark.timeout(300)
async def test_a_task_of_three_minutes_runs_once_with_a_consumer_timeout_of_20_s(
    on_servers: MakeScenario, amqp_url: str
) -> None:
    async with on_servers(BROKER__CONSUMER_TIMEOUT="20s", WORKER__LEASE="10s") as scenario:
        await scenario.cluster.up(workers=1)
        await scenario.submit(
            [Job(0, task_type, {"seconds": MINUTES * 60}) for task_type in ("async-work", "plain-work")]
        )
        async with asyncio.timeout(60):
            await lose_patience(amqp_url, scenario)
        report = await scenario.finish(timeout=MINUTES * 60 + 30)
    assert report.violations == ()
    assert (report.statuses, report.executions) == ({"COMPLETED": 2}, 2)
    assert [(task["attempts"], task["crashes"]) for task in scenario.found] == [(1, 0)] * 2


async def hold(_: AbstractIncomingMessage) -> None:
    """Take a delivery and never answer."""


async def lose_patience(url: str, scenario: Scenario) -> None:
    """Hold a delivery without an answer until the broker closes the channel: it does have a timeout."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        reasons: asyncio.Queue[BaseException | None] = asyncio.Queue()
        channel.close_callbacks.add(lambda _, reason: reasons.put_nowait(reason))
        queue = await channel.declare_queue("held", durable=True, arguments={"x-queue-type": "quorum"})
        await channel.default_exchange.publish(aio_pika.Message(b""), "held")
        await queue.consume(hold)
        with scenario.fault("consumer timeout", "rabbitmq"):
            assert "timed out" in str(await reasons.get())
