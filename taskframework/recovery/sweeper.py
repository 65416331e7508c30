"""The sweeper: dispatches what is due and has no message, and ends what is past its deadline."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Protocol

from taskframework import failpoint
from taskframework.brokers.base import Broker
from taskframework.bus import EventBus
from taskframework.model.events import event_for
from taskframework.model.interventions import Expire
from taskframework.model.marks import ReserveDispatch
from taskframework.model.status import Priority
from taskframework.model.task import Task
from taskframework.recovery.loop import repaired
from taskframework.stores.base import DueTask, TaskStore


class Dispatcher(Protocol):
    """What the sweeper needs of the producer."""

    async def dispatch(self, task: Task) -> bool: ...

    def reservation(self, task_id: str, dispatch_epoch: int) -> ReserveDispatch: ...


class Sweeper:
    """Repairs dispatch. Several may run: the reservation lets one win, and a second message is dropped at the claim."""

    def __init__(self, store: TaskStore, broker: Broker, bus: EventBus, dispatcher: Dispatcher, batch: int) -> None:
        self._store = store
        self._broker = broker
        self._bus = bus
        self._dispatcher = dispatcher
        self._batch = batch

    async def sweep(self) -> bool:
        """Dispatch one batch of due tasks.

        While the broker is away nothing is reserved, so no back-off grows and everything is due when it is back.

        Returns:
            Whether there may be more due.
        """
        if not self._broker.is_connected:
            return False
        due = await self._store.due_for_dispatch(self._batch)
        if not due:
            return False
        queues: dict[tuple[str, Priority], list[DueTask]] = defaultdict(list)
        for task in due:
            queues[task.task_type, task.lane].append(task)
        sent = [await self._sweep_queue(task_type, lane, tasks) for (task_type, lane), tasks in queues.items()]
        return len(due) == self._batch and any(sent)

    async def expire(self) -> bool:
        """End, or ask to end, one batch of tasks past their deadline."""
        overdue = await self._store.past_deadline(self._batch)
        for task_id in overdue:
            task = await repaired(self._store, Expire(task_id))
            await failpoint.reached("expire.after_write")
            if task is not None:
                await self._bus.publish(event_for(task))
        return len(overdue) == self._batch

    async def _sweep_queue(self, task_type: str, lane: Priority, tasks: list[DueTask]) -> bool:
        depth = await self._broker.queue_depth(task_type, lane)
        # A queue that holds a message for each of its due tasks needs workers, not more messages. If one task's
        # message is lost behind duplicates of others, those drain and the numbers differ again.
        if depth is not None and depth > 0 and depth >= await self._store.count_due(task_type, lane):
            return False
        return any(await asyncio.gather(*map(self._dispatch, tasks)))

    async def _dispatch(self, due: DueTask) -> bool:
        reservation = self._dispatcher.reservation(due.task_id, due.dispatch_epoch)
        reserved = await repaired(self._store, reservation)
        if reserved is None:
            return False
        await failpoint.reached("sweep.after_reserve")
        return await self._dispatcher.dispatch(reserved)
