"""The mailbox of one actor: a limited number of events, and the firings of its timers."""

from __future__ import annotations

import asyncio
import enum
import itertools
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
    """One firing of a timer. It counts only if the timer was neither set nor cancelled since then."""

    name: str
    #: The number of the change that set the timer.
    change: int


class End(enum.Enum):
    """What a mailbox gives when it is closed and empty. It is not None, because an event may be None."""

    END = enum.auto()


class Mailbox(Generic[Event]):
    """Events and firings in the order in which they came. While the mailbox is full, senders of events wait."""

    def __init__(self, max_events: int) -> None:
        """Make an empty mailbox for at most so many events."""
        self._waiting: deque[Event | Firing] = deque()
        self._free_places = asyncio.Semaphore(max_events)
        self._has_news = asyncio.Event()
        self.is_closed = False

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    @property
    def has_room(self) -> bool:
        """Whether an event can be added without waiting."""
        return not self.is_closed and not self._free_places.locked()

    async def put(self, event: Event) -> bool:
        """Add an event as soon as there is room; False if the mailbox was closed before."""
        await self._free_places.acquire()
        if self.is_closed:
            self._free_places.release()
            return False
        self._waiting.append(event)
        self._has_news.set()
        return True

    def put_firing(self, firing: Firing) -> None:
        """Add a firing. Only one firing of each timer counts, so firings need no limit."""
        self._waiting.append(firing)
        self._has_news.set()

    def close(self) -> None:
        """Take no more events; those that wait are still handed out."""
        self.is_closed = True
        self._has_news.set()

    def discard(self) -> int:
        """Take no more events, and forget those that wait; return how many events these were."""
        self.close()
        events = sum(not isinstance(item, Firing) for item in self._waiting)
        self._waiting.clear()
        for _ in range(events):
            self._free_places.release()  # a sender that waits for room hears now that the mailbox is closed
        return events

    async def next(self) -> Event | Firing | End:
        """Return the oldest event or firing, as soon as there is one, or the end of the mailbox."""
        while not self._waiting:
            if self.is_closed:
                return End.END
            self._has_news.clear()
            await self._has_news.wait()
        item = self._waiting.popleft()
        if not isinstance(item, Firing):
            self._free_places.release()
        return item


@dataclass(slots=True)
class _Timer:
    #: The number of the last change: of all changes of timers in this mailbox, each has another one.
    change: int = 0
    #: When the timer is due, by the clock's `monotonic`; None if it is not set.
    due_at: float | None = None
    #: When the sleeper wakes. It sleeps again if the timer was set to a later time meanwhile.
    wakes_at: float = 0.0
    sleeper: asyncio.Task[None] | None = None


class MailboxTimers:
    """Timers whose firings go through a mailbox.

    Each timer has one asyncio task at most: setting a timer to a later time again and again, for example at each chunk
    of a speech, only changes a number. A timer is forgotten after it fired, and at its old time if it was cancelled.
    """

    def __init__(self, clock: Clock, put: Callable[[Firing], None]) -> None:
        self._clock = clock
        self._put = put
        self._timers: dict[str, _Timer] = {}
        self._changes = itertools.count()
        self._is_stopped = False

    def set(self, name: str, after: timedelta | float) -> None:
        """As in `Timers`."""
        if self._is_stopped:
            return
        timer = self._timers.setdefault(name, _Timer())
        timer.change = next(self._changes)
        timer.due_at = self._clock.monotonic() + in_seconds(after)
        is_early_enough = timer.sleeper is not None and not timer.sleeper.done() and timer.wakes_at <= timer.due_at
        if not is_early_enough:
            if timer.sleeper is not None:
                timer.sleeper.cancel()
            timer.wakes_at = timer.due_at
            timer.sleeper = asyncio.create_task(self._sleep(name, timer))

    def cancel(self, name: str) -> None:
        """As in `Timers`."""
        if (timer := self._timers.get(name)) is not None:
            timer.change = next(self._changes)
            timer.due_at = None
            if timer.sleeper is not None and timer.sleeper.done():  # it has fired, and nobody takes the firing now
                del self._timers[name]

    def take(self, firing: Firing) -> bool:
        """Take a firing from the mailbox, and forget its timer.

        Returns:
            False if the timer was set or cancelled since it fired: then the firing does not count.
        """
        timer = self._timers.get(firing.name)
        if timer is None or timer.change != firing.change:
            return False
        del self._timers[firing.name]
        return True

    def is_any_set(self, *, except_for: str) -> bool:
        """Return whether any timer except this one is set."""
        return any(timer.due_at is not None for name, timer in self._timers.items() if name != except_for)

    async def stop(self) -> None:
        """Let no timer fire from now on, and none be set."""
        self._is_stopped = True
        sleepers = [timer.sleeper for timer in self._timers.values() if timer.sleeper is not None]
        self._timers.clear()
        await end(*sleepers)

    async def _sleep(self, name: str, timer: _Timer) -> None:
        while timer.due_at is not None:
            if (left := timer.due_at - self._clock.monotonic()) <= 0:
                timer.due_at = None
                self._put(Firing(name, timer.change))
                return
            timer.wakes_at = timer.due_at
            await self._clock.sleep(left)
        if self._timers.get(name) is timer:  # it was cancelled, and not set again
            del self._timers[name]
