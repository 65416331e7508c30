"""A repair that runs for ever: no error ends it, its pauses vary, and readiness sees the time of its last success."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta

from taskframework.background import end, is_failure
from taskframework.clock import Clock
from taskframework.errors import BrokerError, StoreError, StoreUnavailableError, TaskUnreadableError
from taskframework.leaving_out import leave_out
from taskframework.model.drivers import Driver
from taskframework.model.task import Task
from taskframework.model.transitions import Transition
from taskframework.stores.base import TaskStore
from taskframework.stores.replies import DueTask

logger = logging.getLogger(__name__)

#: A loop is late when its last success is this many of its intervals ago, and some seconds more: a few looks may fail.
_LATE_INTERVALS = 10
#: Further seconds after which a late loop is reported, and after which the process is not ready. A process that is not
#: ready gets no requests, so the second time is longer than an election in the database or the start of a broker.
_REPORTED_AFTER_SECONDS = 5
_UNREADY_AFTER_SECONDS = 30
#: A process reads this many times as many due tasks as it takes, and takes some of them by chance.
CHOICE_FACTOR = 5
#: The shortest and the longest pause, as a share of the interval.
_PAUSE_SHARES = (0.75, 1.25)
#: One look of a repair; returns True if there is more to do right now.
Look = Callable[[], Awaitable[bool | None]]


async def make_reservations(store: TaskStore, reservations: Iterable[Transition]) -> list[Task]:
    """Make all reservations at once, so that the store can group them; return the tasks of those that were won."""
    replies = await asyncio.gather(*(_make_reservation(store, reservation) for reservation in reservations))
    return [task for task in replies if task is not None]


async def _make_reservation(store: TaskStore, reservation: Transition) -> Task | None:
    try:
        return await store.apply(reservation)
    except TaskUnreadableError as error:  # a newer release wrote it, and its processes repair it
        leave_out(error)
        return None


async def choose_due(
    store: TaskStore, driver: Driver, most: int, grace: timedelta = timedelta(0)
) -> tuple[Sequence[DueTask], bool]:
    """At most this many due tasks for this process, and whether there may be more.

    If more are due, they are chosen by chance among several times as many, because other processes look at the same
    moment: if all took the oldest tasks, one of them would write, and the others would only find that out task by task.
    """
    found = await store.due(driver, CHOICE_FACTOR * most, grace)
    return (found, False) if len(found) <= most else (random.sample(found, most), True)


async def _never(_: StoreUnavailableError) -> bool:
    return False


class RepairLoop:
    """Calls a repair again and again. No error ends the loop; a loop that is much too late shows in readiness."""

    def __init__(
        self,
        name: str,
        repair: Look,
        interval: timedelta,
        clock: Clock,
        on_failure: Callable[[str], None] = lambda name: None,
        is_store_away: Callable[[StoreUnavailableError], Awaitable[bool]] = _never,
        pace: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """Prepare the loop.

        Args:
            name: for logs, metrics and readiness.
            repair: makes one look.
            interval: pause between two looks.
            clock: for the pause, and for the time of the last look.
            on_failure: called with the name after each look that failed.
            is_store_away: asked when the store did not answer. If it returns True, it has logged this itself.
            pace: returns how many times as long as `interval` the next pause is.
        """
        self.name = name
        self._repair = repair
        self._interval = interval.total_seconds()
        self._clock = clock
        self._on_failure = on_failure
        self._is_store_away = is_store_away
        self._pace = pace
        #: How many looks succeeded.
        self.looks = 0
        #: When the last look succeeded, by the clock of this machine; None before the first.
        self.last_run: datetime | None = None
        self._last_success: float | None = None
        #: The error of the last look, if it failed.
        self._last_error: str | None = None
        #: The error that was logged as a warning since the last success.
        self._logged_error: str | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._last_success = self._clock.monotonic()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            await end(self._task)

    @property
    def seconds_since_success(self) -> float:
        """How many seconds ago the last look succeeded (or the loop began)."""
        return 0.0 if self._last_success is None else self._clock.monotonic() - self._last_success

    @property
    def interval(self) -> float:
        """The planned pause between two looks, in seconds."""
        return self._interval * self._pace()

    def problem(self) -> str | None:
        """Why the process is not ready: the loop ended, or its last success is much longer ago than planned."""
        return self._standstill_after(_UNREADY_AFTER_SECONDS)

    def standstill(self) -> str | None:
        """Return the same as `problem`, but earlier: it is reported, and the process is still ready."""
        return self._standstill_after(_REPORTED_AFTER_SECONDS)

    def _standstill_after(self, seconds: float) -> str | None:
        ago = f"last succeeded {self.seconds_since_success:.0f} s ago"
        if self._task is not None and self._task.done():
            return f"ended; {ago}"
        return ago if self.seconds_since_success > _LATE_INTERVALS * self.interval + seconds else None

    async def _run(self) -> None:
        while True:
            more = await self._run_once()
            # Vary the pause, so that processes that started together do not look together.
            await self._clock.sleep(0 if more else self.interval * random.uniform(*_PAUSE_SHARES))

    async def _run_once(self) -> bool:
        try:
            if (more := await self._run_unless_store_away()) is not None:
                self._last_success, self.last_run = self._clock.monotonic(), self._clock.now()
                self.looks += 1
                self._last_error = self._logged_error = None
                return more
        except (StoreError, BrokerError) as error:
            logger.log(self._level_of(error), "%s: %s", self.name, error)
        except BaseException as error:
            if not is_failure(error):
                raise
            logger.exception("%s failed and continues", self.name)
        self._on_failure(self.name)
        return False

    def _level_of(self, error: StoreError | BrokerError) -> int:
        """Return the level at which an error is logged. What only a person can mend fails at each look in the same way,
        and is a warning once. A store that did not answer a look, but answers now, may have had an election: that is a
        warning only if the next look fails too.
        """
        may_have_passed = isinstance(error, StoreUnavailableError) and self._last_error is None
        self._last_error = str(error)
        if may_have_passed or self._last_error == self._logged_error:
            return logging.DEBUG
        self._logged_error = self._last_error
        return logging.WARNING

    async def _run_unless_store_away(self) -> bool | None:
        """Look once; return whether there is more to do. None while the store is away: another part logs that once."""
        try:
            return bool(await self._repair())
        except StoreUnavailableError as error:
            if not await self._is_store_away(error):
                raise
            logger.debug("%s: %s", self.name, error.message)
            return None
