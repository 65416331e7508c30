"""Connections, channels and consumers that come back: made in the background, and made again after each loss."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from taskframework.background import end
from taskframework.errors import BrokerError, BrokerUnavailableError

logger = logging.getLogger(__name__)

#: Seconds of the longest pause between two attempts. Pauses are random and double up to this: so a restarted broker is
#: found within seconds, and a thousand clients do not come at the same moment.
_MAX_RETRY_PAUSE_SECONDS = 3.0
#: Seconds of the pause after a loss (random between these), so that a value that is lost at once causes no hot loop.
_PAUSE_AFTER_LOSS_SECONDS = (0.02, 0.2)
#: One line is logged per this number of attempts. Pauses are half of the longest one on average, so while a broker is
#: away that is a line in about 45 seconds.
_ATTEMPTS_PER_LOG_LINE = 30


class Losable(Protocol):
    """A connection, channel or consumer with an event that is set when it is lost."""

    @property
    def lost(self) -> asyncio.Event: ...


T = TypeVar("T", bound=Losable)


class Supervised(Generic[T]):
    """Keeps one losable value: it exists whenever it can be established."""

    def __init__(
        self,
        name: str,
        establish: Callable[[], Awaitable[T]],
        on_lost: Callable[[T], None],
        is_worth_warning: Callable[[], bool] = lambda: True,
    ) -> None:
        """Prepare without starting.

        Args:
            name: the name of the value in the log.
            establish: makes the value, or raises; called again with back-off after every failure and loss.
            on_lost: called once with each lost value, to clean up without waiting.
            is_worth_warning: whether a failure is logged as a warning; if not, only for those who debug.
        """
        self._name = name
        self._establish = establish
        self._on_lost = on_lost
        self._is_worth_warning = is_worth_warning
        self._value: T | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_available = asyncio.Event()
        #: Set when the present attempt has succeeded or failed; while it is clear, `get` waits.
        self._attempt_is_over = asyncio.Event()
        self._problem = f"{name}: not open."

    @property
    def value(self) -> T | None:
        """The value, if it exists now; otherwise None."""
        return self._value if self._value is not None and not self._value.lost.is_set() else None

    def start(self) -> None:
        """Begin; a second call changes nothing."""
        if self._task is None:
            self._attempt_is_over.clear()
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> T | None:
        """End the supervision.

        Returns:
            The value, if it existed; the caller has to clean it up.
        """
        if self._task is not None:
            await end(self._task)
            self._task = None
        value, self._value = self._value, None
        self._problem = f"{self._name}: closed."
        self._is_available.clear()
        self._attempt_is_over.set()
        return value

    async def get(self) -> T:
        """Return the value; if an attempt is under way, wait for it first.

        Raises:
            BrokerUnavailableError: at once, if the last attempt failed: the broker is known to be away.
        """
        while self._task is not None:
            await self._attempt_is_over.wait()
            if self._value is None:
                break
            if not self._value.lost.is_set():
                return self._value
            await asyncio.sleep(0)  # `_run` has not noticed the loss yet
        raise BrokerUnavailableError(self._problem)

    async def wait(self) -> T:
        """Return the value, however long the wait for it takes."""
        while self._value is None:
            await self._is_available.wait()
        return self._value

    async def _run(self) -> None:
        retrying = AsyncRetrying(
            wait=wait_random_exponential(multiplier=0.1, max=_MAX_RETRY_PAUSE_SECONDS),
            retry=retry_if_exception_type(Exception),
            before_sleep=self._note_failure,
        )
        while True:
            value: T = await retrying(self._attempt)
            self._value = value
            self._is_available.set()
            self._attempt_is_over.set()
            logger.debug("%s: ready", self._name)
            await value.lost.wait()
            self._is_available.clear()
            self._attempt_is_over.clear()
            self._value = None
            logger.debug("%s: lost", self._name)
            self._on_lost(value)
            await asyncio.sleep(random.uniform(*_PAUSE_AFTER_LOSS_SECONDS))

    async def _attempt(self) -> T:
        return await self._establish()  # tenacity awaits coroutine functions only, and this may be a lambda

    def _note_failure(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        self._problem = error.message if isinstance(error, BrokerError) else f"{self._name}: {error!r}"
        self._attempt_is_over.set()
        if not isinstance(error, BrokerError):
            logger.error("%s: failed, retrying", self._name, exc_info=error)
        elif state.attempt_number % _ATTEMPTS_PER_LOG_LINE == 1:
            level = logging.WARNING if self._is_worth_warning() else logging.DEBUG
            logger.log(level, "%s: %s Trying again.", self._name, error)
