"""The server's clock, as this process estimates it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from taskframework.background import end
from taskframework.clock import SystemClock, whole_milliseconds
from taskframework.errors import StoreError

#: Seconds between two refreshes, and how many questions each asks; the question with the quickest answer counts.
_REFRESH_SECONDS, _SAMPLES = 60.0, 3
#: Also counts while this machine is suspended, as the server's clock does.
_CLOCK = SystemClock()


class ServerClock:
    """An estimate of the server's time, wrong by at most half a round trip.

    It runs on this machine's monotonic clock, so a change of the local time has no effect.
    """

    def __init__(self, ask: Callable[[], Awaitable[datetime]]) -> None:
        """Start from the local time; `ask` gives the server's time."""
        self._ask = ask
        self._base = datetime.now(UTC)
        self._at = _CLOCK.monotonic()
        self._refreshing: asyncio.Task[None] | None = None

    def now(self) -> datetime:
        return whole_milliseconds(self._base + timedelta(seconds=_CLOCK.monotonic() - self._at))

    async def start(self) -> None:
        """Ask the server, and again once a minute until `stop`."""
        await self._refresh()
        self._refreshing = asyncio.create_task(self._keep_refreshing())

    async def stop(self) -> None:
        if self._refreshing is not None:
            await end(self._refreshing)

    async def _keep_refreshing(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            with suppress(StoreError):  # the estimate of a minute ago is still good enough
                await self._refresh()

    async def _refresh(self) -> None:
        samples = [await self._sample() for _ in range(_SAMPLES)]
        _, self._base, self._at = min(samples, key=lambda sample: sample[0])

    async def _sample(self) -> tuple[float, datetime, float]:
        """How long the question took, the answer, and the moment at which the answer was true."""
        asked = _CLOCK.monotonic()
        answer = await self._ask()
        took = _CLOCK.monotonic() - asked
        return took, answer, asked + took / 2
