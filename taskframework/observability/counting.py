"""How many tasks there are: one process counts for all, and only while the metrics are read.

Counting reads the whole index of the statuses, the records of all streams, all failed tasks and, on MongoDB, every live
task: with a million tasks this takes up to some tenths of a second. So the last counts are in a record that all
processes share. A process that finds them too old counts again, if its write to the record succeeds first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from taskframework.background import Background, end
from taskframework.errors import StoreError
from taskframework.model.counts import COUNTS, TaskCounts
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.stores.base import TaskStore

#: The shortest time for which counts are used. A scrape comes every 10 to 60 seconds.
_MIN_USE = timedelta(seconds=5)
#: Counts are used this many times longer than counting took, so that counting costs a database one percent of one core.
_USE_PER_COST = 100
#: The longest time for which counts are used. A count may also take long because the database stopped for a moment.
_MAX_USE = timedelta(minutes=1)
#: If a counting process has no result by then, another process may count. A query gives up after `store.timeout`.
_MAX_COUNT_TIME = timedelta(minutes=1)
#: `tasks_undriven` and `tasks_halted_streams` count up to this: any value above 0 needs an operator.
_MAX_COUNTED_PROBLEMS = 1_000
#: With more dead letters than this, they are not counted. Reading each, to see whether it was discarded, takes 0.2 s.
_MAX_COUNTED_DEAD = 100_000


class TaskCounter:
    """Keeps the counts of one process as new as the limits above allow."""

    def __init__(self, store: TaskStore) -> None:
        """Prepare to count."""
        self._store = store
        #: Called with the newest counts at each look.
        self.on_look: list[Callable[[TaskCounts], None]] = []
        self._newest: TaskCounts | None = None
        self._counting = Background()

    async def refresh(self) -> TaskCounts | None:
        """Return the newest counts; if they are too old, count or let another process count.

        If a caller gives up waiting, the count continues, and the next caller finds its result.

        Returns:
            The counts; while the store is away the last counts, or None if there are none.
        """
        if not self._counting.tasks:
            self._counting.start(self._count_or_read())
        await self._counting.finished()
        return self._newest

    async def close(self) -> None:
        """Give up a count that is under way."""
        await end(*self._counting.tasks)

    async def _count_or_read(self) -> None:
        with contextlib.suppress(StoreError):  # another part logs that the store is away; the last counts stay
            record = (await self._store.read_records([COUNTS.id_of("tasks")])).get(COUNTS.id_of("tasks"))
            now = self._store.now()
            known = TaskCounts(now) if record is None else COUNTS.content(record)
            self._newest = known  # even if counting then takes too long: old numbers are better than none
            if known.next_count_at <= now:
                claim = replace(known, next_count_at=now + _MAX_COUNT_TIME)
                wanted = COUNTS.new("tasks", content=claim) if record is None else COUNTS.changed(record, claim)
                [claimed] = await self._store.write_records([wanted])
                if claimed is not None:
                    known = await self._count()
                    await self._store.write_records([COUNTS.changed(claimed, known)])
            self._newest = known
            for callback in self.on_look:
                callback(known)

    async def _count(self) -> TaskCounts:
        begin, counted_at = time.monotonic(), self._store.now()
        by_status = await self._store.count_by_status()
        undriven = await self._store.undriven(_MAX_COUNTED_PROBLEMS)
        halted = await self._store.halted_streams(_MAX_COUNTED_PROBLEMS)
        dead_letters = None
        if by_status[TaskStatus.FAILED] + by_status[TaskStatus.DEAD_LETTER] <= _MAX_COUNTED_DEAD:
            found = await self._store.count_dead(EVERYONE, TaskFilter(dead=True), most=_MAX_COUNTED_DEAD)
            dead_letters = sum(each.count for each in found)
        use = timedelta(seconds=_USE_PER_COST * (time.monotonic() - begin))
        next_count_at = self._store.now() + min(max(use, _MIN_USE), _MAX_USE)
        return TaskCounts(
            next_count_at,
            {status.value: count for status, count in by_status.items()},
            undriven=len(undriven),
            halted_streams=len(halted),
            dead_letters=dead_letters,
            counted_at=counted_at,
        )
