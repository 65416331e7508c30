"""Time limits for many waiting calls, with one timer for all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class Deadlines:
    """Ends futures that have no result in time. All are given about the same time, so the first one is due first."""

    def __init__(self, late: Callable[[], Exception]) -> None:
        """Start with none; `late` makes the error they end with."""
        self._late = late
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, future: asyncio.Future[Any], deadline: float) -> None:
        """End a future at a time of the event loop's clock, unless it is done by then."""
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()
        self._waiting.append((deadline, future))
        if self._timer is None:
            self._timer = future.get_loop().call_at(deadline, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= loop.time()):
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(self._late())
        if self._waiting:
            self._timer = loop.call_at(self._waiting[0][0], self._look)
