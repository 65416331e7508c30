"""Waits in async tests without a guess of how long something takes."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")


@overload
async def eventually(predicate: Callable[[], Awaitable[T | None]], *, timeout: float = ..., what: str = ...) -> T: ...
@overload
async def eventually(predicate: Callable[[], T | None], *, timeout: float = ..., what: str = ...) -> T: ...
async def eventually(
    predicate: Callable[[], Awaitable[T | None] | T | None], *, timeout: float = 30.0, what: str = ""
) -> T:
    """Poll until `predicate()` is truthy and return what it returned.

    Args:
        predicate: A function or a coroutine function. It may also assert; an AssertionError means "not yet".
        timeout: Seconds after which the wait has failed.
        what: Names the expected condition in the error; the predicate's name by default.

    Raises:
        AssertionError: The time is over; the message shows the last value or the last failed assertion.
    """
    ends_at = time.monotonic() + timeout
    pause = 0.005
    while True:
        try:
            outcome = predicate()
            value = await outcome if inspect.isawaitable(outcome) else outcome
            if value:
                return value
            last_problem = f"the last value was {value!r}"
        except AssertionError as error:
            last_problem = f"the last failed assertion was: {error}"
        if time.monotonic() > ends_at:
            raise AssertionError(f"not within {timeout:g} s: {what or _name_of(predicate)}; {last_problem}")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.1)


def _name_of(predicate: Callable[[], object]) -> str:
    code = getattr(predicate, "__code__", None)
    name = getattr(predicate, "__qualname__", repr(predicate))
    return f"{name} (line {code.co_firstlineno})" if code else name
