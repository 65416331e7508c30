"""The two ways to speak HTTP: from asyncio, and blocking. All other code of the client is written once, above them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Generator, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import httpx
from httpx_sse import EventSource, ServerSentEvent

from taskframework.events.http import is_loopback

Value = TypeVar("Value")


@runtime_checkable
class Pieces(Protocol):
    """A body that is made while it is sent."""

    @property
    def is_spent(self) -> bool:
        """Whether a part of the body was taken that cannot be made again."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...


Body = bytes | Pieces | None


class Wire(Protocol):
    """What the client needs of HTTP, as coroutines. Those of the blocking wire never wait for an event loop."""

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: Body, timeout: httpx.Timeout, streams: bool
    ) -> httpx.Response:
        """Send a request; with `streams` the answer is only begun, and must be ended."""

    def events(self, response: httpx.Response) -> AsyncGenerator[ServerSentEvent, None]:
        """The server-sent events of an answer that was begun."""

    def pieces(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """The bytes of an answer that was begun, as they come."""

    async def end(self, response: httpx.Response) -> None:
        """Close an answer that was begun."""

    async def read(self, response: httpx.Response) -> None:
        """Read the rest of an answer that was begun."""

    async def sleep(self, seconds: float) -> None: ...

    def now(self) -> float:
        """Seconds of a clock that nobody sets."""

    async def close(self) -> None: ...


class AsyncWire:
    """HTTP from asyncio."""

    def __init__(self, url: str, http: httpx.AsyncClient | None) -> None:
        self._http = http or httpx.AsyncClient(transport=httpx.AsyncHTTPTransport() if is_loopback(url) else None)
        self._is_ours = http is None

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: Body, timeout: httpx.Timeout, streams: bool
    ) -> httpx.Response:
        request = self._http.build_request(method, url, headers=headers, content=body, timeout=timeout)
        return await self._http.send(request, stream=streams)

    def events(self, response: httpx.Response) -> AsyncGenerator[ServerSentEvent, None]:
        return EventSource(response).aiter_sse()

    async def pieces(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        async for piece in response.aiter_bytes():
            yield piece

    async def end(self, response: httpx.Response) -> None:
        await response.aclose()

    async def read(self, response: httpx.Response) -> None:
        await response.aread()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()

    async def close(self) -> None:
        if self._is_ours:
            await self._http.aclose()


class BlockingWire:
    """HTTP that blocks."""

    def __init__(self, url: str, http: httpx.Client | None) -> None:
        self._http = http or httpx.Client(transport=httpx.HTTPTransport() if is_loopback(url) else None)
        self._is_ours = http is None

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: Body, timeout: httpx.Timeout, streams: bool
    ) -> httpx.Response:
        content = each(_generated(body)) if isinstance(body, AsyncIterable) else body
        request = self._http.build_request(method, url, headers=headers, content=content, timeout=timeout)
        return self._http.send(request, stream=streams)

    async def events(self, response: httpx.Response) -> AsyncGenerator[ServerSentEvent, None]:
        for sent in EventSource(response).iter_sse():
            yield sent

    async def pieces(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        for piece in response.iter_bytes():
            yield piece

    async def end(self, response: httpx.Response) -> None:
        response.close()

    async def read(self, response: httpx.Response) -> None:
        response.read()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - no event loop is there to wait

    def now(self) -> float:
        return time.monotonic()

    async def close(self) -> None:
        if self._is_ours:
            self._http.close()


async def _generated(pieces: AsyncIterable[Value]) -> AsyncGenerator[Value, None]:
    async for piece in pieces:
        yield piece


def done(work: Coroutine[Any, Any, Value]) -> Value:
    """Do work that awaits only a blocking wire, so that one step completes it.

    Raises:
        TypeError: inside the work, where it waits for something else.
    """
    try:
        work.send(None)
        work.throw(TypeError("A blocking client cannot wait for what needs an event loop; use TaskClient for that."))
    except StopIteration as end:
        value: Value = end.value
        return value
    raise AssertionError("work that was refused this way waits again")


def each(values: AsyncGenerator[Value, None]) -> Generator[Value, None, None]:
    """Iterate the values in the same way as `done` does work."""
    try:
        while True:
            yield done(values.__anext__())
    except StopAsyncIteration:
        return
    finally:
        done(values.aclose())
