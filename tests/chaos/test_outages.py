"""Servers that die under load: everything accepted is done, and who submits hears 202 or a clear 503."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.chaos.conftest import MakeScenario
from tests.chaos.load import schedule
from tests.chaos.scenario import INNOCENT, Scenario
from tests.support.mongo_set import MongoSet
from tests.support.servers import MongoServer, RabbitServer


@pytest.fixture
def mongo_set() -> Iterator[MongoSet]:
    with closing(MongoSet()) as servers:
        servers.start()
        yield servers


@pytest.mark.parametrize("fast_path", ["auto", "off"])
@pytest.mark.timeout(180)
async def test_no_task_is_lost_while_both_servers_are_killed_under_load(
    on_servers: MakeScenario, rabbit_server: RabbitServer, mongo_server: MongoServer, seed: int, fast_path: str
) -> None:
    async with on_servers(BROKER__FAST_PATH=fast_path, **INNOCENT) as scenario:
        await scenario.cluster.up(workers=2)
        async with scenario.submitting(schedule(seed, 150, 12)):
            await scenario.running(3)
            await broken(scenario, "killed", "rabbitmq", killed(rabbit_server), rabbit_server.start)
            await scenario.running(3)
            await broken(scenario, "killed", "mongodb", mongo_server.kill, mongo_server.start)
        report = await scenario.finish()
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 150}


@pytest.mark.chaos_long
@pytest.mark.timeout(240)
async def test_the_broker_is_stopped_and_killed_and_loses_messages_under_load(
    on_servers: MakeScenario, rabbit_server: RabbitServer, amqp_url: str, seed: int
) -> None:
    vhost = amqp_url.rpartition("/")[2]
    async with on_servers(WORKER__LEASE="5s", **INNOCENT) as scenario:
        await scenario.cluster.up(workers=3)
        async with scenario.submitting(schedule(seed, 1500, 75)):
            await asyncio.sleep(3)
            await broken(scenario, "stopped", "rabbitmq", stopped(rabbit_server), rabbit_server.start, seconds=30)
            await asyncio.sleep(3)
            async with scenario.unheard():
                await broken(scenario, "killed", "rabbitmq", killed(rabbit_server), rabbit_server.start)
                for task_type in ("async-work", "plain-work", "async-work"):
                    await asyncio.sleep(3)
                    queue = f"tasks.{task_type}.normal"
                    with scenario.fault("queue deleted", queue):
                        await asyncio.to_thread(rabbit_server.ctl, "delete_queue", "-p", vhost, queue)
        report = await scenario.finish(timeout=90)
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 1500}


@pytest.mark.chaos_long
@pytest.mark.timeout(240)
async def test_the_database_is_killed_and_steps_down_under_load(
    on_servers: MakeScenario, mongo_set: MongoSet, seed: int
) -> None:
    url = mongo_set.url_of(f"test_{secrets.token_hex(6)}")
    async with on_servers(store_url=url, WORKER__LEASE="5s", **INNOCENT) as scenario:
        await scenario.cluster.up(workers=3)
        async with scenario.submitting(schedule(seed, 1000, 80)):
            for _ in range(5):
                await asyncio.sleep(3)
                with scenario.fault("stepped down", "mongodb", pids=None):
                    await asyncio.to_thread(mongo_set.step_down)
                    await asyncio.to_thread(mongo_set.primary)
            for _ in range(3):
                await asyncio.sleep(3)
                primary = await asyncio.to_thread(mongo_set.primary)
                await broken(scenario, "killed", "mongodb", primary.kill, after(mongo_set.primary, primary.start))
            await asyncio.sleep(3)
            kills = after(*(member.kill for member in mongo_set.members[:2]))
            starts = after(*(member.start for member in mongo_set.members[:2]), mongo_set.primary)
            await broken(scenario, "majority killed", "mongodb", kills, starts, seconds=15)
        report = await scenario.finish(timeout=90)
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 1000}
    assert report.answers[503] > 0


async def broken(
    scenario: Scenario,
    name: str,
    target: str,
    breaks: Callable[[], object],
    repair: Callable[[], object],
    *,
    seconds: float = 0,
) -> None:
    """Break a server for a while.

    A broker that is away excuses nobody's late effects: leases are kept in the database.
    """
    with scenario.fault(name, target, pids=() if target == "rabbitmq" else None):
        await asyncio.to_thread(breaks)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(repair)


def stopped(rabbit_server: RabbitServer) -> Callable[[], None]:
    """How to stop the broker. On a busy machine it may not end in time and is killed, so `killed` holds here, too."""
    return after(rabbit_server.flush, rabbit_server.stop)


def killed(rabbit_server: RabbitServer) -> Callable[[], None]:
    """How to kill the broker without losing a queue that it has only just declared."""
    return after(rabbit_server.flush, rabbit_server.kill)


def after(*calls: Callable[[], object]) -> Callable[[], None]:
    """One call after the other."""

    def together() -> None:
        for call in calls:
            call()

    return together
