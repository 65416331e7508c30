"""The retrier: replays all sub-tasks of a batch that did not succeed, after an operator or the owner requested a retry.

The batch stores this request, and the time before which a sub-task must have ended to be replayed. So any process may
carry out the retry, and may repeat it: a sub-task that was replayed already ends later than that time.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from taskframework import failpoint
from taskframework.aggregation.parent_work import BATCH_SIZE, ParentWork, move_driver
from taskframework.model.batches import EndRetry
from taskframework.model.drivers import RETRY
from taskframework.model.events import TaskEvent
from taskframework.model.interventions import Replay
from taskframework.model.marks import CascadeAgain, MoveDriver
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.scope import EVERYONE
from taskframework.model.status import REPLAYABLE
from taskframework.model.task import Task
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore

#: The value of `by` when the replay comes from the batch.
BY_BATCH = "batch"
#: The pause until the retrier looks again at sub-tasks that cannot be replayed yet.
_NOT_YET_PAUSE = timedelta(seconds=1)


class BatchRetrier(ParentWork):
    """Replays the sub-tasks of batches that did not succeed."""

    description = "what failed in batch"

    def __init__(self, store: TaskStore, moves: TaskMoves, dispatch_after: timedelta) -> None:
        """Prepare; `dispatch_after` as in `NewTasks`."""
        super().__init__()
        self._store = store
        self._moves = moves
        self._dispatch_after = dispatch_after

    def on_event(self, event: TaskEvent) -> None:
        """Begin a retry at once, as a listener, in the process in which the batch was reopened."""
        if event.task.retry_at is not None:
            self.start(event.task)

    async def work_on(self, batch: Task) -> None:
        """Replay the sub-tasks that did not succeed, unless another process is doing so.

        Raises:
            StoreError: if some sub-tasks could not be replayed; the batch is due again later.
        """
        reserved = await self._reserve(batch)
        round = RoundOfSubtasks(batch.task_id, batch.generation, batch.subtasks.round if batch.subtasks else 1)
        last_slot, is_complete = -1, True
        while reserved is not None and (due := RETRY.time_of(reserved)) is not None:
            found = await self._store.list_subtasks(round, limit=BATCH_SIZE, after_slot=last_slot, statuses=REPLAYABLE)
            if not found:
                later = MoveDriver(reserved.task_id, RETRY, due, _NOT_YET_PAUSE)
                await self._store.apply(EndRetry(reserved.task_id, due) if is_complete else later)
                return
            replayed = await asyncio.gather(*(self._replay(subtask, reserved) for subtask in found))
            is_complete = is_complete and all(replayed)
            await failpoint.reached("retry.after_replay")
            last_slot = max(subtask.parent.slot for subtask in found if subtask.parent is not None)
            reserved = await self._reserve(reserved)
            if reserved is not None and self._is_stopping:
                return
        # Another process took the batch, or it was cancelled, maybe long before the last replay here.
        if last_slot >= 0:
            await self._store.mark(CascadeAgain(round.parent_id, round.generation, round.round))

    async def _replay(self, subtask: Task, batch: Task) -> bool:
        """Replay a sub-task if it ended before the retry was requested.

        Returns:
            False if it cannot be replayed yet: the sub-tasks that it has itself are still being cancelled.
        """
        if not _is_to_replay(subtask, batch):
            return True
        replay = Replay(subtask.task_id, EVERYONE, BY_BATCH, self._dispatch_after, subtask.revision)
        if await self._moves.repair(replay) is not None:
            return True
        present = await self._store.get(subtask.task_id, EVERYONE)
        return present is None or not _is_to_replay(present, batch)

    async def _reserve(self, batch: Task) -> Task | None:
        """Return the batch, if it is still to be retried and no other process has begun with it."""
        return await move_driver(self._store, batch, RETRY, self._reservation_time)


def _is_to_replay(subtask: Task, batch: Task) -> bool:
    until = None if batch.batch is None else batch.batch.retry_until
    is_early = until is not None and subtask.finished_at is not None and subtask.finished_at <= until
    return is_early and subtask.status in REPLAYABLE
