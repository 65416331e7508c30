"""Slots and lanes: which waiting delivery gets the next free slot.

High goes before normal before low, but no lane is starved: a lane with nothing running gets a free slot first, and a
lane that was passed over `PATIENCE` times in a row is served next.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from taskframework.model.status import LANES, Priority

Item = TypeVar("Item")

PATIENCE = 8


class Lanes(Generic[Item]):
    """Holds what waits and starts as many items as there are slots. Not thread-safe; belongs to one event loop."""

    def __init__(self, slots: int, start: Callable[[Item, Priority], None]) -> None:
        """Prepare empty lanes.

        Args:
            slots: how many items may run at once.
            start: called for an item that got a slot; `release` gives the slot back.
        """
        self._free = slots
        self._slots = slots
        self._start = start
        self._waiting: dict[Priority, deque[Item]] = {lane: deque() for lane in LANES}
        self._running: dict[Priority, int] = dict.fromkeys(LANES, 0)
        self._passed_over: dict[Priority, int] = dict.fromkeys(LANES, 0)
        self._closed = False

    def put(self, item: Item, lane: Priority) -> None:
        """Take an item; it starts at once if a slot is free."""
        self._waiting[lane].append(item)
        self._fill()

    def release(self, lane: Priority) -> None:
        """Give back the slot of an item that is done."""
        self._running[lane] -= 1
        self._free += 1
        self._fill()

    def remove(self, item: Item, lane: Priority) -> None:
        """Let an item wait no longer; nothing happens if it does not wait."""
        with contextlib.suppress(ValueError):
            self._waiting[lane].remove(item)

    def close(self) -> list[Item]:
        """Start nothing more; what still waits is returned."""
        self._closed = True
        return self.clear()

    def clear(self) -> list[Item]:
        """Take out everything that waits."""
        left = [item for lane in LANES for item in self._waiting[lane]]
        for waiting in self._waiting.values():
            waiting.clear()
        return left

    @property
    def running(self) -> int:
        return self._slots - self._free

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _fill(self) -> None:
        while self._free and not self._closed and (lane := self._next()) is not None:
            item = self._waiting[lane].popleft()
            self._free -= 1
            self._running[lane] += 1
            self._start(item, lane)

    def _next(self) -> Priority | None:
        candidates = [lane for lane in LANES if self._waiting[lane]]
        if not candidates:
            return None
        chosen = next(
            (lane for lane in candidates if self._passed_over[lane] >= PATIENCE),
            # With fewer slots than lanes "nothing running" is true of most lanes and would undo the priorities.
            next((lane for lane in candidates if self._slots >= len(LANES) and not self._running[lane]), candidates[0]),
        )
        for lane in candidates:
            self._passed_over[lane] = 0 if lane is chosen else self._passed_over[lane] + 1
        return chosen
