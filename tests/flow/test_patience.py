"""A task that waits for a signal for a week, while its process is stopped and started again and again."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from taskframework import (
    BackgroundTaskExecutable,
    Settings,
    Signal,
    SubtaskSummary,
    TaskContext,
    TaskFramework,
    TaskStatus,
)
from taskframework.model.scope import EVERYONE
from taskframework.testing import FakeClock, eventually

_DAY = timedelta(days=1)


class Approval(BackgroundTaskExecutable[None, dict[str, Any]]):
    """Waits for somebody's yes, for ten days at most."""

    task_type = "approval"

    async def execute(self, context: TaskContext[None]) -> Any:
        return context.wait_for(signal="approved", timeout=10 * _DAY)

    async def on_signal(self, context: TaskContext[None], signal: Signal) -> dict[str, Any]:
        return {"payload": signal.payload, "timed_out": signal.timed_out}


class Childless(BackgroundTaskExecutable[int, int]):
    """Plans empty rounds."""

    task_type = "childless"

    async def execute(self, context: TaskContext[int]) -> None:
        await context.submit_subtasks(Approval, [])

    async def on_subtasks_finished(self, context: TaskContext[int], summary: SubtaskSummary) -> int:
        if summary.round < context.parameters:
            await context.submit_subtasks(Approval, [])
        return summary.total


def framework_at(folder: Path, clock: FakeClock) -> TaskFramework:
    url = f"sqlite:///{folder / 'tasks.db'}"
    framework = TaskFramework(Settings.model_validate({"store": {"url": url}}), clock=clock)
    framework.register(Approval)
    framework.register(Childless)
    return framework


async def test_a_task_waits_for_a_week_over_restarts_and_goes_on(tmp_path: Path) -> None:
    clock = FakeClock()
    async with framework_at(tmp_path, clock).running() as framework:
        handle = await framework.submit(Approval)
        await eventually(lambda: is_waiting(framework, handle.task_id))
    for _ in range(7):
        async with framework_at(tmp_path, clock).running() as framework:
            for _ in range(24):
                clock.advance(_DAY / 24)
                await looked(framework, clock)
            assert await is_waiting(framework, handle.task_id)
    async with framework_at(tmp_path, clock).running() as framework:
        handle = framework.handle(handle.task_id)
        await handle.signal("approved", {"by": "alice"}, key="once")
        await handle.signal("approved", {"by": "alice"}, key="once")
        assert await handle.result(timeout=60) == {"payload": {"by": "alice"}, "timed_out": False}
        assert [entry.type for entry in (await handle.task()).history].count("resumed") == 1


async def test_a_signal_that_is_there_before_the_task_waits_is_heard_at_once(tmp_path: Path) -> None:
    clock = FakeClock()  # it stands still, so that no repair looks
    async with framework_at(tmp_path, clock).store_only() as framework:
        handle = await framework.submit(Approval)
        await handle.signal("approved", "yes")
    async with framework_at(tmp_path, clock).running() as framework:
        handle = framework.handle(handle.task_id)
        assert await handle.result(timeout=60) == {"payload": "yes", "timed_out": False}


async def test_an_empty_round_ends_at_once(tmp_path: Path) -> None:
    async with framework_at(tmp_path, FakeClock()).running() as framework:  # it stands still, so that no repair looks
        assert await (await framework.submit(Childless, 5)).result(timeout=60) == 0


async def test_a_task_whose_signal_does_not_come_in_time_continues_as_timed_out(tmp_path: Path) -> None:
    clock = FakeClock()
    async with framework_at(tmp_path, clock).running() as framework:
        handle = await framework.submit(Approval)
        await eventually(lambda: is_waiting(framework, handle.task_id))
    clock.advance(11 * _DAY)
    async with framework_at(tmp_path, clock).running() as framework:
        assert await framework.handle(handle.task_id).result(timeout=60) == {"payload": None, "timed_out": True}


async def is_waiting(framework: TaskFramework, task_id: str) -> bool:
    task = await framework.services.tasks.get(task_id, EVERYONE)
    return task.status is TaskStatus.WAITING


async def looked(framework: TaskFramework, clock: FakeClock) -> None:
    """Wait until the repair of parents has looked at the new time."""
    [parents] = [loop for loop in framework.process.repairs if loop.name == "parents"]
    looks = parents.looks
    clock.advance(2)
    await eventually(lambda: parents.looks > looks)
