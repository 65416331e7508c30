"""The deliveries of one worker that wait for a slot of one limit.

The first of them has a place in the line of all workers.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from taskframework.background import end
from taskframework.clock import Clock, happens_within
from taskframework.model.slots import KeepPlace, Slots, TakeSlot

#: Seconds for which a place in the line counts. A killed worker delays the other workers by this time.
_PLACE_SECONDS = 3.0
#: Seconds between two looks: the first number times the place in the line (counted from 1), at most the second.
_LOOK_INTERVAL_SECONDS, _MAX_LOOK_INTERVAL_SECONDS = 0.1, 1.0
#: The pause is at least this share of the time waited until now, so that long waits cost few looks.
_PAUSE_SHARE = 1 / 20


@dataclass(frozen=True, slots=True)
class _Waiter:
    take: TakeSlot
    came_at: float
    woken: asyncio.Future[bool]

    @property
    def order(self) -> tuple[int, float]:
        return self.take.rank, self.take.since


class SlotLine:
    """Asks the store once for all waiting deliveries together, so that many cost no more store calls than one."""

    def __init__(self, keep_place: Callable[[KeepPlace], Awaitable[Slots]], worker_id: str, clock: Clock) -> None:
        """Ask nothing yet.

        Args:
            keep_place: keeps the place of the first waiting delivery, and returns the slots.
            worker_id: the worker of that delivery.
            clock: for the pauses.
        """
        self._keep_place = keep_place
        self._worker_id = worker_id
        self._clock = clock
        self._waiting: list[_Waiter] = []
        self._wake = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    async def wait_for_free_slot(self, take: TakeSlot) -> bool:
        """Wait until a slot seems to be free for `take`. Another claim may still take the slot first.

        Raises:
            StoreUnavailableError: if the store did not answer.
        """
        waiter = _Waiter(take, self._clock.monotonic(), asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._wake.set()
        if self._pump is None or self._pump.done():
            # In a separate context: the pump runs on after the first caller has ended.
            self._pump = asyncio.create_task(self._run(), context=contextvars.Context())
        return await waiter.woken

    def note(self, slots: Slots) -> None:
        """Wake waiting deliveries for the free slots: another call has just read the slots."""
        self._wake_first(slots)
        self._wake.set()  # the next delivery needs a place in the line of all workers

    async def close(self) -> None:
        """Stop asking the store."""
        if self._pump is not None:
            await end(self._pump)

    async def _run(self) -> None:
        while (first := self._first_waiter()) is not None:
            self._wake.clear()
            try:
                ahead = await self._look(first)
            except Exception as error:
                self._fail_all_waiting(error)
            else:
                if not first.woken.done():
                    await happens_within(self._wake, self._pause(first, ahead), self._clock)

    def _first_waiter(self) -> _Waiter | None:
        self._waiting = [waiter for waiter in self._waiting if not waiter.woken.done()]
        return min(self._waiting, key=lambda waiter: waiter.order, default=None)

    async def _look(self, waiter: _Waiter) -> int:
        """Wake the first waiters, one for each free slot; return how many tasks stand in the line before this one."""
        take = waiter.take
        place = KeepPlace(take.record_id, take.task_id, take.rank, take.since, self._worker_id, _PLACE_SECONDS)
        slots = await self._keep_place(place)
        self._wake_first(slots)
        return slots.ahead_of(take.task_id, take.rank, take.since)

    def _wake_first(self, slots: Slots) -> None:
        given = 0
        for waiter in sorted(self._waiting, key=lambda waiter: waiter.order):
            take = waiter.take
            if not slots.is_free_for(take.number - given, take.task_id, take.rank, take.since):
                return
            if not waiter.woken.done():
                waiter.woken.set_result(True)
                given += 1

    def _pause(self, waiter: _Waiter, ahead: int) -> float:
        waited = self._clock.monotonic() - waiter.came_at
        return min(
            max(_LOOK_INTERVAL_SECONDS * (1 + ahead), waited * _PAUSE_SHARE), _MAX_LOOK_INTERVAL_SECONDS
        ) * random.uniform(0.75, 1.25)

    def _fail_all_waiting(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.woken.done():
                waiter.woken.set_exception(error)
