"""Repeats of a write while MongoDB is away: a restart or a step-down of the primary takes seconds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from taskframework.errors import StoreUnavailableError
from taskframework.stores.mongo.client import time_limit

Value = TypeVar("Value")

_PAUSE = wait_random_exponential(multiplier=0.05, max=1)


async def retry_within(
    write: Callable[[], Awaitable[Value]], retry_time: timedelta, *, first: Callable[[], Awaitable[Value]] | None = None
) -> Value:
    """Make a write, several times if necessary, within `retry_time` in total.

    One attempt gets half of this time, so that time is left to find out whether a write without a reply was made.

    Args:
        write: makes one attempt. An earlier attempt may have been applied although its reply was lost.
        retry_time: the time for all attempts.
        first: makes the first attempt instead of `write`.

    Raises:
        StoreUnavailableError: the error of the last attempt.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + retry_time.total_seconds()

    async def attempt(write: Callable[[], Awaitable[Value]]) -> Value:
        with time_limit(retry_time / 2):
            return await write()

    with time_limit(retry_time):
        # Nearly every write needs one attempt, so that one does without the cost of a retrying object.
        with contextlib.suppress(StoreUnavailableError):
            return await attempt(first or write)
        await asyncio.sleep(_PAUSE.multiplier)
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(StoreUnavailableError),
            # An attempt that began after the end would hide the reason behind a time limit that is over.
            stop=lambda state: loop.time() + state.upcoming_sleep >= ends_at,
            wait=_PAUSE,
            reraise=True,
        )
        return await retrying(attempt, write)
