"""Marks that can wait for a moment, collected into few writes (a mark is a write whose result nobody reads).

A mark that a message or event was sent makes a repair unnecessary that would come seconds later. If it is written a
moment later, together with the marks of other tasks, it costs much less; often it is not needed any more, because the
task has changed since.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

from taskframework.clock import Clock, happens_within
from taskframework.errors import StoreError
from taskframework.model.marks import Mark

logger = logging.getLogger(__name__)

MarkT = TypeVar("MarkT", bound=Mark)

#: How long a mark waits for other marks, and for a newer mark that replaces it. Repairs come after five seconds,
#: or later, when the mark has long been written.
MAX_MARK_DELAY = timedelta(seconds=2)
#: The share of the delay after which a mark may be written together with a mark whose delay is over.
_EARLY_WRITE_SHARE = 0.9
#: Most marks in one write. Under load there are many small writes, spread as evenly as the marks came: one large write
#: would block all other calls of the store for tens of milliseconds.
_MAX_MARKS_PER_WRITE = 100
#: The same while marks are late, that is when the first of them has waited for this many times the delay. A mark that
#: is too late is worth nothing: repairs of other processes send its event again, which costs more than a large write.
#: After a burst of 40,000 submissions, writes of this size were half as fast again.
_MAX_LATE_MARKS_PER_WRITE, _LATE_AFTER_DELAYS = 1_000, 1.5


class DelayedMarks(Generic[MarkT]):
    """Collects marks of one kind, the newest of each task, and writes them a moment later."""

    def __init__(
        self,
        make: Callable[..., MarkT],
        write: Callable[[Sequence[MarkT]], Awaitable[None]],
        clock: Clock,
        delay: timedelta = MAX_MARK_DELAY,
    ) -> None:
        """Start without marks.

        Args:
            make: makes a mark from the id of a task and the other values.
            write: writes some marks. Marks that it cannot write are left to the repairs.
            clock: tells how long a mark has waited.
            delay: how long a mark waits.
        """
        self._make = make
        self._write = write
        self._delay = delay.total_seconds()
        self._clock = clock
        #: For each task id, the longest waiting first: since when its mark waits, and the other values of the mark.
        #: Thousands may wait; as tuples of plain values they cost the garbage collector nothing.
        self._waiting: dict[str, tuple[Any, ...]] = {}
        self._is_drained = asyncio.Event()
        #: Set at the end of the present write; each write has its own event.
        self._write_is_over = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    def add(self, task_id: str, *values: Any) -> None:
        """Let a mark with these values be written soon; it replaces a waiting mark on the same task."""
        older = self._waiting.get(task_id)
        self._waiting[task_id] = (self._clock.monotonic() if older is None else older[0], *values)
        if self._pump is None:
            # In a context of its own: the pump outlives the caller who gave it the first mark.
            self._pump = asyncio.create_task(self._run(), context=contextvars.Context())

    async def drain(self) -> None:
        """Write all waiting marks at once; return when they are written."""
        self._is_drained.set()
        if self._pump is not None:
            await asyncio.wait([self._pump])
        self._is_drained.clear()

    async def wait_while_late(self) -> None:
        """Wait while the oldest waiting mark is late: a caller who causes thousands of marks waits here between two
        parts.
        """
        while self._pump is not None and self._are_late:
            await self._write_is_over.wait()

    async def _run(self) -> None:
        try:
            while self._waiting:
                first_since, *_ = next(iter(self._waiting.values()))
                rest = first_since + self._delay - self._clock.monotonic()
                await happens_within(self._is_drained, rest, self._clock)
                await self._write_some(self._taken())
                self._end_write()
        finally:
            self._pump = None
            self._end_write()

    def _end_write(self) -> None:
        self._write_is_over.set()
        self._write_is_over = asyncio.Event()

    @property
    def _are_late(self) -> bool:
        """Whether the oldest waiting mark is late, so that its repair may come before it is written."""
        if not self._waiting:
            return False
        first_since: float = next(iter(self._waiting.values()))[0]
        return self._clock.monotonic() - first_since > self._delay * _LATE_AFTER_DELAYS

    def _taken(self) -> list[MarkT]:
        """The marks of the next write, taken from those that wait."""
        now = self._clock.monotonic()
        since_when = now - (0 if self._is_drained.is_set() else self._delay * _EARLY_WRITE_SHARE)
        most = _MAX_LATE_MARKS_PER_WRITE if self._are_late else _MAX_MARKS_PER_WRITE
        oldest = itertools.islice(self._waiting.items(), most)
        marks = [(task_id, values) for task_id, (since, *values) in oldest if since <= since_when]
        for task_id, _ in marks:
            del self._waiting[task_id]
        return [self._make(task_id, *values) for task_id, values in marks]

    async def _write_some(self, marks: Sequence[MarkT]) -> None:
        try:
            await self._write(marks)
        except StoreError as error:
            logger.debug("marks left to the repairs: %d: %s", len(marks), error.message)
        except Exception:
            logger.exception("marks left to the repairs: %d", len(marks))
