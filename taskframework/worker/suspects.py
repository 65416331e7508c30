"""Suspects: tasks that become dead letters at their next crash, a lost lease.

If a task kills its worker, the tasks that run beside it lose their leases too. They come back together with it, and
would become dead letters together with it. So suspects begin one at a time in each worker: then only the task that
kills the worker becomes a dead letter. Once a suspect has run for its probation time, the next suspect may begin; an
innocent suspect that runs for longer can still be lost together with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import timedelta

from taskframework.model.interventions import is_suspect
from taskframework.model.message import CRASHES_HEADER
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import JointReads
from taskframework.worker.admission import Candidate, PutOff

#: How many suspects may wait for their turn at once, and for how many seconds: each blocks a slot while it waits.
_MAX_WAITING = 4
_MAX_WAIT_SECONDS = 5.0
#: For how long a suspect that got no turn is put off.
_PUT_OFF_TIME = timedelta(seconds=5)


class Suspects:
    """`AdmissionCheck` that lets suspects of one worker begin one at a time."""

    def __init__(self, store: TaskStore, max_crashes: int, probation: timedelta) -> None:
        """Start with no suspect running.

        Args:
            store: has the tasks; only those are read whose messages tell of a crash.
            max_crashes: how many crashes make a task a dead letter.
            probation: how long a running suspect makes the next suspect wait.
        """
        self._tasks = JointReads(store)
        self._max_crashes = max_crashes
        self._probation = probation.total_seconds()
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def admit(self, candidate: Candidate) -> PutOff | None:
        """Let a suspect begin when it has the turn. It keeps the turn until its attempt or its probation ends."""
        if not _crashes_of(candidate.headers):
            return None
        task = await candidate.claimable(self._tasks)
        if task is None or not is_suspect(task, self._max_crashes):
            return None
        if not await self._wait_for_turn():
            return PutOff(_PUT_OFF_TIME)
        turn = contextlib.ExitStack()  # a second `close` does nothing: the attempt or the probation ends the turn
        turn.callback(self._turn.release)
        probation = asyncio.get_running_loop().call_later(self._probation, turn.close)
        candidate.holding.callback(turn.close)
        candidate.holding.callback(probation.cancel)
        return None

    async def _wait_for_turn(self) -> bool:
        if self._waiting >= _MAX_WAITING:
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(_MAX_WAIT_SECONDS):
                return await self._turn.acquire()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1


def _crashes_of(headers: Mapping[str, str]) -> int:
    try:
        return int(headers.get(CRASHES_HEADER, 0))
    except ValueError:  # not written by us
        return 0
