"""While the store is away: calls are repeated until it answers, and the breaker stops consuming meanwhile."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, retry_if_exception, wait_random_exponential

from taskframework.background import end, is_failure
from taskframework.clock import Clock, happens_within
from taskframework.errors import StoreError, StoreUnavailableError
from taskframework.model.wording import pluralize

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds of the first pause between two calls, and of the longest pause.
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 3.0
#: If the store is away again within this many seconds after it came back, the first pause is longer.
_RELAPSE_SECONDS = 30.0


async def until_available(
    call: Callable[[], Awaitable[T]],
    give_up: Callable[[], bool] = lambda: False,
    on_failure: Callable[[StoreUnavailableError], None] = lambda error: None,
) -> T:
    """Repeat a call until the store answers, with random pauses between; adds no pause while the store answers.

    Args:
        call: asks the store; must be safe to repeat.
        give_up: called after each failure; returns whether to give up.
        on_failure: called with each failure.

    Returns:
        The result of the first call that reached the store.

    Raises:
        StoreUnavailableError: the last error, once `give_up` returned True.
    """

    max_pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await call()
        except StoreUnavailableError as error:
            on_failure(error)
            if give_up():
                raise
        await asyncio.sleep(random.uniform(0, max_pause))
        max_pause = min(2 * max_pause, _MAX_PAUSE_SECONDS)


class StoreBreaker:
    """Open while the store is away: from the first call that failed until the store answers a ping."""

    def __init__(
        self, ping: Callable[[], Awaitable[None]], clock: Clock, deliveries: Callable[[], int] | None = None
    ) -> None:
        """Start closed.

        Args:
            ping: asks the store whether it is reachable; raises while it is not.
            clock: for the pauses between two pings.
            deliveries: returns how many deliveries wait for the store, for the log; None in a process without a worker.
        """
        self._ping = ping
        self._clock = clock
        self._deliveries = deliveries
        self.is_open = False
        #: Whether the store did not even answer a ping. With a full disk writes fail, but pings and reads still work.
        self.is_silent = False
        self._can_continue = asyncio.Event()
        self._closed_at = -_RELAPSE_SECONDS
        self._relapses = 0
        self._is_stopped = False
        self._probing: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[bool] | None = None
        #: Called when the breaker opens and when it closes.
        self.on_change: Callable[[], None] = lambda: None

    def open(self, error: StoreUnavailableError) -> None:
        """Open the breaker, because the store did not answer; while the breaker is open this changes nothing."""
        if self.is_open:
            return
        # While a store answers pings but fails at writes, consuming must not start and stop in a hot loop.
        self._relapses = self._relapses + 1 if self._clock.monotonic() - self._closed_at < _RELAPSE_SECONDS else 0
        self.is_open = True
        if not self._is_stopped:
            self._can_continue.clear()
        if self._is_logged:
            consequence = self._consequence("consuming stops")
            # In an empty context: this is about the process, not about the attempt that noticed it first.
            contextvars.Context().run(logger.warning, "the store is away%s: %s", consequence, error)
        self._probing = asyncio.create_task(self._probe(), context=contextvars.Context())
        self.on_change()

    async def is_away(self, error: StoreUnavailableError) -> bool:
        """Return whether this failure of a call comes from an outage that the log already has: the store is away, or
        was away until a moment ago. False: only the call took too long.

        If the store is away this opens the breaker, so that an idle process notices it too.
        """
        if not self.is_open:
            try:
                await self._ping()
            except StoreError:
                self.open(error)
                self.is_silent = True
            else:
                # A call that began while the store was away may fail after the store is back. The log has this already.
                return self._clock.monotonic() - self._closed_at < _RELAPSE_SECONDS
        return self.is_open

    def check_soon(self, error: StoreUnavailableError) -> None:
        """Do the same as `is_away`, in the background, for a caller that needs no answer; one ping at a time."""
        if not self.is_open and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(self.is_away(error))

    async def wait_until_closed(self, within: float | None) -> bool:
        """Wait until the breaker is closed, at most `within` seconds or until `stop_waiting` is called.

        Returns:
            Whether the breaker is closed.
        """
        gives_up_at = None if within is None else self._clock.monotonic() + within
        # Again if it opened anew before this was woken: a store may answer pings and fail at writes.
        while self.is_open and not self._is_stopped:
            left = None if gives_up_at is None else gives_up_at - self._clock.monotonic()
            if left is not None and left <= 0:
                break
            await happens_within(self._can_continue, left, self._clock)
        return not self.is_open

    def stop_waiting(self) -> None:
        """End all waits in `wait_until_closed`, and let none begin."""
        self._is_stopped = True
        self._can_continue.set()

    async def stop(self) -> None:
        """Send no more pings."""
        if self._checking is not None:
            await end(self._checking)
        if self._probing is not None:  # read only now: `_checking` may have started it just before it ended
            await end(self._probing)

    @property
    def _is_logged(self) -> bool:
        """Whether this outage is logged: the first one, and of the relapses after it the 1st, 2nd, 4th, 8th and so on.
        With a full disk each ping succeeds and writes fail, so there are many relapses, which would fill the log.
        """
        return self._relapses & (self._relapses - 1) == 0

    def _consequence(self, what: str, *, is_over: bool = False) -> str:
        if self._deliveries is None:
            return ""
        number = self._deliveries()
        verb = ("was" if is_over else "is") if number == 1 else ("were" if is_over else "are")
        return f", {what}, {pluralize(number, 'delivery', 'deliveries')} {verb} held"

    async def _probe(self) -> None:
        since = self._clock.monotonic()
        first = min(_MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(self._relapses, 8))
        await self._clock.sleep(random.uniform(first / 2, first))
        pause = wait_random_exponential(multiplier=first, max=_MAX_PAUSE_SECONDS)
        await AsyncRetrying(wait=pause, sleep=self._clock.sleep, retry=retry_if_exception(is_failure))(self._ping_once)
        self._closed_at = self._clock.monotonic()
        if self._is_logged:
            consequence = self._consequence("consuming continues", is_over=True)
            logger.info("the store is back after %.1f s%s", self._closed_at - since, consequence)
        self.is_open = self.is_silent = False
        self._can_continue.set()
        self.on_change()

    async def _ping_once(self) -> None:
        try:
            await self._ping()
        except StoreError:
            self.is_silent = True
            raise
