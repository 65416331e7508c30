"""Suspects: tasks that one more lost lease makes dead letters.

Whatever runs beside a task that kills its worker shares its crashes, comes back together with it, and would share its
end. So on their last chance suspects begin one at a time in each worker: then only the guilty one dies of it. What has
not killed its worker within its probation is no longer waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

from taskframework.model.message import CRASHES_HEADER

#: Suspects that wait for their turn in a slot, and how many seconds; the slots are worth more to others.
_WAITING = 4
_PATIENCE = 5.0


class Suspects:
    """Keeps the suspects of one worker apart."""

    def __init__(self, max_crashes: int, probation: timedelta) -> None:
        """Start with nobody running.

        Args:
            max_crashes: lost leases that make a task a dead letter.
            probation: how long the next suspect waits for the one that runs.
        """
        self._last_chance = max(1, max_crashes - 1)
        self._probation = probation.total_seconds()
        self._turn = asyncio.Lock()
        self._waiting = 0

    def turn(self, headers: Mapping[str, str]) -> AbstractAsyncContextManager[bool]:
        """Around everything that is done for a delivery, from the claim on.

        Args:
            headers: of the message. One that does not tell of crashes is not suspected.

        Returns:
            A context that gives whether it may be claimed now; if not, the sweeper is to send it again later.
        """
        return contextlib.nullcontext(True) if _crashes(headers) < self._last_chance else self._turn_of_suspect()

    @contextlib.asynccontextmanager
    async def _turn_of_suspect(self) -> AsyncIterator[bool]:
        if not await self._comes_up():
            yield False
            return
        with contextlib.ExitStack() as turn:
            turn.callback(self._turn.release)
            # Whichever comes first, the end of the probation or of the run, ends the turn; `close` works once.
            probation = asyncio.get_running_loop().call_later(self._probation, turn.close)
            try:
                yield True
            finally:
                probation.cancel()

    async def _comes_up(self) -> bool:
        if self._waiting >= _WAITING:
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._turn.acquire()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1


def _crashes(headers: Mapping[str, str]) -> int:
    try:
        return int(headers.get(CRASHES_HEADER, 0))
    except ValueError:  # not written by us
        return 0
