"""Parents and their sub-tasks while workers are killed: each parent goes on once, with every outcome."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from tests.chaos.conftest import MakeScenario
from tests.chaos.load import Job
from tests.chaos.scenario import INNOCENT, Scenario
from tests.chaos.test_embedded import DEV
from tests.chaos.test_kills import kill_in_turn


def parents(count: int, children: int, *, within: float, levels: int = 1, seconds: float = 0.02) -> list[Job]:
    """So many parents, submitted evenly within some seconds."""
    tree = {"children": children, "levels": levels, "seconds": seconds}
    return [Job(within * number / count, "parent", tree) for number in range(count)]


async def run_with_kills(
    scenario: Scenario, jobs: list[Job], *, workers: int, kills: int, every: float, timeout: float
) -> None:
    await scenario.cluster.up(workers=workers)
    async with scenario.submitting(jobs):
        await kill_in_turn(scenario, kills, every=every)
    await scenario.drained(timeout)


def roots_of(scenario: Scenario) -> list[dict[str, Any]]:
    return [task for task in scenario.found if task["parent"] is None]


@pytest.mark.timeout(180)
async def test_parents_go_on_once_while_workers_are_killed(on_servers: MakeScenario) -> None:
    async with on_servers(**INNOCENT) as scenario:
        await run_with_kills(scenario, parents(20, 20, within=6), workers=2, kills=3, every=2, timeout=60)
        report = await scenario.finish()
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 20 * 21}
    assert {task["result"]["succeeded"] for task in roots_of(scenario)} == {20}


@pytest.mark.timeout(180)
async def test_a_tree_that_is_cancelled_in_the_middle_leaves_nothing_alive(on_servers: MakeScenario) -> None:
    """Three levels: 4 tasks wait for 16, which wait for 64; the worker that could finish them is killed as well."""
    async with on_servers(**INNOCENT) as scenario:
        [worker] = await scenario.cluster.up(workers=1)
        await scenario.submit([Job(0, "parent", {"children": 4, "levels": 3, "seconds": 20.0})])
        await scenario.running(16, timeout=60)
        [root] = [task for task in await scenario.states() if task["parent"] is None]
        worker.kill()
        await cancelled(scenario.cluster.apis[0].address, root["_id"])
        worker.start()
        report = await scenario.finish(timeout=90)
    assert report.violations == ()
    assert set(report.statuses) <= {"CANCELLED", "COMPLETED"}
    assert [task["status"] for task in roots_of(scenario)] == ["CANCELLED"]


@pytest.mark.timeout(180)
async def test_parents_go_on_in_one_process_that_is_killed(embedded: MakeScenario) -> None:
    """The same on SQLite and the embedded broker, whose process does everything."""
    async with embedded(**INNOCENT) as scenario:
        dev = scenario.cluster.add_api(command=DEV)
        await dev.ready()
        async with scenario.submitting(parents(10, 20, within=4)):
            for _ in range(2):
                await asyncio.sleep(2)
                dev.kill()
                dev.start()
                await dev.ready()
        report = await scenario.finish(timeout=90)
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 10 * 21}


@pytest.mark.chaos_long
@pytest.mark.timeout(600)
async def test_10000_subtasks_of_one_parent_while_workers_are_killed_at_random(
    on_servers: MakeScenario, seed: int
) -> None:
    chance = random.Random(seed)
    async with on_servers(WORKER__LEASE="5s", listens=False, **INNOCENT) as scenario:
        await scenario.cluster.up(workers=4)
        await scenario.submit(parents(1, 10_000, within=0))
        for _ in range(20):
            await asyncio.sleep(chance.uniform(0.2, 3))
            ready = [worker for worker in scenario.cluster.workers if worker.is_ready]
            if ready:
                victim = chance.choice(ready)
                victim.kill()
                victim.start()
        await scenario.drained(300)
        report = await scenario.finish(timeout=300)
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 10_001}
    [root] = roots_of(scenario)
    assert root["result"]["succeeded"] == 10_000


@pytest.mark.chaos_long
@pytest.mark.timeout(600)
async def test_200_parents_of_50_while_workers_are_killed(on_servers: MakeScenario) -> None:
    async with on_servers(WORKER__LEASE="5s", listens=False, **INNOCENT) as scenario:
        await run_with_kills(scenario, parents(200, 50, within=1), workers=4, kills=20, every=2, timeout=300)
        report = await scenario.finish(timeout=300)
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 200 * 51}


async def cancelled(address: str, task_id: str) -> Mapping[str, Any]:
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        answer = await client.post(f"{address}/api/v1/tasks/{task_id}/cancel")
    assert answer.status_code == 202, answer.text
    found: Mapping[str, Any] = answer.json()
    return found
