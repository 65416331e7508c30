"""Group commit: calls that arrive while a write is under way share the next one.

There is no timer. A call that is alone is written at once, alone; under load the groups grow by themselves. Where
calls come together a group waits for a few turns of the event loop: calls that were answered together come back
together, if the first of them does not run ahead.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from taskframework.background import Deadlines

Request = TypeVar("Request")
Reply = TypeVar("Reply")

#: Turns of the event loop that a group waits for company. Calls that were answered together do not all come back in the
#: same turn: with one turn the groups of a worker were smaller, with none a task cost 12 % more of its time.
_TURNS = 5


class Grouping(Generic[Request, Reply]):
    """Turns concurrent single calls into calls of `write` with many requests, one group at a time.

    `write` gets the requests of a group and returns one reply for each, in the same order; an exception it raises
    goes to every caller of the group, an exception among the replies to its own caller.
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
            limit: largest group.
            key: two requests with the same key never share a group, so that the second sees what the first did.
            timeout: seconds after which a call fails that has no reply yet; what is being written may still be.
            on_timeout: makes the error it fails with.
        """
        self._write = write
        self._limit = limit
        self._key = key
        self._waiting: deque[tuple[Request, asyncio.Future[Reply]]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._timeout = timeout
        self._deadlines = Deadlines(on_timeout)
        self._had_company = False

    async def __call__(self, request: Request) -> Reply:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        self._waiting.append((request, future))
        if self._pump is None:
            # In a context of its own: the pump outlives its first caller, whose time limits and log context end.
            self._pump = asyncio.create_task(self._run(), context=contextvars.Context())
        if self._timeout is not None:
            self._deadlines.limit(future, loop.time() + self._timeout)
        return await future

    async def drain(self) -> None:
        """Wait until nothing waits."""
        while self._pump is not None:
            await asyncio.wait([self._pump])

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._company()
                group = self._next_group()
                if not group:
                    continue
                try:
                    replies = await self._write([request for request, _ in group])
                    if len(replies) != len(group):
                        raise RuntimeError(f"{len(replies)} replies to {len(group)} requests")
                except Exception as error:
                    replies = [error] * len(group)
                except BaseException:
                    for _, future in group:
                        future.cancel()
                    raise
                self._had_company = len(group) > 1
                for (_, future), reply in zip(group, replies, strict=True):
                    _answer(future, reply)
        finally:
            self._pump = None

    async def _company(self) -> None:
        if self._had_company:
            for _ in range(_TURNS):
                if len(self._waiting) >= self._limit:
                    break
                await asyncio.sleep(0)

    def _next_group(self) -> list[tuple[Request, asyncio.Future[Reply]]]:
        group: list[tuple[Request, asyncio.Future[Reply]]] = []
        later: list[tuple[Request, asyncio.Future[Reply]]] = []
        seen: set[object] = set()
        while self._waiting and len(group) < self._limit:
            entry = self._waiting.popleft()
            request, future = entry
            if future.done():  # its caller gave up: a claim written now would be nobody's
                continue
            key = None if self._key is None else self._key(request)
            (later if key is not None and key in seen else group).append(entry)
            seen.add(key)
        self._waiting.extendleft(reversed(later))
        return group


def _answer(future: asyncio.Future[Reply], reply: Reply | Exception) -> None:
    if future.done():  # the caller was cancelled; the write happened all the same
        return
    if isinstance(reply, Exception):
        future.set_exception(reply)
    else:
        future.set_result(reply)
