"""Suspects: tasks that one more lost lease makes dead letters.

Whatever runs beside a task that kills its worker shares its crashes, comes back together with it, and would share its
end. So on their last chance suspects begin one at a time in each worker: then only the guilty one dies of it. What has
not killed its worker within its probation is no longer waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import timedelta

from taskframework.model.message import CRASHES_HEADER
from taskframework.worker.admission import Candidate, PutOff

#: Suspects that wait for their turn in a slot, and how many seconds; the slots are worth more to others.
_WAITING = 4
_PATIENCE = 5.0
#: When a suspect that could not have its turn comes again.
_LATER = timedelta(seconds=5)


class Suspects:
    """`AdmissionCheck` that keeps the suspects of one worker apart. Who does not tell of crashes is not suspected."""

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

    async def admit(self, candidate: Candidate) -> PutOff | None:
        """Give a suspect its turn, which it holds until it is over or its probation is."""
        if _crashes(candidate.headers) < self._last_chance:
            return None
        if not await self._comes_up():
            return PutOff(_LATER)
        turn = contextlib.ExitStack()  # whichever ends it first: `close` works once
        turn.callback(self._turn.release)
        probation = asyncio.get_running_loop().call_later(self._probation, turn.close)
        candidate.holding.callback(turn.close)
        candidate.holding.callback(probation.cancel)
        return None

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
