"""Which parents `doctor` names: those that nobody repairs, and those whose counts are wrong for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from taskframework.model.drivers import CASCADE, CHECK, RETRY, SEAL, SPAWN
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import Counts, subtask_id
from taskframework.model.task import Task
from taskframework.model.task_fields import Batch, ParentLink, Subtasks
from taskframework.model.waiting import CountSubtasks
from taskframework.operations.parents import COUNTED_WITHIN, Miscounted, find_miscounted, find_overdue
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task

MINUTE = timedelta(minutes=1)
DONE, FAILED, LIVE = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.QUEUED


def parent(store: SqliteStore, name: str = "parent", **fields: Any) -> Task:
    usual = {"status": TaskStatus.WAITING, "next_dispatch_at": None, "check_at": store.now() + 20 * MINUTE}
    return new_task(task_id=name, now=store.now(), **(usual | fields))


async def put_family(store: SqliteStore, statuses: list[TaskStatus], subtasks: Subtasks, **fields: Any) -> None:
    below = [
        new_task(task_id=subtask_id("parent", 0, 1, slot), parent=ParentLink("parent", 0, slot), status=status)
        for slot, status in enumerate(statuses)
    ]
    await store.insert([parent(store, subtasks=subtasks, **fields), *below])


async def found_by(
    store: SqliteStore, clock: FakeClock, meanwhile: Callable[[], Any] | None = None
) -> list[Miscounted]:
    """What two looks find, with what happens between them."""
    looking = asyncio.create_task(find_miscounted(store, clock, 10))
    await eventually(lambda: clock.sleeping or looking.done())
    if meanwhile is not None:
        await meanwhile()
    clock.advance(COUNTED_WITHIN)
    return (await looking)[0]


@pytest.mark.parametrize(
    ("statuses", "subtasks"),
    [
        ([DONE, DONE, LIVE], Subtasks(3, None, done=1, succeeded=1)),
        ([DONE, LIVE, LIVE], Subtasks(3, None, done=2, succeeded=2)),
        ([DONE, FAILED, LIVE], Subtasks(3, None, done=2, succeeded=2, policy="allow_failures")),
        ([DONE, DONE, DONE], Subtasks(None, None, done=2, succeeded=2)),
        ([DONE, DONE], Subtasks(2, None, done=2, succeeded=2)),  # it should have ended
        ([LIVE, LIVE], Subtasks(3, None)),  # one is not there
        ([LIVE, LIVE], Subtasks(3, {"what": "is left"})),  # and nobody is about to store it
    ],
)
async def test_counts_that_are_wrong_are_found(
    store: SqliteStore, clock: FakeClock, statuses: list[TaskStatus], subtasks: Subtasks
) -> None:
    await put_family(store, statuses, subtasks)
    (found,) = await found_by(store, clock)
    assert (found.parent.task_id, found.parent.subtasks) == ("parent", subtasks)
    assert found.counts == Counts(statuses.count(DONE), statuses.count(FAILED), 0)
    assert found.missing == max(0, (subtasks.planned or 0) - len(statuses))


@pytest.mark.parametrize(
    ("statuses", "fields"),
    [
        ([DONE, LIVE], {"subtasks": Subtasks(2, None, done=1, succeeded=1)}),
        ([DONE, DONE], {"subtasks": Subtasks(None, None, done=2, succeeded=2)}),  # an upload that goes on
        ([LIVE], {"subtasks": Subtasks(2, {"what": "is left"}), "spawn_at": FakeClock().now() + MINUTE}),
        ([DONE], {"subtasks": Subtasks(2, None, is_awaited=False)}),  # it waits for something else
        ([DONE], {"subtasks": Subtasks(2, None), "status": TaskStatus.CANCELLED, "check_at": None}),
        ([FAILED, DONE], {"subtasks": Subtasks(2, None), "retry_at": FakeClock().now() + MINUTE}),
        ([], {"subtasks": None}),  # it waits for a signal
    ],
)
async def test_parents_whose_counts_are_right_or_not_needed_are_not_found(
    store: SqliteStore, clock: FakeClock, statuses: list[TaskStatus], fields: dict[str, Any]
) -> None:
    await put_family(store, statuses, **fields)
    assert await found_by(store, clock) == []
    assert clock.monotonic() == COUNTED_WITHIN.total_seconds(), "nobody paused for it"


async def test_a_parent_that_is_counted_during_the_look_is_not_found(store: SqliteStore, clock: FakeClock) -> None:
    await put_family(store, [DONE, DONE, LIVE], Subtasks(3, None, done=1, succeeded=1))

    async def ended_and_counted() -> None:
        before = await store.get("parent", EVERYONE)
        assert before is not None
        by_status = await store.count_subtasks(RoundOfSubtasks("parent", 0, 1))
        assert await store.apply(CountSubtasks.of(before, Counts.of(by_status))) is not None
        one_more = new_task(task_id="late", parent=ParentLink("parent", 0, 3), status=DONE)
        await store.insert([one_more])  # so that the new count is behind as well

    assert await found_by(store, clock, ended_and_counted) == []


async def test_the_parents_not_counted_for_longest_are_looked_at_first(store: SqliteStore, clock: FakeClock) -> None:
    wrong = Subtasks(3, None, done=1, succeeded=1)
    minutes = {"newest": 29, "late": -2, "old": 3, "older": 1}
    times = {name: store.now() + number * MINUTE for name, number in minutes.items()}
    await store.insert([parent(store, name, check_at=at, subtasks=wrong) for name, at in times.items()])
    looking = asyncio.create_task(find_miscounted(store, clock, 3))
    await eventually(lambda: clock.sleeping)
    clock.advance(COUNTED_WITHIN)
    found, looked_at = await looking
    assert [one.parent.task_id for one in found] == ["late", "older", "old"]
    assert looked_at == 3


@pytest.mark.parametrize("driver", [SPAWN, CHECK, CASCADE, SEAL, RETRY], ids=lambda driver: driver.name)
async def test_a_parent_whose_driver_is_overdue_is_found(store: SqliteStore, driver: Any) -> None:
    now = store.now()
    usual = {"subtasks": Subtasks(None, None), "batch": Batch()}
    await store.insert(
        [
            parent(store, "in time", **usual | {driver.field: now - MINUTE / 2}),
            parent(store, "late", **usual | {driver.field: now - 2 * MINUTE}),
            parent(store, "later", **usual | {driver.field: now - 3 * MINUTE}),
        ]
    )
    assert [(one.task_id, one.driver, now - one.since) for one in await find_overdue(store, 5)] == [
        ("later", driver, 3 * MINUTE),
        ("late", driver, 2 * MINUTE),
    ]
    assert [one.task_id for one in await find_overdue(store, 1)] == ["later"]
