"""The cascade: cancels the sub-tasks for which no parent waits any more.

A parent that ends, or continues before all of its sub-tasks have ended, sets `cascade_at`. A cancelled sub-task that
has sub-tasks itself does the same, so that whole trees are cancelled, level by level.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from taskframework import failpoint
from taskframework.aggregation.parent_work import BATCH_SIZE, ParentWork, move_driver
from taskframework.model.drivers import CASCADE
from taskframework.model.events import TaskEvent
from taskframework.model.interventions import BY_PARENT, Cancel
from taskframework.model.query import SlotCursor, TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import LIVE, TaskStatus
from taskframework.model.subtasks import LATE_SPAWN_PAUSE, may_grow_until
from taskframework.model.task import Task
from taskframework.model.wording import pluralize
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore

logger = logging.getLogger(__name__)


class Cascade(ParentWork):
    """Cancels the sub-tasks of rounds for which their parent no longer waits."""

    description = "the cancel of the sub-tasks of task"

    def __init__(self, store: TaskStore, moves: TaskMoves) -> None:
        super().__init__()
        self._store = store
        self._moves = moves

    def on_event(self, event: TaskEvent) -> None:
        """Begin a cascade, as a listener for the moves after which a parent no longer waits."""
        if event.task.cascade_at is not None:
            self.start(event.task)

    async def work_on(self, parent: Task) -> None:
        """Cancel the sub-tasks for which a parent does not wait, unless another process is doing so.

        Raises:
            StoreError: if some sub-tasks could not be cancelled; the parent is due again later.
        """
        present = await move_driver(self._store, parent, CASCADE, self._reservation_time)
        cancelled = 1
        while present is not None and cancelled:  # again after a cancel: a sub-task may move between two lists
            present, cancelled = await self._cancel_unneeded(present)
        if present is not None:
            await self._end(present)

    async def _cancel_unneeded(self, parent: Task) -> tuple[Task | None, int]:
        """Go once through the lists of sub-tasks, and cancel those for which the parent does not wait.

        Returns:
            The parent, or None if the rest is left to another process; and how many sub-tasks were cancelled.
        """
        present, count = parent, 0
        async with aclosing(self._unneeded_subtasks(parent)) as parts:
            async for live in parts:
                # After the page was read: who reopens the parent takes the reservation away, and replays sub-tasks only
                # then. So what is cancelled here was not replayed.
                reserved = await move_driver(self._store, present, CASCADE, self._reservation_time)
                if reserved is None or self._is_stopping:
                    return None, count
                present = reserved
                cancelled = sum(await asyncio.gather(*(self._cancel(subtask, present) for subtask in live)))
                if cancelled:
                    text = "cancelled %s of task %s, which does not wait for them"
                    logger.info(text, pluralize(cancelled, "sub-task"), parent.task_id)
                count += cancelled
                await failpoint.reached("cascade.after_cancel")
        return present, count

    async def _unneeded_subtasks(self, parent: Task) -> AsyncGenerator[Sequence[Task], None]:
        """Yield the live sub-tasks for which the parent does not wait, in parts. They may belong to any round: an
        earlier cascade stops when the parent stops waiting for the next round.
        """
        if parent.subtasks is None:
            return
        is_awaited = parent.status is TaskStatus.WAITING and parent.subtasks.is_awaited
        first_kept = parent.subtasks.round + (0 if is_awaited else 1)
        for status in sorted(LIVE):
            filter = TaskFilter(parent_task_id=parent.task_id, status=status)
            cursor: str | None = SlotCursor(parent.generation, first_kept, 0).encode()
            while cursor is not None:
                page = await self._store.list_tasks(EVERYONE, filter, limit=BATCH_SIZE, cursor=cursor)
                cursor = page.next_cursor
                if page.items:
                    yield page.items

    async def _cancel(self, subtask: Task, parent: Task) -> bool:
        """Cancel a sub-task; return whether this call cancelled it."""
        if subtask.cancel is not None:
            return False
        reason = f"its parent is {parent.status}" if parent.status.is_final else "its parent continued without it"
        cancel = Cancel(subtask.task_id, EVERYONE, BY_PARENT, reason, subtask.generation)
        return await self._moves.repair(cancel) is not None

    async def _end(self, parent: Task) -> None:
        """End the cascade, because no sub-task is left to cancel. If sub-tasks were being stored when the parent ended,
        look again for a while.

        The plan stays in the parent, so that all other sub-tasks are stored if the parent is reopened.
        """
        until = may_grow_until(parent)
        is_early = until is not None and self._store.now() < until
        await move_driver(self._store, parent, CASCADE, LATE_SPAWN_PAUSE if is_early else None)
