"""The sweeper: dispatches due tasks that have no message."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime

from taskframework import failpoint
from taskframework.brokers.base import Broker
from taskframework.model.drivers import DISPATCH
from taskframework.model.marks import ForgetDispatch, MakeDue, Mark, MarkDispatched, ReserveDispatch
from taskframework.model.status import Priority
from taskframework.model.task import Task
from taskframework.recovery.loop import make_reservations
from taskframework.stores.base import TaskStore
from taskframework.stores.replies import DueTask
from taskframework.submission.producer import TaskMessageProducer

#: How many tasks `forget_dispatches` makes due at once.
_FORGET_BATCH_SIZE = 1_000


async def forget_dispatches(store: TaskStore) -> None:
    """Make every waiting task due at its `not_before`, because all messages that were sent are known to be lost."""
    previous: Sequence[DueTask] = ()
    while (waiting := await store.upcoming(DISPATCH, _FORGET_BATCH_SIZE)) and waiting != previous:
        await store.mark(*(ForgetDispatch(task.task_id) for task in waiting))
        previous = waiting


class Sweeper:
    """Repairs dispatch. Several sweepers may run: the reservation lets one win, and the claim drops second messages."""

    def __init__(
        self,
        store: TaskStore,
        broker: Broker,
        producer: TaskMessageProducer,
        limit: int,
        is_paused: Callable[[str], bool] = lambda task_type: False,
    ) -> None:
        """Prepare to sweep.

        Args:
            store: where the tasks are.
            broker: where the messages go.
            producer: sends the messages.
            limit: how many tasks one look takes.
            is_paused: returns whether a type is paused, so that its tasks may not begin now.
        """
        self._store = store
        self._broker = broker
        self._producer = producer
        self._limit = limit
        self._is_paused = is_paused
        #: By queue: the latest `not_before` of the tasks that were seen running. Older messages were given out before.
        #: This is an estimate. It may be later than the truth: if a queue was emptied by hand, if a retry runs whose
        #: message came through a lower lane (`priority.retries`), or if a worker started the next task of a stream
        #: without a message (`ClaimTurn`). Then messages that are still queued are sent again, once in each back-off.
        self._newest_started: dict[tuple[str, Priority], datetime] = {}
        #: By queue: the task that could not be reserved at the last look.
        self._refused: dict[tuple[str, Priority], str] = {}

    async def sweep(self) -> bool:
        """Dispatch one group of due tasks.

        While the broker is away, no task is reserved: no back-off grows, and all tasks are due when the broker is back.

        Returns:
            Whether there may be more due.
        """
        if not self._broker.is_connected:
            return False
        due = await self._store.due(DISPATCH, self._limit)
        if not due:
            return False
        queues: dict[tuple[str, Priority], list[DueTask]] = defaultdict(list)
        for task in due:
            queues[task.task_type, self._producer.lane_of(task)].append(task)
        worth_another_look = [await self._sweep_queue(*queue, tasks) for queue, tasks in queues.items()]
        return len(due) == self._limit and any(worth_another_look)

    async def _sweep_queue(self, task_type: str, lane: Priority, tasks: list[DueTask]) -> bool:
        """Dispatch the due tasks of one queue, or move their due times.

        Returns:
            Whether another look at once may find other tasks: not if no task was left alone and no message was sent.
        """
        if self._is_paused(task_type):
            await self._store.mark(*map(self._put_off_mark, tasks))
            return True
        sent_before = [task for task in tasks if task.dispatches]
        queued = await self._still_queued(task_type, lane, sent_before) if sent_before else []
        await self._store.mark(*map(self._left_alone_mark, queued))
        left_alone = {task.task_id for task in queued}
        missing = [task for task in tasks if task.task_id not in left_alone]
        reserved = await self._reserve(task_type, lane, missing) if missing else []
        if reserved:
            await failpoint.reached("sweep.after_reserve")
        sent = await asyncio.gather(*map(self._producer.dispatch, reserved))
        return bool(queued) or any(sent)

    async def _reserve(self, task_type: str, lane: Priority, tasks: list[DueTask]) -> list[Task]:
        """Reserve the first task, and the others if no other sweeper was faster.

        Sweepers that look at the same time find the same tasks in the same order. The reply to the reservation of one
        task says which sweeper won it. The reply for many tasks does not, so each sweeper would send a message. If the
        first task is refused twice in a row, no other sweeper has it, because it would not be due: this skips the task.
        """
        first, *others = map(self._reservation, tasks)
        refused_before = self._refused.pop((task_type, lane), None)
        reserved = await make_reservations(self._store, [first])
        if not reserved:
            self._refused[task_type, lane] = first.task_id
            if refused_before != first.task_id:
                return []
        return reserved + await make_reservations(self._store, others)

    async def _still_queued(self, task_type: str, lane: Priority, tasks: list[DueTask]) -> list[DueTask]:
        """Return the tasks whose message may still be in the queue; another message would only make the queue longer.

        A queue gives out its messages in order. If a task runs that became claimable after the message of another task
        was sent, that message was given out before, or lost. An empty queue has no message. A message that a busy
        consumer holds counts as gone: it is sent again, once per back-off, so that a free consumer can take the task.

        If an earlier look sent no message for this reason, the message was sent earlier than the due time says. In a
        queue that takes longer than the longest back-off, no message would ever be sent again; so `not_before` of the
        task limits the estimate.
        """
        if not await self._broker.queue_depth(task_type, lane):
            return []
        newest = await self._store.newest_running(task_type, lane)
        newest_started = max(filter(None, (newest, self._newest_started.get((task_type, lane)))), default=None)
        if newest_started is None:
            return tasks
        self._newest_started[task_type, lane] = newest_started
        return [task for task in tasks if self._latest_sending_time(task) >= newest_started]

    def _reservation(self, task: DueTask) -> ReserveDispatch:
        return self._producer.reservation(task.task_id, task.dispatch_epoch)

    def _left_alone_mark(self, task: DueTask) -> MarkDispatched:
        """Return the mark for a task whose message seems to be in the queue: it gets the due time of a new message."""
        reservation = self._reservation(task)
        return MarkDispatched(task.task_id, task.dispatch_epoch, reservation.first, reservation.longest, task.due)

    def _put_off_mark(self, task: DueTask) -> Mark:
        """Return the mark for a task whose type is paused: the longer it has waited, the later it is looked at again,
        so that many such tasks do not delay other tasks. A task without a message is still known to have none.
        """
        if task.dispatches:
            return self._left_alone_mark(task)
        reservation = self._reservation(task)
        waited = self._store.now() - task.not_before
        delay = min(max(waited, reservation.first), reservation.longest)
        return MakeDue(task.task_id, task.dispatch_epoch, delay, due=task.due)

    def _latest_sending_time(self, task: DueTask) -> datetime:
        """Return the latest time at which the message of a task may have been sent."""
        reservation = self._reservation(task)
        marked = reservation.dispatched_at(task.due, task.dispatches)
        return min(marked, task.not_before + reservation.longest)
