"""Workers that are slow to die: frozen beyond their lease, or told to stop in the middle of long tasks."""

from __future__ import annotations

import pytest

from taskframework.testing.eventually import eventually
from tests.chaos.conftest import MakeScenario
from tests.chaos.load import Job
from tests.chaos.scenario import Scenario

TYPES = ("async-work", "plain-work")


@pytest.mark.timeout(180)
async def test_a_frozen_worker_finds_its_tasks_finished_by_another(on_servers: MakeScenario) -> None:
    """One result, one refused write, whether the code can be stopped from outside (async) or not (plain)."""
    # A frozen worker also keeps the messages it is given: the next ones come when the sweeper doubts the first.
    async with on_servers(RECOVERY__REDISPATCH="2s") as scenario:
        [frozen] = await scenario.cluster.up(workers=1)
        await scenario.submit([Job(0, task_type, {"seconds": 2}) for task_type in TYPES])
        await scenario.begun(2)
        frozen.pause()
        other = scenario.cluster.add_worker()
        await other.ready()
        await scenario.drained(30)
        frozen.resume()

        async def both_were_refused() -> bool:
            return await frozen.metric("tasks_stale_writes_total") >= len(TYPES)

        await eventually(both_were_refused, timeout=20)
        for task_type in TYPES:
            assert await frozen.metric("tasks_stale_writes_total", task_type=task_type) == 1
        report = await scenario.finish()
        assert scenario.cluster.refused_writes() == 2
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 2}
    for task in scenario.found:
        assert (task["result"]["pid"], task["result"]["token"], task["crashes"]) == (other.pid, 2, 1)


@pytest.mark.timeout(180)
async def test_a_stopped_worker_hands_its_tasks_back(on_servers: MakeScenario) -> None:
    async with on_servers(SHUTDOWN__AWAIT_TERMINATION_TIMEOUT="1s") as scenario:
        # So long that they do not end while the other worker starts on a crowded machine.
        await hand_back(scenario, seconds=15, within=12)


@pytest.mark.chaos_long
@pytest.mark.timeout(180)
async def test_20_tasks_of_20_s_are_handed_back_after_a_grace_of_5_s(on_servers: MakeScenario) -> None:
    async with on_servers(WORKER__LEASE="30s", SHUTDOWN__AWAIT_TERMINATION_TIMEOUT="5s") as scenario:
        await hand_back(scenario, seconds=20, within=10)


async def hand_back(scenario: Scenario, *, seconds: float, within: float) -> None:
    """Stop a worker with 20 running tasks: it ends in time, the tasks end elsewhere, and nobody counts it."""
    [stopped] = await scenario.cluster.up(workers=1)
    await scenario.submit([Job(0, "async-work", {"seconds": seconds})] * 20)
    await scenario.running(20, worker_pid=stopped.pid)
    other = scenario.cluster.add_worker(environment={"CHAOS_PACE": "0.1"})  # nothing is interrupted there
    await other.ready()
    assert await stopped.stop() < within
    report = await scenario.finish()
    scenario.note(f"every task was handed back {max(task['releases'] for task in scenario.found)} times")
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": 20}
    for task in scenario.found:
        assert (task["attempts"], task["crashes"], task["releases"]) == (1, 0, 1)
        assert task["result"]["pid"] == other.pid
