"""Connections that are cut, held and slowed between a process and a server, while both are well."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from pymongo.uri_parser import parse_uri

from tests.chaos.conftest import MakeScenario
from tests.chaos.load import schedule
from tests.chaos.proxy import Proxy
from tests.chaos.scenario import INNOCENT
from tests.support.servers import MongoServer, RabbitServer

#: How long something is held: longer than the lease, and than a few AMQP heartbeats.
LONG = 8.0
QUICK_TO_NOTICE = {"BROKER__HEARTBEAT": "2s", "STORE__TIMEOUT": "4s"}


@pytest.mark.chaos_long
@pytest.mark.timeout(300)
async def test_the_connections_of_one_worker_fail(
    on_servers: MakeScenario,
    rabbit_server: RabbitServer,
    mongo_server: MongoServer,
    amqp_url: str,
    mongo_url: str,
    seed: int,
) -> None:
    """Each fault hits one of two workers; after each it works again, without having been started anew."""
    async with (
        on_servers(**INNOCENT, **QUICK_TO_NOTICE) as scenario,
        Proxy("127.0.0.1", mongo_server.port) as store,
        Proxy("127.0.0.1", rabbit_server.port) as broker,
    ):
        scenario.cluster.add_api()
        victim = scenario.cluster.add_worker(
            STORE__URL=through(store, mongo_url),
            BROKER__URL=amqp_url.replace(str(rabbit_server.port), str(broker.port)),
        )
        scenario.cluster.add_worker()
        await scenario.cluster.ready()
        async with scenario.submitting(schedule(seed, 1500, 130)):
            for name, target, proxies, fault, seconds in faults(store, broker, random.Random(seed)):
                await scenario.running(1, worker_pid=victim.pid, timeout=45)
                with scenario.fault(name, target, pids=[victim.pid]):
                    for proxy in proxies:
                        fault(proxy)
                    await asyncio.sleep(seconds)
                    for proxy in proxies:
                        proxy.slow(0)
                        proxy.release()
            await scenario.running(1, worker_pid=victim.pid, timeout=45)
        report = await scenario.finish(timeout=90)
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 1500}


Fault = tuple[str, str, list[Proxy], Callable[[Proxy], None], float]


def faults(store: Proxy, broker: Proxy, chance: random.Random) -> list[Fault]:
    """What can happen to a connection: to one of the two servers, and to both."""

    def lose_reply(proxy: Proxy) -> None:
        proxy.cut_after("down", chance.randrange(3000))

    def lose_request(proxy: Proxy) -> None:
        proxy.cut_after("up", chance.randrange(3000))

    found: list[Fault] = []
    for target, proxy in (("store", store), ("broker", broker)):
        found += [
            ("connections cut", target, [proxy], Proxy.cut, 0.5),
            ("connections held", target, [proxy], Proxy.hold, LONG),
            ("replies held", target, [proxy], lambda proxy: proxy.hold("down"), LONG),
            ("requests held", target, [proxy], lambda proxy: proxy.hold("up"), LONG),
            ("connections refused", target, [proxy], lambda proxy: proxy.cut(refuse=True), 4),
            ("connections slowed", target, [proxy], lambda proxy: proxy.slow(0.2), 4),
            *[("reply lost", target, [proxy], lose_reply, 1.0)] * 4,
            *[("request lost", target, [proxy], lose_request, 1.0)] * 2,
        ]
    found.append(("connections held", "store and broker", [store, broker], Proxy.hold, LONG))
    return found


@pytest.mark.timeout(180)
async def test_replies_of_the_database_are_lost(
    on_servers: MakeScenario, mongo_server: MongoServer, mongo_url: str, seed: int
) -> None:
    """What was written and not answered is neither done again nor given up: inserts, claims, settlements."""
    chance = random.Random(seed)
    async with (
        on_servers(**INNOCENT, **QUICK_TO_NOTICE) as scenario,
        Proxy("127.0.0.1", mongo_server.port) as proxy,
    ):
        scenario.cluster.add_api(STORE__URL=through(proxy, mongo_url))
        worker = scenario.cluster.add_worker(STORE__URL=through(proxy, mongo_url))
        await scenario.cluster.ready()
        async with scenario.submitting(schedule(seed, 120, 8)) as submitting:
            # So many that they end on a crowded machine too, where a new connection takes longer than the pause.
            for _ in range(80):
                if submitting.done():
                    break
                with scenario.fault("reply lost", "mongodb", pids=[worker.pid]):
                    proxy.cut_after("down", chance.randrange(5000))
                    await asyncio.sleep(0.3)
            proxy.release()
        report = await scenario.finish()
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 120}


@pytest.mark.chaos_long
@pytest.mark.timeout(180)
async def test_the_broker_runs_out_of_memory(on_servers: MakeScenario, rabbit_server: RabbitServer, seed: int) -> None:
    """Publishers are blocked, submissions are not; what was accepted meanwhile is done afterwards."""
    async with on_servers(**INNOCENT) as scenario:
        await scenario.cluster.up(workers=1)
        async with scenario.submitting(schedule(seed, 400, 25)):
            await scenario.running(1)
            with scenario.fault("memory alarm", "rabbitmq"):
                await watermark(rabbit_server, "absolute", "1MB")
                await asyncio.sleep(15)
                await watermark(rabbit_server, "0.4")
        report = await scenario.finish()
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 400}
    assert report.answers == {202: 400}


async def watermark(rabbit_server: RabbitServer, *value: str) -> None:
    await asyncio.to_thread(rabbit_server.ctl, "set_vm_memory_high_watermark", *value)


def through(proxy: Proxy, url: str) -> str:
    """A MongoDB URL by way of the proxy; discovery would lead around it."""
    return f"mongodb://127.0.0.1:{proxy.port}/{parse_uri(url)['database']}?directConnection=true"
