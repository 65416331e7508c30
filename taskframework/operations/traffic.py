"""How many tasks wait, run, come and end now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime

from taskframework.model.status import LANES
from taskframework.model.traffic import RATE_WINDOW, CountedTasks, LaneCounts, Traffic, combine_counts
from taskframework.stores.base import TaskStore

#: The most tasks of one selection that are counted: of those that wait or run, and of those that came or ended lately.
MAX_WAITING, _MAX_RECENT = 5_000, 2_000


async def read_traffic(store: TaskStore, task_types: Iterable[str]) -> Traffic:
    """Count these tasks, by a bounded read of each selection.

    Args:
        store: where the tasks are.
        task_types: the types that are counted by themselves if too many tasks wait to count all.

    Raises:
        StoreUnavailableError: if the store does not answer.
    """
    now = store.now()

    async def count(selection: CountedTasks) -> Sequence[LaneCounts]:
        if selection.is_newest_first:
            return [await store.count_lanes(selection, _MAX_RECENT, due_before=now, since=now - RATE_WINDOW)]
        counts = await store.count_lanes(selection, MAX_WAITING, due_before=now)
        if not counts.is_bounded or selection is CountedTasks.RUNNING:
            return [counts]
        seen = {it.task_type for it in counts.counted}
        return await _count_each_lane(store, selection, seen.union(task_types), now)

    return combine_counts(dict(zip(CountedTasks, await asyncio.gather(*map(count, CountedTasks)), strict=True)), now)


async def _count_each_lane(
    store: TaskStore, selection: CountedTasks, task_types: Iterable[str], now: datetime
) -> Sequence[LaneCounts]:
    """Count one type after the other, so that many types do not take all connections of the pool."""
    found: list[LaneCounts] = []
    for name in task_types:
        of_type = [store.count_lanes(selection, MAX_WAITING, due_before=now, queue=(name, lane)) for lane in LANES]
        found += await asyncio.gather(*of_type)
    return found
