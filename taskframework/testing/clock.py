"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta

from taskframework.clock import whole_milliseconds

#: The time at which virtual time begins.
START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Virtual time for `Clock`. A sleeper wakes when the time is advanced past the end of its sleep."""

    def __init__(self, start: datetime = START) -> None:
        """Begin at a time.

        Raises:
            ValueError: if the time has no time zone.
        """
        if start.tzinfo is None:
            raise ValueError(f"{start} has no time zone; write datetime({start.year}, {start.month}, …, tzinfo=UTC)")
        self._start = start.astimezone(UTC)
        self._passed = timedelta(0)
        self._sleepers: list[tuple[timedelta, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> datetime:
        return whole_milliseconds(self._start + self._passed)

    def monotonic(self) -> float:
        return self._passed.total_seconds()

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        awake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._passed + timedelta(seconds=seconds), next(self._order), awake))
        await awake

    def advance(self, duration: float | timedelta) -> None:
        """Let time pass.

        Sleepers whose time has come are woken, the earliest first; they run when the caller next awaits. A sleeper
        that then sleeps again starts from the new time.

        Args:
            duration: seconds, or a timedelta.
        """
        self._passed += duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
        while self._sleepers and self._sleepers[0][0] <= self._passed:
            _, _, awake = heapq.heappop(self._sleepers)
            if not awake.done():  # cancelled meanwhile
                awake.set_result(None)

    def wake(self, within: float) -> None:
        """Wake sleepers whose sleep ends within so many seconds, though no time passes: an extra look costs nothing."""
        wake_until = self._passed + timedelta(seconds=within)
        while self._sleepers and self._sleepers[0][0] <= wake_until:
            _, _, awake = heapq.heappop(self._sleepers)
            if not awake.done():
                awake.set_result(None)

    @property
    def sleeping(self) -> int:
        """How many coroutines sleep; lets a test wait until all of them do."""
        return sum(not awake.done() for _, _, awake in self._sleepers)
