"""Marks that can wait for a moment, gathered into few writes (a mark is a write that nobody waits to read).

A published or dispatched mark spares a repair that is seconds away. Written a moment later, together with the marks of
other tasks, it costs a fraction; and often it is not needed any more, because the task has moved on.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

from taskframework.errors import StoreError
from taskframework.model.marks import Mark

logger = logging.getLogger(__name__)

MarkT = TypeVar("MarkT", bound=Mark)

#: How long a mark waits for others, and for a newer one in its place. Repairs look after five seconds and more, so the
#: mark is there well before.
LONGEST_DELAY = timedelta(seconds=2)
#: Into how many ticks the delay is divided. In each tick the marks leave that came one delay before, so they leave as
#: steadily as they came: one large write at the end would hold up whatever else comes to the store just then.
_TICKS = 10
#: Into how many writes the marks of one tick are divided, with a pause between them.
_WRITES_OF_A_TICK = 4
#: Marks that are not worth dividing: one write of them takes a few milliseconds.
_UNDIVIDED = 50
#: When this many marks wait, they are written at once, so that memory stays bounded.
_MOST_WAITING = 10_000
#: The most marks in one write; a store need not cope with more.
_MOST_IN_A_WRITE = 2_000


class DelayedMarks(Generic[MarkT]):
    """Collects marks of one kind, the newest of each task, and writes them a moment later."""

    def __init__(
        self,
        make: Callable[..., MarkT],
        write: Callable[[Sequence[MarkT]], Awaitable[None]],
        delay: timedelta = LONGEST_DELAY,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with none.

        Args:
            make: makes a mark of a task's id and its other values.
            write: writes some. What it fails at is left to the repairs.
            delay: how long a mark waits.
            now: seconds on a clock that nobody sets.
        """
        self._now = now
        self._make = make
        self._write = write
        self._delay = delay.total_seconds()
        #: The values of each mark besides its task's id, by that id. Not the marks themselves: thousands wait, and the
        #: garbage collector passes over tuples of plain values.
        self._waiting: dict[str, tuple[Any, ...]] = {}
        self._is_due = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    def add(self, task_id: str, *values: Any) -> None:
        """Have a mark with these values written soon, in the place of an older one on the same task."""
        self._waiting[task_id] = values
        if len(self._waiting) >= _MOST_WAITING:
            self._is_due.set()
        if self._pump is None:
            # In a context of its own: the pump outlives who gave it the first mark.
            self._pump = asyncio.create_task(self._run(), context=contextvars.Context())

    async def drain(self) -> None:
        """Write at once what waits; return when it is written."""
        while self._pump is not None:
            self._is_due.set()
            await asyncio.wait([self._pump], timeout=self._delay)

    async def _run(self) -> None:
        tick, since = self._delay / _TICKS, self._now()
        ages: deque[tuple[float, int]] = deque()  # of those that wait: since when at the longest, and how many
        try:
            while self._waiting:
                await self._rest(since + tick - self._now())
                ages.append((since, len(self._waiting) - sum(count for _, count in ages)))
                since = self._now()
                if self._is_due.is_set():
                    self._is_due.clear()
                    ages.clear()
                    await self._write_oldest(len(self._waiting), _MOST_IN_A_WRITE, pause=0)
                    continue
                ripe = 0
                # By time, not by ticks: these take longer while the store is slow, and the repairs do not wait.
                # Half a tick early is better than a whole one late, which rounding would make of the last tick.
                while ages and ages[0][0] + self._delay - tick / 2 <= since:
                    ripe += ages.popleft()[1]
                await self._write_oldest(
                    ripe,
                    min(max(_UNDIVIDED, ripe // _WRITES_OF_A_TICK + 1), _MOST_IN_A_WRITE),
                    pause=tick / (_WRITES_OF_A_TICK + 1),
                )
        finally:
            self._pump = None

    async def _write_oldest(self, count: int, together: int, *, pause: float) -> None:
        task_ids = list(itertools.islice(self._waiting, count))
        marks = [self._make(task_id, *self._waiting.pop(task_id)) for task_id in task_ids]
        for at in range(0, count, together):
            if at and pause:
                await self._rest(pause)
            await self._write_some(marks[at : at + together])

    async def _write_some(self, marks: Sequence[MarkT]) -> None:
        try:
            await self._write(marks)
        except StoreError as error:
            logger.debug("%d marks are left to the repairs: %s", len(marks), error.message)
        except Exception:
            logger.exception("%d marks are left to the repairs", len(marks))

    async def _rest(self, seconds: float) -> None:
        """Let time pass, unless what waits is due at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_due.wait()
