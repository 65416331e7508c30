"""How many tasks wait, run, come and end now."""

from __future__ import annotations

import asyncio

from taskframework.model.traffic import RATE_WINDOW, CountedTasks, LaneCounts, Traffic, combine_counts
from taskframework.stores.base import TaskStore

#: The most tasks of one selection that are counted: of those that wait or run, and of those that came or ended lately.
_MAX_WAITING, _MAX_RECENT = 5_000, 2_000


async def read_traffic(store: TaskStore) -> Traffic:
    """Count these tasks, by a bounded read of each selection.

    Raises:
        StoreUnavailableError: if the store does not answer.
    """
    now = store.now()

    async def count_lanes(selection: CountedTasks) -> LaneCounts:
        if selection.is_newest_first:
            return await store.count_lanes(selection, _MAX_RECENT, due_before=now, since=now - RATE_WINDOW)
        return await store.count_lanes(selection, _MAX_WAITING, due_before=now)

    return combine_counts(
        dict(zip(CountedTasks, await asyncio.gather(*map(count_lanes, CountedTasks)), strict=True)), now
    )
