"""The parts of a large plan stay while somebody needs them, and go when the attempt that wrote them is over."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskframework.model.attempts import Claim, Complete, Release
from taskframework.model.marks import MarkSpawned
from taskframework.model.plans import PLAN, part_of
from taskframework.model.scope import EVERYONE
from taskframework.model.task import Task
from taskframework.model.task_fields import Subtasks
from taskframework.model.transitions import Fence
from taskframework.model.waiting import Wait
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.factories import new_task
from tests.unit.recovery.test_retention_of_keys import DAY, retention_of

SECOND = timedelta(seconds=1)


async def claimed(store: SqliteStore, task_id: str, epoch: int = 1) -> Task:
    task = await store.apply(Claim(task_id, epoch, f"claim {epoch}", "worker", 9 * DAY))
    assert task is not None
    return task


async def planning(store: SqliteStore, clock: FakeClock) -> tuple[Task, Fence]:
    """A task whose attempt has written two parts of a plan."""
    task = await claimed(store, (await insert_one(store, new_task(now=clock.now()))).task.task_id)
    await store.write_records([part_of(task, number, number, [], store.now()) for number in range(2)])
    return task, Fence(task.task_id, task.fencing_token, "claim 1")


async def parts_after(store: SqliteStore, clock: FakeClock, time: timedelta) -> int:
    clock.advance(time)
    while await retention_of(store).purge():
        pass
    return len(await store.list_records(PLAN.name, limit=9))


async def test_a_plan_is_kept_while_its_attempt_runs_and_until_its_sub_tasks_are_stored(
    store: SqliteStore, clock: FakeClock
) -> None:
    task, fence = await planning(store, clock)
    assert await parts_after(store, clock, 3 * DAY) == 2, "a very long attempt"
    waiting = await store.apply(Wait(fence, "worker", Subtasks(2, None, plan_records=2), None, None, None))
    assert waiting is not None
    assert waiting.spawn_at is not None
    assert await parts_after(store, clock, 2 * DAY) == 2, "nobody could store them yet"
    await store.mark(MarkSpawned(task.task_id, 0, 1))
    assert await parts_after(store, clock, DAY + SECOND) == 0


@pytest.mark.parametrize("is_claimed_again", [True, False])
async def test_plan_parts_of_an_attempt_that_planned_nothing_in_the_end_are_removed(
    store: SqliteStore, clock: FakeClock, is_claimed_again: bool
) -> None:
    task, fence = await planning(store, clock)
    assert await store.apply(Release(fence, "worker")) is not None
    if is_claimed_again:
        await claimed(store, task.task_id, 2)
    assert await parts_after(store, clock, DAY - SECOND) == 2
    assert await parts_after(store, clock, 2 * SECOND) == 0


async def test_plan_parts_of_a_task_that_completed_are_removed(store: SqliteStore, clock: FakeClock) -> None:
    task, fence = await planning(store, clock)
    assert await store.apply(Complete(fence, "worker", None)) is not None
    assert await parts_after(store, clock, 2 * DAY) == 0
    assert await store.get(task.task_id, EVERYONE) is not None
