"""What waits for one actor: events, of which there is a limit, and firings of its timers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from taskframework.background import end
from taskframework.clock import Clock, in_seconds

Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class Firing:
    """A timer has fired; it counts only while nobody has set or cancelled the timer since."""

    name: str
    #: By which setting of the timer it was caused.
    setting: int


class Mailbox(Generic[Event]):
    """Keeps the order in which things came. A full one lets whoever sends an event wait."""

    def __init__(self, most: int) -> None:
        """Make an empty one for at most so many events."""
        self._waiting: deque[Event | Firing] = deque()
        self._room = asyncio.Semaphore(most)
        self._something = asyncio.Event()
        self.is_closed = False

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    async def put(self, event: Event) -> bool:
        """Add an event as soon as there is room; False if the mailbox was closed before."""
        await self._room.acquire()
        if self.is_closed:
            self._room.release()
            return False
        self._waiting.append(event)
        self._something.set()
        return True

    def put_firing(self, firing: Firing) -> None:
        """Add a firing. Of each timer one counts, so these need no limit."""
        self._waiting.append(firing)
        self._something.set()

    def close(self) -> None:
        """Take nothing more; what is there is still handed out."""
        self.is_closed = True
        self._something.set()

    async def next(self) -> Event | Firing | None:
        """What came first, as soon as there is something; None when the mailbox is closed and empty."""
        while not self._waiting:
            if self.is_closed:
                return None
            self._something.clear()
            await self._something.wait()
        item = self._waiting.popleft()
        if not isinstance(item, Firing):
            self._room.release()
        return item


@dataclass(slots=True)
class _Timer:
    #: How often it was set or cancelled.
    setting: int = 0
    #: By the clock's `monotonic`; None: it is not set.
    due: float | None = None
    #: When the sleeper wakes; it sleeps on if the timer was put off meanwhile.
    wakes: float = 0.0
    sleeper: asyncio.Task[None] | None = None


class MailboxTimers:
    """Timers whose firings go through a mailbox.

    Each has one asyncio task at most: a timer that is put off again and again, as by each chunk of a speech, is a
    number that grows.
    """

    def __init__(self, clock: Clock, put: Callable[[Firing], None]) -> None:
        self._clock = clock
        self._put = put
        self._timers: dict[str, _Timer] = {}
        self._is_stopped = False

    def set(self, name: str, after: timedelta | float) -> None:
        """As in `Timers`."""
        if self._is_stopped:
            return
        timer = self._timers.setdefault(name, _Timer())
        timer.setting += 1
        timer.due = self._clock.monotonic() + in_seconds(after)
        is_early_enough = timer.sleeper is not None and not timer.sleeper.done() and timer.wakes <= timer.due
        if not is_early_enough:
            if timer.sleeper is not None:
                timer.sleeper.cancel()
            timer.wakes = timer.due
            timer.sleeper = asyncio.create_task(self._sleep(name, timer))

    def cancel(self, name: str) -> None:
        """As in `Timers`."""
        if (timer := self._timers.get(name)) is not None:
            timer.setting += 1
            timer.due = None

    def counts(self, firing: Firing) -> bool:
        """Whether the timer was neither set nor cancelled since it fired."""
        timer = self._timers.get(firing.name)
        return timer is not None and timer.setting == firing.setting

    def are_set(self, *, but: str) -> bool:
        """Whether one is set, besides this one."""
        return any(timer.due is not None for name, timer in self._timers.items() if name != but)

    async def stop(self) -> None:
        """Let no timer fire from now on, and none be set."""
        self._is_stopped = True
        sleepers = [timer.sleeper for timer in self._timers.values() if timer.sleeper is not None]
        self._timers.clear()
        await end(*sleepers)

    async def _sleep(self, name: str, timer: _Timer) -> None:
        while timer.due is not None:
            if (left := timer.due - self._clock.monotonic()) <= 0:
                timer.due = None
                self._put(Firing(name, timer.setting))
                return
            timer.wakes = timer.due
            await self._clock.sleep(left)
