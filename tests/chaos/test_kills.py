"""Workers that die: nothing is lost, nothing is completed twice."""

from __future__ import annotations

import asyncio
import time
from collections import deque

import pytest

from tests.chaos.cluster import Worker
from tests.chaos.conftest import MakeScenario
from tests.chaos.load import Job, schedule
from tests.chaos.scenario import INNOCENT, Scenario


async def kill_in_turn(scenario: Scenario, kills: int, *, every: float = 1.0) -> None:
    """Kill the worker that has run for the longest time and start it anew, again and again.

    It is done in time with the clock as far as the machine starts processes that quickly: with nobody left to go on,
    there would be nothing to look at.
    """
    began = time.monotonic()
    turns = deque(scenario.cluster.workers)
    for kill in range(kills):
        await asyncio.sleep(began + kill * every - time.monotonic())
        victim, others = turns.popleft(), list(turns)
        turns.append(victim)
        while not victim.is_ready or not any(other.is_ready for other in others):  # noqa: ASYNC110 - a log tells it
            await asyncio.sleep(0.05)
        victim.kill()
        victim.start()
    scenario.note(f"{kills} kills took {time.monotonic() - began:.0f} s")


@pytest.mark.timeout(180)
async def test_workers_are_killed_under_load(on_servers: MakeScenario, seed: int) -> None:
    async with on_servers(**INNOCENT) as scenario:
        await scenario.cluster.up(workers=2)
        async with scenario.submitting(schedule(seed, 150, 8)), scenario.unheard():
            await kill_in_turn(scenario, 4, every=2)
        report = await scenario.finish(recovery_limit=12)
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 150}


@pytest.mark.chaos_long
@pytest.mark.timeout(300)
async def test_2000_tasks_while_a_worker_is_killed_every_second(on_servers: MakeScenario, seed: int) -> None:
    async with on_servers(WORKER__LEASE="5s", **INNOCENT) as scenario:
        await scenario.cluster.up(workers=4)
        [api] = scenario.cluster.apis
        async with scenario.submitting(schedule(seed, 2000, 58)):
            await kill_in_turn(scenario, 60)
        await scenario.drained(90)
        # It looks once when it starts and then twice a minute.
        await api.stop()
        api.start()
        await api.ready()
        scenario.recorder.record("undriven", count=await api.metric("tasks_undriven"))
        report = await scenario.finish(recovery_limit=15)
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 2000}
    assert report.faults["kill -9"] == 60


@pytest.mark.timeout(180)
async def test_a_task_that_ends_its_worker_is_a_dead_letter_after_three(on_servers: MakeScenario, seed: int) -> None:
    async with on_servers(RETRY__INITIAL_DELAY="100ms", WORKER__LEASE="1s") as scenario:
        [worker] = await scenario.cluster.up(workers=1)
        # Beside it, in every crash but the last, run tasks that have done nothing.
        innocent = [Job(0, "async-work", {"seconds": 1}) for _ in range(10)]
        async with scenario.submitting([*innocent, Job(0, "exits", None), *schedule(seed, 20, 3)]):
            for _ in range(3):
                await restarted(scenario, worker)
        report = await scenario.finish()
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 30, "DEAD_LETTER": 1}
    [poison] = [task for task in scenario.found if task["status"] == "DEAD_LETTER"]
    assert (poison["task_type"], poison["crashes"], poison["attempts"]) == ("exits", 3, 3)


async def restarted(scenario: Scenario, worker: Worker) -> None:
    """Wait until the task ended its worker, and start it anew."""
    pid = worker.pid
    while worker.is_alive:  # noqa: ASYNC110 - the kernel tells nobody
        await asyncio.sleep(0.05)
    assert worker.exit_code == 139
    scenario.recorder.record("fault.start", fault="os._exit", target=worker.name, pids=[pid])
    worker.start()
