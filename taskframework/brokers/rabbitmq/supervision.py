"""Things that come back: established in the background, lost at any time, established again until stopped."""

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

#: Attempts follow each other at random within a time that doubles up to this, so that a restarted broker is found
#: within seconds and a thousand clients do not come at once.
_LONGEST_PAUSE = 3.0
#: Even what was established without trouble is not established again in a hot loop.
_PAUSE_AFTER_LOSS = (0.02, 0.2)
#: One line a minute or so about a broker that stays away.
_LOG_EVERY = 30


class Losable(Protocol):
    """Something that says when it is gone."""

    @property
    def lost(self) -> asyncio.Event: ...


T = TypeVar("T", bound=Losable)


class Supervised(Generic[T]):
    """One thing, there whenever it can be."""

    def __init__(self, what: str, establish: Callable[[], Awaitable[T]], forget: Callable[[T], None]) -> None:
        """Prepare without starting.

        Args:
            what: its name in the log.
            establish: makes it, or raises; called again with back-off after every failure and loss.
            forget: called once with each one that was lost, to clean up without waiting.
        """
        self._what = what
        self._establish = establish
        self._forget = forget
        self._value: T | None = None
        self._task: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        #: Set when the present attempt has an outcome; while it is clear, waiting may help.
        self._decided = asyncio.Event()
        self._problem = f"{what}: not open."

    @property
    def value(self) -> T | None:
        """The thing, if it is there now."""
        return self._value if self._value is not None and not self._value.lost.is_set() else None

    def start(self) -> None:
        """Begin; again changes nothing."""
        if self._task is None:
            self._decided.clear()
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> T | None:
        """End for good.

        Returns:
            What was there, not cleaned up.
        """
        if self._task is not None:
            await end(self._task)
            self._task = None
        value, self._value = self._value, None
        self._problem = f"{self._what}: closed."
        self._up.clear()
        self._decided.set()
        return value

    async def get(self) -> T:
        """The thing, after the attempt that is under way, if one is.

        Raises:
            BrokerUnavailableError: if the last attempt failed; there is no waiting for a broker known to be away.
        """
        while self._task is not None:
            await self._decided.wait()
            if self._value is None:
                break
            if not self._value.lost.is_set():
                return self._value
            await asyncio.sleep(0)  # the task that notices the loss has not run yet
        raise BrokerUnavailableError(self._problem)

    async def wait(self) -> T:
        """The thing, however long it takes."""
        while self._value is None:
            await self._up.wait()
        return self._value

    async def _run(self) -> None:
        patience = AsyncRetrying(
            wait=wait_random_exponential(multiplier=0.1, max=_LONGEST_PAUSE),
            retry=retry_if_exception_type(Exception),
            before_sleep=self._failed,
        )
        while True:
            value: T = await patience(self._attempt)
            self._value = value
            self._up.set()
            self._decided.set()
            logger.debug("%s: ready", self._what)
            await value.lost.wait()
            self._up.clear()
            self._decided.clear()
            self._value = None
            logger.debug("%s: lost", self._what)
            self._forget(value)
            await asyncio.sleep(random.uniform(*_PAUSE_AFTER_LOSS))

    async def _attempt(self) -> T:
        return await self._establish()  # tenacity awaits coroutine functions only, and this may be a lambda

    def _failed(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        self._problem = error.message if isinstance(error, BrokerError) else f"{self._what}: {error!r}"
        self._decided.set()
        if not isinstance(error, BrokerError):
            logger.error("%s: failed, trying again", self._what, exc_info=error)
        elif state.attempt_number % _LOG_EVERY == 1:
            logger.warning("%s: %s Trying again.", self._what, error)
