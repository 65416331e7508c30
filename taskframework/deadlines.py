"""Time limits for many waiting calls, with one timer for all of them."""

from __future__ import annotations

import asyncio
import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Any


class Deadlines:
    """Ends futures that have no result in time. Most have the same time limit, so the newest is usually due last."""

    def __init__(self, late: Callable[[], Exception]) -> None:
        """Start with none; `late` makes the error they end with."""
        self._late = late
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = math.inf

    def limit(self, future: asyncio.Future[Any], deadline: float) -> None:
        """End a future at a time of the event loop's clock, unless it is done by then."""
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()
        if self._waiting and deadline < self._waiting[-1][0]:
            # Its limit began earlier, before it came here, so it is due before some that wait already.
            insort(self._waiting, (deadline, future), key=itemgetter(0))
        else:
            self._waiting.append((deadline, future))
        if deadline < self._next_look:
            self._look_at(deadline, future.get_loop())

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer, self._next_look = None, math.inf
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= loop.time()):
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(self._late())
        if self._waiting:
            self._look_at(self._waiting[0][0], loop)

    def _look_at(self, moment: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next_look = loop.call_at(moment, self._look), moment
