"""How often a repair of this process looks, if the processes of other workers look for the same work.

If each of a hundred processes looked every second, an idle installation would send more than a thousand queries a
second to the database. Any process may find what is due, so each may look less often the more there are. All together
still look more often than one process alone, so what is due is found sooner, not later.
"""

from __future__ import annotations

import math

from taskframework.model.workers import PRESENCE
from taskframework.stores.base import TaskStore

#: The most reports that one look reads. From this many workers on, pauses do not grow any more: they are ten times as
#: long. So if all other workers stop, the last one looks every ten seconds until it notices that they are gone.
_MAX_WORKERS = 100


class RepairPace:
    """The length of the pauses between two looks of a repair, as a multiple of the setting."""

    def __init__(self, store: TaskStore) -> None:
        """Begin with the pauses of the settings; `store` has the reports of the workers."""
        self._store = store
        self._factor = 1.0

    @property
    def factor(self) -> float:
        """The square root of the number of workers, so that n processes make √n as many looks as one; at least 1."""
        return self._factor

    async def measure(self) -> None:
        """Count the workers that have reported lately, as a repair.

        Raises:
            StoreUnavailableError: if the store cannot be asked; the pauses stay as they are.
        """
        reports = await self._store.list_records(PRESENCE.name, limit=_MAX_WORKERS)
        workers = PRESENCE.contents(reports).values()
        now = self._store.now()
        self._factor = math.sqrt(max(1, sum(not worker.is_silent(now) for worker in workers)))
