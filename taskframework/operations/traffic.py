"""How many tasks wait, run, come and end now."""

from __future__ import annotations

import asyncio

from taskframework.model.traffic import RATE_WINDOW, Crowd, Tally, Traffic, combine_tallies
from taskframework.stores.base import TaskStore

#: The most tasks of one crowd that are counted: of those that wait or run, and of those that came or ended lately.
_MAX_WAITING, _MAX_RECENT = 5_000, 2_000


async def read_traffic(store: TaskStore) -> Traffic:
    """Count these tasks, by a bounded read of each crowd.

    Raises:
        StoreUnavailableError: if the store does not answer.
    """
    now = store.now()

    async def tally(crowd: Crowd) -> Tally:
        if crowd.is_newest_first:
            return await store.tally(crowd, _MAX_RECENT, due_before=now, since=now - RATE_WINDOW)
        return await store.tally(crowd, _MAX_WAITING, due_before=now)

    return combine_tallies(dict(zip(Crowd, await asyncio.gather(*map(tally, Crowd)), strict=True)), now)
