"""The sweeper: dispatches what is due and has no message."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from taskframework import failpoint
from taskframework.brokers.base import Broker
from taskframework.errors import TaskUnreadableError
from taskframework.model.drivers import DISPATCH
from taskframework.model.marks import ForgetDispatch, MakeDue, Mark, MarkDispatched, ReserveDispatch
from taskframework.model.status import Priority
from taskframework.model.task import Task
from taskframework.recovery.loop import reserved
from taskframework.stores.base import DueTask, TaskStore


class Dispatcher(Protocol):
    """What the sweeper needs of the producer."""

    async def dispatch(self, task: Task) -> bool: ...

    def reservation(self, task_id: str, dispatch_epoch: int) -> ReserveDispatch: ...

    def lane_of(self, task: DueTask) -> Priority: ...


#: Tasks of one look at what is dispatched later.
_LOOK = 1_000


async def forget_dispatches(store: TaskStore) -> None:
    """Make every task that waits due at its own time: the messages that were sent are known to be gone."""
    before: Sequence[DueTask] = ()
    while (waiting := await store.upcoming(DISPATCH, _LOOK)) and waiting != before:
        with contextlib.suppress(TaskUnreadableError):  # the processes of the release that wrote it sweep it
            await store.mark(*(ForgetDispatch(task.task_id) for task in waiting))
        before = waiting


class Sweeper:
    """Repairs dispatch. Several may run: the reservation lets one win, and a second message is dropped at the claim."""

    def __init__(
        self,
        store: TaskStore,
        broker: Broker,
        dispatcher: Dispatcher,
        batch: int,
        is_paused: Callable[[str], bool] = lambda task_type: False,
    ) -> None:
        """Prepare to sweep.

        Args:
            store: where the tasks are.
            broker: where the messages go.
            dispatcher: sends them.
            batch: tasks of one look.
            is_paused: tells of a task type whose tasks are not to begin.
        """
        self._store = store
        self._broker = broker
        self._dispatcher = dispatcher
        self._batch = batch
        self._is_paused = is_paused
        #: For each queue, since when the youngest task could be claimed that was seen running.
        self._fronts: dict[tuple[str, Priority], datetime] = {}

    async def sweep(self) -> bool:
        """Dispatch one batch of due tasks.

        While the broker is away nothing is reserved, so no back-off grows and everything is due when it is back.

        Returns:
            Whether there may be more due.
        """
        if not self._broker.is_connected:
            return False
        due = await self._store.due(DISPATCH, self._batch)
        if not due:
            return False
        queues: dict[tuple[str, Priority], list[DueTask]] = defaultdict(list)
        for task in due:
            queues[task.task_type, self._dispatcher.lane_of(task)].append(task)
        sent = [await self._sweep_queue(task_type, lane, tasks) for (task_type, lane), tasks in queues.items()]
        return len(due) == self._batch and any(sent)

    async def _sweep_queue(self, task_type: str, lane: Priority, tasks: list[DueTask]) -> bool:
        if self._is_paused(task_type):
            with contextlib.suppress(TaskUnreadableError):
                await self._store.mark(*map(self._put_off, tasks))
            return True
        sent_before = [task for task in tasks if task.dispatches]
        queued = await self._still_queued(task_type, lane, sent_before) if sent_before else []
        with contextlib.suppress(TaskUnreadableError):  # the processes of the release that wrote it sweep it
            await self._store.mark(*map(self._left_alone, queued))
        left_alone = {task.task_id for task in queued}
        missing = [task for task in tasks if task.task_id not in left_alone]
        won = await reserved(self._store, map(self._reservation, missing))
        if won:
            await failpoint.reached("sweep.after_reserve")
        sent = await asyncio.gather(*map(self._dispatcher.dispatch, won))
        return bool(queued) or any(sent)

    async def _still_queued(self, task_type: str, lane: Priority, tasks: list[DueTask]) -> list[DueTask]:
        """The tasks whose message may still be in the queue; another one would only make the queue longer.

        A queue gives out its messages in their order. If a task runs that became claimable after the message of
        another was sent, that message was given out before, or lost; and an empty queue holds none. What a busy
        consumer has in its hands is sent again, once in each back-off: whoever is free takes it.

        When a task was left alone, its message may have been sent earlier than it seems. In a queue that takes longer
        than the longest back-off this alone would go on for ever, so that its own time counts as well.
        """
        if not await self._broker.queue_depth(task_type, lane):
            return []
        newest = await self._store.newest_running(task_type, lane)
        front = max(filter(None, (newest, self._fronts.get((task_type, lane)))), default=None)
        if front is None:
            return tasks
        self._fronts[task_type, lane] = front
        return [task for task in tasks if self._sent_by(task) >= front]

    def _reservation(self, task: DueTask) -> ReserveDispatch:
        return self._dispatcher.reservation(task.task_id, task.dispatch_epoch)

    def _left_alone(self, task: DueTask) -> MarkDispatched:
        """The mark of a message that is there already: it has as long again as a new one would."""
        reservation = self._reservation(task)
        return MarkDispatched(task.task_id, task.dispatch_epoch, reservation.first, reservation.longest, task.due)

    def _put_off(self, task: DueTask) -> Mark:
        """The mark of a task whose type is paused: the longer it waits, the more seldom it is looked at, so that many
        of them do not stand in the way of others. One without a message stays known as such.
        """
        if task.dispatches:
            return self._left_alone(task)
        reservation = self._reservation(task)
        waited = self._store.now() - task.not_before
        delay = min(max(waited, reservation.first), reservation.longest)
        return MakeDue(task.task_id, task.dispatch_epoch, delay)

    def _sent_by(self, task: DueTask) -> datetime:
        """By when its message was sent, if it was."""
        reservation = self._reservation(task)
        marked = reservation.dispatched_at(task.due, task.dispatches)
        return min(marked, task.not_before + reservation.longest)
