"""Makes the tasks of a type due at once after its pause has ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from taskframework.limits.pauses import Pauses
from taskframework.model.drivers import START
from taskframework.model.marks import EndPutOff, RestartQueueTimeout
from taskframework.model.query import MAX_LIMIT, TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.stores.base import TaskStore

#: How many tasks are made due by one write.
_PAGE_SIZE = 1_000
#: The first pages of a type are due this long before its pause ended, and each a second later than the page before. All
#: further pages are due at once. Sweepers send tasks in the order of these times, so no type waits until all tasks of
#: another type are sent, also if the two pauses ended some seconds apart.
_FIRST_PAGE_BEFORE, _NEXT_PAGE_AFTER = timedelta(seconds=10), timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class _Resuming:
    """The next page of a type whose pause has ended."""

    #: The page begins with the tasks that were put off until this time.
    since: datetime
    #: When they are due.
    due: datetime


class PauseRepair:
    """Looks which types are paused, and after a pause makes the tasks due that the sweeper put off during the pause.

    Each process does so: a sweeper that does not know yet that a pause has ended may put a task off after another
    process made it due. The other processes do not find tasks that one of them has made due.
    """

    def __init__(self, store: TaskStore, pauses: Pauses, longest: timedelta) -> None:
        """Prepare.

        Args:
            store: where the tasks are.
            pauses: which types are paused.
            longest: no sweeper puts a task off for longer than this.
        """
        self._store = store
        self._pauses = pauses
        self._longest = longest
        #: Types whose pause has ended and whose queue timeouts must still begin again.
        self._timeouts_to_restart: set[str] = set()
        #: Types that still have tasks to make due.
        self._resuming: dict[str, _Resuming] = {}

    async def run_once(self) -> bool:
        """Look once, and make one page of each type due.

        Returns:
            Whether there may be more.
        """
        ended = await self._pauses.refresh()
        self._timeouts_to_restart |= ended
        now = self._store.now()
        self._resuming |= dict.fromkeys(ended, _Resuming(since=now, due=now - _FIRST_PAGE_BEFORE))
        for task_type in sorted(self._timeouts_to_restart):
            await self._restart_queue_timeouts(task_type)
            self._timeouts_to_restart.discard(task_type)
        for task_type in sorted(self._resuming):
            await self._make_due(task_type)
        return bool(self._resuming)

    async def _make_due(self, task_type: str) -> None:
        """Make one page of the tasks due that were put off."""
        page, now = self._resuming[task_type], self._store.now()
        put_off = await self._store.put_off(task_type, page.since, now + self._longest, _PAGE_SIZE)
        await self._store.mark(*(EndPutOff(task.task_id, min(page.due, now)) for task in put_off))
        if len(put_off) < _PAGE_SIZE or self._pauses.is_paused(task_type):
            del self._resuming[task_type]
        else:
            self._resuming[task_type] = _Resuming(since=put_off[-1].due, due=page.due + _NEXT_PAGE_AFTER)

    async def _restart_queue_timeouts(self, task_type: str) -> None:
        """Let the queue timeouts of a type begin again."""
        if not (await self._store.upcoming(START, 1) or await self._store.due(START, 1)):
            return  # no task has a queue timeout; few installations use them
        wanted = TaskFilter(status=TaskStatus.QUEUED, task_type=task_type)
        cursor, has_more = None, True
        while has_more:
            page = await self._store.list_tasks(EVERYONE, wanted, limit=MAX_LIMIT, cursor=cursor)
            await self._store.mark(
                *(RestartQueueTimeout(task.task_id) for task in page.items if task.start_by is not None)
            )
            cursor, has_more = page.next_cursor, page.next_cursor is not None
