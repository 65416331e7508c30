"""Slots and lanes: which waiting delivery gets the next free slot.

While several lanes wait, the slots that become free are shared by weight, so that no lane is starved. A delivery that
has waited too long goes next, whatever its lane.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from taskframework.model.status import LANES, Priority

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class LanePolicy:
    """How lanes share the slots."""

    #: While several lanes wait, each gets slots in proportion to its number.
    weights: Mapping[Priority, int]
    #: An item that has waited longer than this goes before all others.
    max_wait: timedelta


class Lanes(Generic[Item]):
    """Keeps the waiting items and starts as many as there are slots. Not thread-safe; belongs to one event loop."""

    def __init__(
        self,
        slots: int,
        start: Callable[[Item, Priority], None],
        policy: LanePolicy,
        waited_time: Callable[[Item], timedelta],
    ) -> None:
        """Prepare empty lanes.

        Args:
            slots: how many items may run at once.
            start: called for an item that got a slot; `release` gives the slot back.
            policy: which lane is next.
            waited_time: returns how long an item has been ready to start.
        """
        self._free = slots
        self._slots = slots
        self._start = start
        self._policy = policy
        self._waited_time = waited_time
        self._waiting: dict[Priority, deque[Item]] = {lane: deque() for lane in LANES}
        self._running: dict[Priority, int] = dict.fromkeys(LANES, 0)
        #: How much each lane is owed because slots went to other lanes while it waited.
        self._credits: dict[Priority, int] = dict.fromkeys(LANES, 0)
        #: Items that gave up their slot for a while and want a slot again.
        self._returning: deque[tuple[asyncio.Future[None], Priority]] = deque()
        self._closed = False

    def put(self, item: Item, lane: Priority) -> None:
        """Add an item; it starts at once if a slot is free."""
        self._waiting[lane].append(item)
        self._fill()

    def release(self, lane: Priority) -> None:
        """Give back the slot of an item that is done."""
        self._running[lane] -= 1
        self._free += 1
        self._fill()

    async def take_slot_again(self, lane: Priority) -> None:
        """Wait for a slot for an item that gave up its own for a while. It goes before all items that have not started.

        Once the lanes are closed, the item gets a slot at once, because then it only has to end.
        """
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._returning.append((slot, lane))
        self._fill()
        await slot

    def remove(self, item: Item, lane: Priority) -> None:
        """Take an item out of its lane, if it waits there."""
        with contextlib.suppress(ValueError):
            self._waiting[lane].remove(item)

    def close(self) -> list[Item]:
        """Start no more items; returns the items that still waited."""
        self._closed = True
        self._fill()
        return self.clear()

    def clear(self) -> list[Item]:
        """Remove and return all waiting items."""
        removed = [item for lane in LANES for item in self._waiting[lane]]
        for waiting in self._waiting.values():
            waiting.clear()
        return removed

    @property
    def running(self) -> int:
        return self._slots - self._free

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def are_competing(self) -> bool:
        """Whether all slots are taken and several lanes have or want some."""
        return self._free <= 0 and sum(bool(self._waiting[lane] or self._running[lane]) for lane in LANES) > 1

    def _fill(self) -> None:
        while self._returning and (self._free > 0 or self._closed):
            slot, returning_to = self._returning.popleft()
            self._free -= 1
            self._running[returning_to] += 1
            if not slot.done():
                slot.set_result(None)
        while self._free > 0 and not self._closed and (lane := self._next_lane()) is not None:
            item = self._waiting[lane].popleft()
            self._free -= 1
            self._running[lane] += 1
            self._start(item, lane)

    def _next_lane(self) -> Priority | None:
        waiting = [lane for lane in LANES if self._waiting[lane]]
        if len(waiting) < 2:
            # No lane has to wait for another lane, so no lane is owed slots.
            self._credits = dict.fromkeys(LANES, 0)
            return waiting[0] if waiting else None
        return self._overdue_lane(waiting) or self._lane_by_weight(waiting)

    def _overdue_lane(self, waiting: Sequence[Priority]) -> Priority | None:
        """Return the lane whose first item has waited longest, if this item has waited too long."""
        waited_time = {lane: self._waited_time(self._waiting[lane][0]) for lane in waiting}
        longest = max(waiting, key=waited_time.__getitem__)
        return longest if waited_time[longest] > self._policy.max_wait else None

    def _lane_by_weight(self, waiting: Sequence[Priority]) -> Priority:
        """Choose a lane by smooth weighted round-robin: each waiting lane gets its weight as credit, then the lane with
        the most credit is chosen and pays the sum of the weights. This spreads the turns of a lane evenly, instead of
        giving the high lane all its turns before the normal lane has its first turn.
        """
        weights = self._policy.weights
        for lane in waiting:
            self._credits[lane] += weights[lane]
        chosen = max(waiting, key=self._credits.__getitem__)
        self._credits[chosen] -= sum(weights[lane] for lane in waiting)
        return chosen
