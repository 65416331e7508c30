"""How many tasks there are: counted by one process for all, and only while somebody looks at the metrics.

Counting reads the whole index of the statuses, the records of all streams, what failed and, on MongoDB, every live
task: at a million tasks up to some tenths of a second. So the last counts are a record that all processes share.
Whoever finds them too old counts anew, if the record lets it be the one that does.
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

#: For how long counts are used at the least. A scrape comes each 10 to 60 seconds.
_SHORTEST_USE = timedelta(seconds=5)
#: How many times longer than counting took the counts are used: so it costs a database one percent of one core ...
_USES_PER_COST = 100
#: ... but for how long at the most. A count may also have taken long because the database stood still for a moment.
_LONGEST_USE = timedelta(minutes=1)
#: If whoever counts has not told after this time, another process may begin. A query gives up after `store.timeout`.
_LONGEST_COUNT = timedelta(minutes=1)
#: `tasks_undriven` and `tasks_halted_streams` count up to this: what is above 0 needs somebody, however many there are.
_MOST_IN_NEED = 1_000
#: Dead letters of which each is looked at, whether somebody has discarded it. It takes 0.2 s.
_MOST_DEAD = 100_000


class TaskCounter:
    """Keeps the counts of one process as new as they may be."""

    def __init__(self, store: TaskStore) -> None:
        """Prepare to count."""
        self._store = store
        #: Told the newest counts at each look.
        self.on_look: list[Callable[[TaskCounts], None]] = []
        self._newest: TaskCounts | None = None
        self._counting = Background()

    async def look(self) -> TaskCounts | None:
        """The newest counts; if they are too old, count or let another process count.

        A caller that gives up waiting ends no count: the next one finds its result.

        Returns:
            The counts; the last ones while the store is away, and None if there never were any.
        """
        if not self._counting.tasks:
            self._counting.start(self._count_or_read())
        await self._counting.finished()
        return self._newest

    async def close(self) -> None:
        """Give a count up that is under way."""
        await end(*self._counting.tasks)

    async def _count_or_read(self) -> None:
        with contextlib.suppress(StoreError):  # others log that the store is away; the last counts stay
            record = (await self._store.read_records([COUNTS.id_of("tasks")])).get(COUNTS.id_of("tasks"))
            now = self._store.now()
            known = TaskCounts(now) if record is None else COUNTS.content(record)
            self._newest = known  # also where counting then takes too long: old numbers are better than none
            if known.next_count_at <= now:
                claim = replace(known, next_count_at=now + _LONGEST_COUNT)
                wanted = COUNTS.new("tasks", content=claim) if record is None else COUNTS.changed(record, claim)
                [won] = await self._store.write_records([wanted])
                if won is not None:
                    known = await self._count()
                    await self._store.write_records([COUNTS.changed(won, known)])
            self._newest = known
            for tell in self.on_look:
                tell(known)

    async def _count(self) -> TaskCounts:
        begin = time.monotonic()
        by_status = await self._store.count_by_status()
        undriven = await self._store.undriven(_MOST_IN_NEED)
        halted = await self._store.halted_streams(_MOST_IN_NEED)
        dead_letters = None
        if by_status[TaskStatus.FAILED] + by_status[TaskStatus.DEAD_LETTER] <= _MOST_DEAD:
            found = await self._store.count_dead(EVERYONE, TaskFilter(dead=True), most=_MOST_DEAD)
            dead_letters = sum(each.count for each in found)
        use = timedelta(seconds=_USES_PER_COST * (time.monotonic() - begin))
        next_count_at = self._store.now() + min(max(use, _SHORTEST_USE), _LONGEST_USE)
        return TaskCounts(
            next_count_at,
            {status.value: count for status, count in by_status.items()},
            undriven=len(undriven),
            halted_streams=len(halted),
            dead_letters=dead_letters,
        )
