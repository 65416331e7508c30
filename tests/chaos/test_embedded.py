"""The embedded default under the same treatment: the only process is killed again and again."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.checker import Report
from tests.chaos.cluster import APP
from tests.chaos.conftest import MakeScenario
from tests.chaos.load import schedule
from tests.chaos.scenario import INNOCENT, Scenario
from tests.support.command import COMMAND

DEV = (*COMMAND, "dev", "--app", APP)


@pytest.mark.timeout(180)
async def test_the_only_process_is_killed_under_load(embedded: MakeScenario) -> None:
    async with embedded(**INNOCENT) as scenario:
        report = await kill_again_and_again(scenario, tasks=100, seconds=5)
    assert report.faults["kill -9"] >= 2


@pytest.mark.chaos_long
@pytest.mark.timeout(240)
async def test_the_only_process_is_killed_for_a_minute(embedded: MakeScenario) -> None:
    async with embedded(**INNOCENT) as scenario:
        report = await kill_again_and_again(scenario, tasks=1000, seconds=60)
    assert report.faults["kill -9"] >= 10


async def kill_again_and_again(scenario: Scenario, *, tasks: int, seconds: float) -> Report:
    """While tasks are submitted, kill the process each time that it was ready for two seconds."""
    dev = scenario.cluster.add_api(command=DEV)
    await dev.ready()
    async with scenario.submitting(schedule(scenario.seed, tasks, seconds)) as submitting:
        while not submitting.done():
            await asyncio.wait([submitting], timeout=2)
            dev.kill()
            dev.start()
            await dev.ready()
    report = await scenario.finish(timeout=90, recovery_limit=30)
    assert report.violations == ()
    assert report.statuses == {"COMPLETED": tasks}
    return report
