"""Makes the tasks of a type due at once when its pause has ended."""

from __future__ import annotations

from taskframework.limits.pauses import Pauses
from taskframework.model.marks import ForgetDispatch, WaitAnew
from taskframework.model.query import MAX_LIMIT, TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import CLAIMABLE
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore


class PauseRepair:
    """Looks which types are paused, and makes the tasks due that the sweeper put off meanwhile.

    Each process does so for itself: a sweeper that has not heard of the end of a pause yet may put a task off after
    another process made it due.
    """

    def __init__(self, store: TaskStore, pauses: Pauses) -> None:
        self._store = store
        self._pauses = pauses
        #: Types whose pause has ended and whose tasks are still to be made due.
        self._going_on: set[str] = set()

    async def look(self) -> bool:
        """Look once; there is never more to do at once."""
        self._going_on |= await self._pauses.look()
        for task_type in sorted(self._going_on):
            await self._make_due(task_type)
            self._going_on.discard(task_type)
        return False

    async def _make_due(self, task_type: str) -> None:
        """Make those tasks due that have no message, and let their queue timeouts begin anew."""
        for status in sorted(CLAIMABLE):
            wanted = TaskFilter(status=status, task_type=task_type)
            cursor, has_more = None, True
            while has_more:
                page = await self._store.list_tasks(EVERYONE, wanted, limit=MAX_LIMIT, cursor=cursor)
                put_off = [task.task_id for task in page.items if _is_put_off(task)]
                # Only if it still is: made due once by each process, it would also be sent once by each.
                await self._store.mark(*(ForgetDispatch(task_id, only_put_off=True) for task_id in put_off))
                await self._store.mark(*(WaitAnew(task.task_id) for task in page.items if task.start_by is not None))
                cursor, has_more = page.next_cursor, page.next_cursor is not None


def _is_put_off(task: Task) -> bool:
    return not task.dispatches and task.next_dispatch_at is not None and task.next_dispatch_at > task.not_before
