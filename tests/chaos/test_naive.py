"""The same harness and faults, with a naive task system: the checker finds what is lost."""

from __future__ import annotations

import sys

import pytest

from tests.chaos.conftest import MakeScenario
from tests.chaos.load import schedule

NAIVE = (sys.executable, "-m", "tests.chaos.naive")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("ack", ["acks-last", pytest.param("acks-first", marks=pytest.mark.chaos_long)])
async def test_the_checker_sees_what_a_naive_system_loses(on_servers: MakeScenario, seed: int, ack: str) -> None:
    async with on_servers(listens=False) as scenario:
        scenario.cluster.add_api(command=(*NAIVE, "api", ack))
        workers = [scenario.cluster.add_worker(command=(*NAIVE, "worker", ack)) for _ in range(2)]
        await scenario.cluster.ready()
        async with scenario.submitting(schedule(seed, 60, 3, longest=1)):
            await scenario.running(4)
            for worker in workers:
                worker.kill()
                worker.start()
        report = await scenario.finish(timeout=5)
    assert report.accepted == 60
    assert report.losses > 0
    assert report.count("not_final") == report.losses
