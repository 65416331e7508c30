"""Suspects: tasks that one more lost lease makes dead letters.

Whatever runs beside a task that kills its worker shares its crashes, comes back together with it, and would share its
end. So on their last chance suspects run one at a time in each worker: then only the guilty one dies of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from taskframework.model.message import CRASHES_HEADER

#: Seconds a suspect waits for its turn in a slot; after that the slot is worth more to others.
_PATIENCE = 1.0


class Suspects:
    """Keeps the suspects of one worker apart."""

    def __init__(self, max_crashes: int) -> None:
        """Start with nobody running; `max_crashes` is the number of crashes that makes a task a dead letter."""
        self._last_chance = max(1, max_crashes - 1)
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn(self, headers: Mapping[str, str]) -> AsyncIterator[bool]:
        """Around everything that is done for a delivery, from the claim on.

        Args:
            headers: of the message. One that does not tell of crashes is not suspected.

        Yields:
            Whether it may be claimed now; if not, the sweeper is to send it again.
        """
        if _crashes(headers) < self._last_chance:
            yield True
            return
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._turn.acquire()
        except TimeoutError:
            yield False
            return
        try:
            yield True
        finally:
            self._turn.release()


def _crashes(headers: Mapping[str, str]) -> int:
    try:
        return int(headers.get(CRASHES_HEADER, 0))
    except ValueError:  # not written by us
        return 0
