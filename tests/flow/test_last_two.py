"""The last two sub-tasks end at the same moment, in two processes: the parent goes on once, five hundred times over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta

import pytest

from taskframework import Settings
from taskframework.aggregation.reporter import SubtaskReporter
from taskframework.bus import EventBus
from taskframework.clock import SystemClock
from taskframework.model.attempts import Claim, Complete
from taskframework.model.events import TaskCompletedEvent, TaskResumedEvent
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import subtask_id
from taskframework.model.task import FAMILY_VERSION, new_claim_id, new_task_id
from taskframework.model.task_fields import ParentLink, Subtasks
from taskframework.model.transitions import Fence
from taskframework.model.waiting import WAIT_CHECK_INTERVAL
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.testing.factories import new_task
from taskframework.wiring.adapters import build_store, is_shared

_ROUNDS = 500
#: Rounds at once; each leaves the reporters with a pause of 0.2 s.
_AT_ONCE = 50
_LEASE = timedelta(minutes=5)


@dataclass(frozen=True)
class Side:
    """A process as far as this test needs one."""

    store: TaskStore
    moves: TaskMoves
    reporter: SubtaskReporter
    resumed: list[str]


@pytest.fixture
async def sides(settings: Callable[..., Settings]) -> AsyncIterator[list[Side]]:
    """Two processes; on a SQLite file, where one executes, two reporters in it."""
    chosen = settings()
    async with AsyncExitStack() as stack:
        stores = [build_store(chosen, SystemClock()) for _ in range(2 if is_shared(chosen) else 1)]
        for store in stores:
            await store.open()
            stack.push_async_callback(store.close)
        yield [_side(stores[number % len(stores)]) for number in range(2)]


def _side(store: TaskStore) -> Side:
    bus = EventBus()
    moves = TaskMoves(store, bus)
    reporter = SubtaskReporter(store, moves, SystemClock())
    resumed: list[str] = []
    bus.listen(TaskCompletedEvent, reporter.on_event, name="reporter")
    bus.listen(TaskResumedEvent, lambda event: resumed.append(event.task.task_id), name="test")
    return Side(store, moves, reporter, resumed)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("urls", ["embedded", "servers"], indirect=True)  # no broker is in it
async def test_two_sub_tasks_that_end_at_once_end_their_parent_exactly_once(sides: list[Side]) -> None:
    parents = []
    for _ in range(0, _ROUNDS, _AT_ONCE):
        parents += await asyncio.gather(*(_round(sides) for _ in range(_AT_ONCE)))
    for side in sides:
        await side.reporter.finished()
    store = sides[0].store
    told = sorted(sides[0].resumed + sides[1].resumed)
    assert told == sorted(parents)
    for parent_id in parents:
        parent = await store.get(parent_id, EVERYONE)
        assert parent is not None
        assert parent.subtasks is not None
        assert (parent.status, parent.stage, parent.subtasks.done) == (TaskStatus.QUEUED, "resume", 2)
        for slot in range(2):
            child = await store.get(subtask_id(parent_id, 0, 1, slot), EVERYONE)
            assert child is not None
            assert child.status is TaskStatus.COMPLETED


async def _round(sides: list[Side]) -> str:
    """A parent that waits for two running sub-tasks, which both end now."""
    store, parent_id = sides[0].store, new_task_id()
    now = store.now()
    waiting = new_task(
        task_id=parent_id,
        now=now,
        status=TaskStatus.WAITING,
        schema_version=FAMILY_VERSION,
        next_dispatch_at=None,
        check_at=now + WAIT_CHECK_INTERVAL,
        subtasks=Subtasks(2, None, resumes=True),
    )
    links = [ParentLink(parent_id, 0, slot) for slot in range(2)]
    children = [new_task(task_id=subtask_id(parent_id, 0, 1, link.slot), now=now, parent=link) for link in links]
    await store.insert([waiting, *children])
    fences = []
    for child in children:
        claim = Claim(child.task_id, child.dispatch_epoch, new_claim_id(), "worker-1", _LEASE)
        claimed = await store.apply(claim)
        assert claimed is not None
        fences.append(Fence(child.task_id, claimed.fencing_token, claim.claim_id))
    ends = [side.moves.make(Complete(fence, "worker-1", 1)) for side, fence in zip(sides, fences, strict=True)]
    assert None not in await asyncio.gather(*ends)
    return parent_id
