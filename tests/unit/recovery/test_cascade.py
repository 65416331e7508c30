"""The cascade: which sub-tasks it cancels, who does it, and how long it looks for more."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from taskframework.aggregation import cascade as cascading
from taskframework.aggregation.cascade import Cascade
from taskframework.aggregation.parent_work import ParentWork
from taskframework.bus import EventBus
from taskframework.model.drivers import CASCADE
from taskframework.model.marks import MoveDriver
from taskframework.model.query import Page, TaskFilter
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import subtask_id
from taskframework.model.task import Task
from taskframework.model.task_fields import Lease, ParentLink, Subtasks
from taskframework.moves import TaskMoves
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
PLAN = [{"task_type": "part", "items": []}]


@pytest.fixture
def cascade(store: SqliteStore) -> Cascade:
    return Cascade(store, TaskMoves(store, EventBus()))


async def parent_of(store: SqliteStore, *rounds: int, **fields: Any) -> Task:
    """A parent that has a live sub-task in each of these rounds, and is over unless it is told otherwise."""
    now = store.now()
    over = {"status": TaskStatus.CANCELLED, "next_dispatch_at": None, "finished_at": now, "cascade_at": now}
    parent = new_task(task_id="parent", now=now, **{**over, "subtasks": Subtasks(1, None, round=len(rounds)), **fields})
    links = [(number, ParentLink("parent", 0, slot, number)) for slot, number in enumerate(rounds)]
    below = [
        new_task(task_id=subtask_id("parent", 0, number, link.slot), now=now, parent=link) for number, link in links
    ]
    await store.insert([parent, *below])
    return parent


async def present(store: SqliteStore, task_id: str = "parent") -> Task:
    found = await store.get(task_id, EVERYONE)
    assert found is not None
    return found


async def statuses(store: SqliteStore, *rounds: int) -> list[str]:
    ids = [subtask_id("parent", 0, number, slot) for slot, number in enumerate(rounds)]
    return [(await present(store, one)).status.value for one in ids]


async def test_every_round_of_an_ended_parent_is_cancelled(store: SqliteStore, cascade: Cascade) -> None:
    await cascade.work_on(await parent_of(store, 1, 2, 3))
    assert await statuses(store, 1, 2, 3) == ["CANCELLED"] * 3
    assert (await present(store)).cascade_at is None


async def test_work_that_waits_is_done_once_and_on_the_parent_as_it_was_read_last(store: SqliteStore) -> None:
    class Counting(ParentWork):
        description = "the count of"

        def __init__(self) -> None:
            super().__init__()
            self.worked_on: list[Task] = []
            self.go = asyncio.Event()

        async def work_on(self, parent: Task) -> None:
            self.worked_on.append(parent)
            await self.go.wait()

    parents = [new_task(task_id=f"p{number}", now=store.now(), revision=1) for number in range(9)]
    work = Counting()
    for parent in parents:
        work.start(parent)
    last = parents[-1].evolve(cascade_at=store.now() + MINUTE)
    for parent in (last, last.evolve(revision=0)):  # one is due again, and the other was read before the first
        work.start(parent)
    assert len(work._background.tasks) == len(parents), "what waits already costs nothing more"
    await eventually(lambda: len(work.worked_on) == 8)
    work.go.set()
    await work.finished()
    assert work.worked_on == [*parents[:-1], last]
    work.start(last)
    await work.finished()
    assert work.worked_on == [*parents[:-1], last, last]


@pytest.mark.parametrize(("is_awaited", "newest"), [(True, "QUEUED"), (False, "CANCELLED")])
async def test_the_round_for_which_a_parent_waits_goes_on(
    store: SqliteStore, cascade: Cascade, is_awaited: bool, newest: str
) -> None:
    subtasks = Subtasks(1, None, round=2, is_awaited=is_awaited)
    waiting = {"status": TaskStatus.WAITING, "finished_at": None, "check_at": store.now() + MINUTE}
    await cascade.work_on(await parent_of(store, 1, 2, **waiting, subtasks=subtasks))
    assert await statuses(store, 1, 2) == ["CANCELLED", newest]


async def test_a_round_whose_cascade_was_overtaken_by_those_of_later_rounds_is_not_forgotten(
    store: SqliteStore, cascade: Cascade
) -> None:
    subtasks = Subtasks(1, None, round=5, is_awaited=True)
    waiting = {"status": TaskStatus.WAITING, "finished_at": None, "check_at": store.now() + MINUTE}
    await cascade.work_on(await parent_of(store, 1, 2, 4, 5, **waiting, subtasks=subtasks))
    assert await statuses(store, 1, 2, 4, 5) == ["CANCELLED"] * 3 + ["QUEUED"]


async def test_a_sub_task_that_changes_its_status_meanwhile_is_found(
    store: SqliteStore, cascade: Cascade, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = await parent_of(store, 1)
    lists, before = store.list_tasks, list[TaskFilter]()

    async def moves_on(scope: Scope, wanted: TaskFilter, **place: Any) -> Page[Task]:
        if wanted.status is TaskStatus.QUEUED and not before:
            before.append(wanted)  # it is claimed for an instant, and none of the lists of this pass has it
            return Page((), None)
        return await lists(scope, wanted, **place)

    monkeypatch.setattr(store, "list_tasks", moves_on)
    await store.insert(
        [new_task(task_id="another", now=store.now(), status=TaskStatus.RETRYING, parent=ParentLink("parent", 0, 7))]
    )
    await cascade.work_on(parent)
    assert await statuses(store, 1) == ["CANCELLED"]


async def test_a_cascade_that_another_process_reserved_is_left_to_it(store: SqliteStore, cascade: Cascade) -> None:
    parent = await parent_of(store, 1)
    assert parent.cascade_at is not None
    assert await store.apply(MoveDriver("parent", CASCADE, parent.cascade_at, MINUTE)) is not None
    await cascade.work_on(parent)
    assert await statuses(store, 1) == ["QUEUED"]


@pytest.mark.parametrize("change", ["the parent is reopened", "the sub-task is replayed"])
async def test_a_sub_task_that_was_read_before_a_retry_is_left_alone(
    store: SqliteStore, cascade: Cascade, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    parent, lists = await parent_of(store, 1), store.list_tasks

    async def changes_after_the_read(scope: Scope, wanted: TaskFilter, **place: Any) -> Page[Task]:
        page = await lists(scope, wanted, **place)
        if page.items and change == "the parent is reopened":
            due = (await present(store)).cascade_at
            assert due is not None
            await store.apply(MoveDriver("parent", CASCADE, due, None))
            return page
        return Page(tuple(task.evolve(generation=task.generation - 1) for task in page.items), page.next_cursor)

    monkeypatch.setattr(store, "list_tasks", changes_after_the_read)
    await cascade.work_on(parent)
    assert await statuses(store, 1) == ["QUEUED"]


@pytest.mark.parametrize(
    "growing",
    [
        {"subtasks": Subtasks(1, PLAN)},
        {"subtasks": Subtasks(1, None, plan_records=1)},
        {"subtasks": Subtasks(None, None)},
        {"retry_at": True},
    ],
    ids=["a plan", "a large plan", "an open batch", "a retry"],
)
async def test_a_cascade_looks_a_minute_for_sub_tasks_that_are_still_to_be_stored(
    store: SqliteStore, clock: FakeClock, cascade: Cascade, growing: dict[str, Any]
) -> None:
    if "retry_at" in growing:
        growing = {"retry_at": store.now()}
    await cascade.work_on(await parent_of(store, 1, **growing))
    again = (await present(store)).cascade_at
    assert again is not None
    assert store.now() < again < store.now() + MINUTE
    clock.advance(MINUTE)
    await cascade.work_on(await present(store))
    assert (await present(store)).cascade_at is None


async def test_running_sub_tasks_of_every_page_are_asked_to_stop(
    store: SqliteStore, cascade: Cascade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascading, "BATCH_SIZE", 1)
    parent = await parent_of(store, subtasks=Subtasks(2, None))
    lease = Lease("worker-1", "claim", store.now() + MINUTE)
    running: dict[str, Any] = {"status": TaskStatus.RUNNING, "lease": lease, "next_dispatch_at": None}
    below = [new_task(task_id=f"child-{slot}", parent=ParentLink("parent", 0, slot), **running) for slot in range(2)]
    await store.insert(below)
    await cascade.work_on(parent)
    assert [(await present(store, task.task_id)).cancel is not None for task in below] == [True, True]
