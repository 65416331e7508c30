"""Priorities: while several lanes wait they share the slots by weight, and a retry may travel one lane lower."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from taskframework import BackgroundTaskExecutable, RetryableError, TaskContext, TaskFramework
from taskframework.brokers.base import Delivery
from taskframework.testing.eventually import eventually
from taskframework.worker.consumer import TaskConsumer
from taskframework.worker.intake import Intake
from tests.flow.conftest import BOTH, Run
from tests.support.kitchen_sink import Waits

# The fast path carries the same messages for these as for the tests of the lifecycle, which run without it too.
pytestmark = pytest.mark.parametrize("urls", BOTH, indirect=True)

TASKS = 60
#: Turns in which high and low get 8 and 1 of 9.
TURNS = 36


class Notes(BackgroundTaskExecutable[str, None]):
    """Notes in which order it is started, and takes a moment, so that the next one of each lane is there by then."""

    task_type = "notes"
    order: ClassVar[list[str]] = []

    async def execute(self, context: TaskContext[str]) -> None:
        self.order.append(context.parameters)
        await asyncio.sleep(0.02)


class FailsOnce(BackgroundTaskExecutable[None, None]):
    task_type = "fails-once"

    async def execute(self, context: TaskContext[None]) -> None:
        if context.attempt == 1:
            raise RetryableError("not yet")


async def test_a_flood_of_high_tasks_leaves_the_low_ones_their_share(run: Run) -> None:
    Notes.order = []
    async with run(extra=[Notes], concurrency=1) as framework:
        await framework.submit("waits")
        await eventually(lambda: Waits.started == 1, what="the only slot is taken")
        for priority in ("high", "low"):
            await asyncio.gather(*(framework.submit("notes", priority, priority=priority) for _ in range(TASKS)))
        await framework.services.bus.drain()
        # What is in hand goes first; then it takes in more of each lane.
        await eventually(lambda: "notes" not in _intake(framework)._consumed, what="it has seen that lanes compete")
        Waits.gate.set()
        await eventually(lambda: len(Notes.order) == 2 * TASKS, timeout=30)
    # While the next high task is on its way, the slot goes to a low one.
    assert 2 <= Notes.order[:TURNS].count("low") <= TURNS // 3


def _intake(framework: TaskFramework) -> Intake:
    worker = framework.process.worker
    assert worker is not None
    return worker._intake


@pytest.mark.parametrize(("retries", "lane"), [("same", "normal"), ("lower", "low")])
async def test_a_retry_goes_one_lane_lower_if_the_settings_require_it(
    run: Run, retries: str, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes: list[str] = []
    take = TaskConsumer.take_delivery

    def noting(self: TaskConsumer, consumed_as: str, delivery: Delivery) -> None:
        lanes.append(delivery.lane.value)
        take(self, consumed_as, delivery)

    monkeypatch.setattr(TaskConsumer, "take_delivery", noting)
    async with run(extra=[FailsOnce], priority={"retries": retries}) as framework:
        handle = await framework.submit("fails-once")
        await handle.result(timeout=60)
        task = await handle.task()
    assert (lanes, task.priority) == (["normal", lane], "normal")
