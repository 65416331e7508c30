"""The sweeper and a backlog: what was never sent goes out, what may still be queued is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import cast

import pytest

from taskframework.brokers.base import Broker
from taskframework.model.drivers import DISPATCH, Driver
from taskframework.model.marks import Mark, ReserveDispatch
from taskframework.model.status import Priority, TaskStatus
from taskframework.model.task import Task
from taskframework.recovery.sweeper import Sweeper
from taskframework.stores.base import TaskStore
from taskframework.stores.replies import DueTask
from taskframework.submission.producer import TaskMessageProducer
from taskframework.testing.clock import FakeClock
from taskframework.testing.factories import new_task

SECOND = timedelta(seconds=1)
FIRST, LONGEST = 20 * SECOND, 900 * SECOND
BATCH = 5


class Backlog:
    """A store, a broker with one queue and a producer in one: just what the sweeper asks of them."""

    is_connected = True

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.tasks: dict[str, Task] = {}
        self.depth: int | None = 0
        self.sent: list[str] = []
        self.paused: set[str] = set()
        #: Tasks that are found and cannot be changed here.
        self.refused: set[str] = set()

    def put(self, number: int = 1, status: TaskStatus = TaskStatus.QUEUED) -> list[Task]:
        """Tasks that are due now and of which nothing was ever sent."""
        now = self.clock.now()
        tasks = [new_task(now=now, next_dispatch_at=now, status=status) for _ in range(number)]
        self.tasks |= {task.task_id: task for task in tasks}
        return tasks

    def now(self) -> datetime:
        return self.clock.now()

    async def due(self, driver: Driver, limit: int) -> Sequence[DueTask]:
        assert driver is DISPATCH
        due = [
            DueTask(task.task_id, task.task_type, task.lane, task.status, 1, task.dispatches, 0, 0, task.not_before, at)
            for task in self.tasks.values()
            if driver.is_due(task, self.clock.now()) and (at := task.next_dispatch_at) is not None
        ]
        return sorted(due, key=lambda task: task.due)[:limit]

    async def apply(self, transition: Mark) -> Task | None:
        if transition.task_id in self.refused:
            return None
        task = transition.apply(self.tasks[transition.task_id], self.clock.now())
        if task is not None:
            self.tasks[task.task_id] = task
        return task

    async def mark(self, *marks: Mark) -> None:
        for mark in marks:
            await self.apply(mark)

    async def newest_running(self, task_type: str, lane: Priority) -> datetime | None:
        running = [task.not_before for task in self.tasks.values() if task.status is TaskStatus.RUNNING]
        return max(running, default=None)

    async def queue_depth(self, task_type: str, lane: Priority) -> int | None:
        return self.depth

    async def dispatch(self, task: Task) -> bool:
        self.sent.append(task.task_id)
        return True

    def lane_of(self, task: DueTask) -> Priority:
        return task.lane

    def reservation(self, task_id: str, dispatch_epoch: int) -> ReserveDispatch:
        return ReserveDispatch(task_id, dispatch_epoch, FIRST, LONGEST)


@pytest.fixture
def backlog(clock: FakeClock) -> Backlog:
    return Backlog(clock)


@pytest.fixture
def sweeper(backlog: Backlog) -> Sweeper:
    return Sweeper(
        cast(TaskStore, backlog),
        cast(Broker, backlog),
        cast(TaskMessageProducer, backlog),
        BATCH,
        lambda task_type: task_type in backlog.paused,
    )


async def swept(sweeper: Sweeper) -> int:
    """Sweep until nothing is due; how many looks that took."""
    looks = 1
    while await sweeper.sweep():
        looks += 1
    return looks


async def test_tasks_that_were_never_sent_are_sent_however_full_the_queue_is(
    sweeper: Sweeper, backlog: Backlog
) -> None:
    backlog.depth = 100_000
    tasks = backlog.put(2 * BATCH)
    assert await swept(sweeper) == 3
    assert sorted(backlog.sent) == sorted(task.task_id for task in tasks)


async def test_a_queue_that_nobody_empties_never_gets_a_second_message(
    sweeper: Sweeper, backlog: Backlog, clock: FakeClock
) -> None:
    backlog.put(3 * BATCH)
    await swept(sweeper)
    backlog.depth = 3 * BATCH
    for _ in range(100):
        clock.advance(LONGEST.total_seconds())
        await swept(sweeper)
    assert len(backlog.sent) == 3 * BATCH


async def test_a_task_that_is_left_alone_hides_no_other(sweeper: Sweeper, backlog: Backlog, clock: FakeClock) -> None:
    backlog.put(3 * BATCH)
    await swept(sweeper)
    backlog.depth = 3 * BATCH
    clock.advance(FIRST.total_seconds())
    (new,) = backlog.put()
    backlog.sent.clear()
    await swept(sweeper)
    assert backlog.sent == [new.task_id]


@pytest.mark.parametrize("depth", [0, None])
async def test_an_empty_or_missing_queue_holds_no_message(
    sweeper: Sweeper, backlog: Backlog, clock: FakeClock, depth: int | None
) -> None:
    backlog.put(2)
    await swept(sweeper)
    clock.advance(FIRST.total_seconds())
    backlog.depth = depth
    await swept(sweeper)
    assert len(backlog.sent) == 4


async def test_a_message_that_younger_tasks_have_overtaken_is_lost(
    sweeper: Sweeper, backlog: Backlog, clock: FakeClock
) -> None:
    (lost,) = backlog.put()
    await swept(sweeper)
    backlog.depth = 1_000  # it never gets empty
    clock.advance(1)
    backlog.put(status=TaskStatus.RUNNING)
    clock.advance(FIRST.total_seconds() - 1)
    await swept(sweeper)
    assert backlog.sent == [lost.task_id] * 2


async def test_a_message_lost_in_a_very_long_queue_is_found(
    sweeper: Sweeper, backlog: Backlog, clock: FakeClock
) -> None:
    way = 4 * LONGEST
    (lost,) = backlog.put()
    await swept(sweeper)
    backlog.depth = 1_000
    clock.advance((way + LONGEST).total_seconds() + 1)
    running = new_task(now=clock.now() - way, status=TaskStatus.RUNNING)
    backlog.tasks[running.task_id] = running
    await swept(sweeper)
    assert backlog.sent == [lost.task_id] * 2


async def test_a_message_behind_what_runs_is_waited_for(sweeper: Sweeper, backlog: Backlog, clock: FakeClock) -> None:
    backlog.put(status=TaskStatus.RUNNING)
    clock.advance(1)
    (waiting,) = backlog.put()
    await swept(sweeper)
    backlog.depth = 1_000
    for _ in range(10):
        clock.advance(LONGEST.total_seconds())
        await swept(sweeper)
    assert backlog.sent == [waiting.task_id]


async def test_how_far_a_queue_came_is_remembered_when_nothing_runs(
    sweeper: Sweeper, backlog: Backlog, clock: FakeClock
) -> None:
    (lost, other) = backlog.put(2)
    await swept(sweeper)
    backlog.depth = 1_000
    clock.advance(FIRST.total_seconds())
    # Looked at again while a younger task runs: the other is sent again. Then nothing runs any more.
    (younger,) = backlog.put(status=TaskStatus.RUNNING)
    backlog.tasks[lost.task_id] = backlog.tasks[lost.task_id].evolve(next_dispatch_at=clock.now() + SECOND)
    await swept(sweeper)
    assert backlog.sent.count(other.task_id) == 2
    del backlog.tasks[younger.task_id]
    clock.advance(1)
    backlog.tasks[lost.task_id] = backlog.tasks[lost.task_id].evolve(next_dispatch_at=clock.now() - SECOND)
    await swept(sweeper)
    assert backlog.sent.count(lost.task_id) == 2


async def test_tasks_of_a_paused_type_are_looked_at_ever_more_seldom_and_stay_known_as_not_sent(
    sweeper: Sweeper, backlog: Backlog, clock: FakeClock
) -> None:
    backlog.paused = {"test-task"}
    tasks = backlog.put(3 * BATCH)
    assert await swept(sweeper) == 4
    assert await swept(sweeper) == 1, "they do not stand in the way"
    looks = 0
    for _ in range(int(4 * LONGEST.total_seconds())):
        clock.advance(1)
        looks += await swept(sweeper) - 1
    assert looks < 4 * 12, "three looks take all, and the pause between two doubles up to the longest"
    assert {backlog.tasks[task.task_id].dispatches for task in tasks} == {0}
    backlog.paused = set()
    clock.advance(LONGEST.total_seconds())
    await swept(sweeper)
    assert len(backlog.sent) == 3 * BATCH


async def test_a_message_that_waits_in_the_queue_of_a_paused_type_is_still_there_afterwards(
    sweeper: Sweeper, backlog: Backlog, clock: FakeClock
) -> None:
    backlog.put(BATCH)
    await swept(sweeper)
    backlog.paused, backlog.depth = {"test-task"}, BATCH
    for _ in range(20):
        clock.advance(LONGEST.total_seconds())
        await swept(sweeper)
    backlog.paused = set()
    clock.advance(LONGEST.total_seconds())
    await swept(sweeper)
    assert len(backlog.sent) == BATCH


async def test_a_sweeper_that_cannot_reserve_the_first_task_leaves_the_others_too(
    sweeper: Sweeper, backlog: Backlog
) -> None:
    first, *_ = backlog.put(BATCH)
    backlog.refused = {first.task_id}
    assert not await sweeper.sweep(), "the other sweeper is not to be met again at once"
    assert backlog.sent == []
    assert len(await backlog.due(DISPATCH, BATCH)) == BATCH, "nothing was reserved either"


async def test_a_task_that_cannot_be_reserved_at_all_holds_up_no_other(sweeper: Sweeper, backlog: Backlog) -> None:
    spoiled, *others = backlog.put(BATCH)
    backlog.refused = {spoiled.task_id}
    for _ in range(2):
        await sweeper.sweep()
    assert backlog.sent == [task.task_id for task in others]


async def test_a_task_that_another_process_sent_meanwhile_is_not_put_off(
    sweeper: Sweeper, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    [task] = backlog.put()
    backlog.paused = {task.task_type}
    find = backlog.due

    async def find_then_sent(driver: Driver, limit: int) -> Sequence[DueTask]:
        found = await find(driver, limit)
        await backlog.apply(backlog.reservation(task.task_id, task.dispatch_epoch))
        return found

    monkeypatch.setattr(backlog, "due", find_then_sent)
    await sweeper.sweep()
    assert backlog.tasks[task.task_id].dispatches == 1, "it would count as a task without a message"
