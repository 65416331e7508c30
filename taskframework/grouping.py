"""Group commit: calls that arrive while a write is under way share the next write.

There is no timer. A single call is written at once, alone; under load the groups become larger by themselves. If the
last group had several calls, the next group waits for a few turns of the event loop: callers that got their answers
together call again at about the same time.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from taskframework.background import Deadlines, current_loop, is_failure, refuse_other_loop
from taskframework.errors import StoreError, StoreUnavailableError

Request = TypeVar("Request")
Reply = TypeVar("Reply")

#: How many turns of the event loop a group waits for more calls. Callers that got answers together do not all call
#: again in the same turn: with one turn the groups of a worker were smaller, without a wait a task took 12 % more time.
_TURNS_TO_WAIT = 5


@dataclass(slots=True)
class _Call(Generic[Request, Reply]):
    """A call that waits for its reply."""

    request: Request
    future: asyncio.Future[Reply]
    key: object


#: The most requests of a group of calls that come by the hundred: from a bulk submission, or from a repair. With groups
#: of 100, tasks of streams that were submitted while 8 workers ran took 1.4 times as long: their messages also came by
#: the hundred, and each worker got few of them at once.
BULK_LIMIT = 500


class Grouping(Generic[Request, Reply]):
    """Turns concurrent single calls into calls of `write` with many requests, one group at a time.

    `write` gets the requests of a group and returns one reply for each, in the same order. If it raises an exception,
    every caller of the group gets the exception; an exception among the replies goes only to its own caller.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Request]], Awaitable[Sequence[Reply | Exception]]],
        *,
        limit: int = 100,
        key: Callable[[Request], object] | None = None,
        timeout: float | None = None,
        on_timeout: Callable[[], Exception] = TimeoutError,
    ) -> None:
        """Prepare an idle group.

        Args:
            write: writes one group.
            limit: the most requests of a group.
            key: two requests with the same key never share a group, so that the second sees the effect of the first.
            timeout: seconds after which a call without a reply fails; its request may still be written.
            on_timeout: makes the error with which the call fails.
        """
        self._write = write
        self._limit = limit
        self._key = key
        #: Of each key only the first call; the next ones wait behind it, so that no group looks through all of them.
        self._waiting: deque[_Call[Request, Reply]] = deque()
        self._waiting_keys: set[object] = set()
        self._behind: defaultdict[object, deque[_Call[Request, Reply]]] = defaultdict(deque)
        self._pump: asyncio.Task[None] | None = None
        #: The event loop of all calls: a pump on another loop could not wake their futures. If no loop runs yet, it is
        #: that of the first call.
        self._loop = current_loop()
        self._timeout = timeout
        self._deadlines = Deadlines(on_timeout)
        self._had_company = False

    async def __call__(self, request: Request) -> Reply:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            refuse_other_loop(self._loop)
            self._loop = loop
        future: asyncio.Future[Reply] = loop.create_future()
        self._add(_Call(request, future, None if self._key is None else self._key(request)))
        if self._pump is None or self._pump.done():  # done: cancelled before it began
            # In a separate context: the pump runs on after its first caller, whose time limits and log context end.
            self._pump = asyncio.create_task(self._run(), context=contextvars.Context())
        if self._timeout is not None:
            self._deadlines.limit(future, loop.time() + self._timeout)
        return await future

    async def drain(self) -> None:
        """Wait until no request waits."""
        while self._pump is not None and not self._pump.done():
            await asyncio.wait([self._pump])

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._wait_for_company()
                group = self._next_group()
                if not group:
                    continue
                try:
                    replies = await self._write([call.request for call in group])
                    if len(replies) != len(group):
                        raise RuntimeError(f"{len(replies)} replies to {len(group)} requests")
                except Exception as error:
                    replies = [error] * len(group)
                except BaseException as error:
                    if not is_failure(error):
                        for call in group:
                            call.future.cancel()
                        raise
                    # A driver gave up the write. A cancellation as reply would end callers that nobody cancelled.
                    replies = [StoreUnavailableError("The call was given up.")] * len(group)
                self._had_company = len(group) > 1
                for call, reply in zip(group, replies, strict=True):
                    _answer(call.future, reply)
        finally:
            self._pump = None

    async def _wait_for_company(self) -> None:
        if self._had_company:
            for _ in range(_TURNS_TO_WAIT):
                if len(self._waiting) >= self._limit:
                    break
                await asyncio.sleep(0)

    def _add(self, call: _Call[Request, Reply]) -> None:
        if call.key is None:
            self._waiting.append(call)
        elif call.key in self._waiting_keys:
            self._behind[call.key].append(call)
        else:
            self._waiting_keys.add(call.key)
            self._waiting.append(call)

    def _next_group(self) -> list[_Call[Request, Reply]]:
        group: list[_Call[Request, Reply]] = []
        followers: list[_Call[Request, Reply]] = []
        while self._waiting and len(group) < self._limit:
            call = self._waiting.popleft()
            if not call.future.done():  # without its caller, no worker would run a claim that is written now
                group.append(call)
            if call.key is not None and (follower := self._follower(call.key)) is not None:
                followers.append(follower)
        self._waiting.extend(followers)
        return group

    def _follower(self, key: object) -> _Call[Request, Reply] | None:
        """Take the next call of a key whose first call is no longer waiting."""
        behind = self._behind.get(key)
        while behind:
            call = behind.popleft()
            if not call.future.done():
                return call
        self._behind.pop(key, None)
        self._waiting_keys.discard(key)
        return None


async def together_or_alone(
    write: Callable[[Sequence[Request]], Awaitable[Sequence[Reply]]], requests: Sequence[Request]
) -> Sequence[Reply | Exception]:
    """Write requests together; if that fails, each by itself: perhaps the record of only one of them is unreadable.

    Raises:
        StoreUnavailableError: if the store is away, which is the same for all.
    """
    try:
        return await write(requests)
    except StoreUnavailableError:
        raise
    except StoreError:
        return [await _reply_or_error(write, request) for request in requests]


async def _reply_or_error(
    write: Callable[[Sequence[Request]], Awaitable[Sequence[Reply]]], request: Request
) -> Reply | Exception:
    try:
        [reply] = await write([request])
    except StoreError as error:
        return error
    return reply


def _answer(future: asyncio.Future[Reply], reply: Reply | Exception) -> None:
    if future.done():  # the caller was cancelled, although the write was made
        return
    if isinstance(reply, Exception):
        future.set_exception(reply)
    else:
        future.set_result(reply)
