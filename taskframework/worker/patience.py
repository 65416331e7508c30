"""Waiting for a store that is away: repeated with jittered pauses, at no cost while all is well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from taskframework.errors import StoreUnavailableError

T = TypeVar("T")

_PAUSE = wait_random_exponential(multiplier=0.2, max=3)


async def until_available(call: Callable[[], Awaitable[T]], give_up: Callable[[], bool] = lambda: False) -> T:
    """Call until the store answers.

    Args:
        call: asks the store; must be safe to repeat.
        give_up: asked after each failure.

    Returns:
        What the first call that reached the store returned.

    Raises:
        StoreUnavailableError: the last one, once `give_up` said so.
    """
    try:
        return await call()
    except StoreUnavailableError:
        if give_up():
            raise
    patience = AsyncRetrying(
        retry=retry_if_exception_type(StoreUnavailableError), wait=_PAUSE, stop=lambda _: give_up(), reraise=True
    )
    return await patience(call)
