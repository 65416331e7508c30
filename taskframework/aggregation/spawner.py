"""The spawner: stores the sub-tasks that a waiting task planned, and publishes the event of each.

The plan is in the parent, or in records if it is large, and the ids of the sub-tasks follow from the plan. So any
process may store them, and may do so again: sub-tasks that exist are not stored twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import islice

from taskframework import failpoint
from taskframework.aggregation.parent_work import BATCH_SIZE, ParentWork, move_driver
from taskframework.bus import EventBus
from taskframework.model.drivers import SPAWN
from taskframework.model.events import TaskEvent, TaskSubmittedEvent
from taskframework.model.marks import CascadeAgain, MarkSpawned
from taskframework.model.subtasks import planned_tasks
from taskframework.model.task import Task
from taskframework.plans import delete_plan, read_plan
from taskframework.stores.base import TaskStore


class Spawner(ParentWork):
    """Stores planned sub-tasks."""

    description = "the plan of task"

    def __init__(
        self, store: TaskStore, bus: EventBus, dispatch_after: timedelta, wait_for_room: Callable[[], Awaitable[None]]
    ) -> None:
        """Prepare.

        Args:
            store: where the sub-tasks are stored.
            bus: gets the event of each.
            dispatch_after: as in `NewTasks`.
            wait_for_room: waits while the events of many tasks of this process are still to be published.
        """
        super().__init__()
        self._store = store
        self._bus = bus
        self._dispatch_after = dispatch_after
        self._wait_for_room = wait_for_room

    def on_event(self, event: TaskEvent) -> None:
        """Begin to store sub-tasks at once, as a listener, in the process in which a task planned them."""
        if event.task.spawn_at is not None:
            self.start(event.task)

    async def work_on(self, parent: Task) -> None:
        """Store every sub-task of the plan; stop as soon as the parent no longer waits, or another process stores them.

        Args:
            parent: the waiting parent.

        Raises:
            StoreError: if some sub-tasks could not be stored; the plan is due again later.
        """
        subtasks = parent.subtasks
        if subtasks is None or parent.spawn_at is None:
            return
        # If the parent waited here until its plan was due, a repair may have begun to store the plan.
        present = await self._reserve_again(parent) if parent.spawn_at <= self._store.now() else parent
        if present is None:
            return
        async for first_slot, groups in read_plan(self._store, parent):
            tasks = planned_tasks(parent, groups, self._store.now, self._dispatch_after, first_slot=first_slot)
            while batch := list(islice(tasks, BATCH_SIZE)):
                if present is None:
                    # If this process paused, the parent may have stopped waiting long before the last part was stored.
                    await self._store.mark(CascadeAgain(parent.task_id, parent.generation, subtasks.round))
                    return
                await self._insert(batch)
                await failpoint.reached("spawn.after_insert")
                if len(batch) == BATCH_SIZE or subtasks.plan_records:
                    await self._wait_for_room()
                    present = await self._reserve_again(present)
                    if present is not None and self._is_stopping:
                        return
        await self._store.mark(MarkSpawned(parent.task_id, parent.generation, subtasks.round))
        await delete_plan(self._store, parent)

    async def _insert(self, tasks: Sequence[Task]) -> None:
        outcomes = await self._store.insert(tasks)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
            if outcome.is_new:
                await self._bus.publish(TaskSubmittedEvent(outcome.task))

    async def _reserve_again(self, parent: Task) -> Task | None:
        """Return the parent, if its plan is still to be stored and no other process has begun to store it."""
        return await move_driver(self._store, parent, SPAWN, self._reservation_time)
