"""The two ways to use HTTP: from asyncio, and blocking. All other code of the client is written once, for both."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar, runtime_checkable

import httpx
from httpx_sse import EventSource, ServerSentEvent

from taskframework.events.requests import environment_errors, is_loopback, uses_tls
from taskframework.tasks.steps import refuse_on_event_loop

Value = TypeVar("Value")

#: How many calls of one event loop are sent at once; the others wait in their order. If all are sent, the pool of httpx
#: takes longer for each of them the more wait, until none of a thousand is sent in time.
_MAX_CONCURRENT_CALLS = 50
#: Streams, which last long, do not count among them.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=_MAX_CONCURRENT_CALLS)
TOO_MANY_CALLS = "too many calls at once"
_CLOSED = "The client is closed. Make a new one, or close it only when it is no longer used."


@runtime_checkable
class StreamedBody(Protocol):
    """A body that is made while it is sent."""

    @property
    def is_consumed(self) -> bool:
        """Whether a part of the body was taken that cannot be made again."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...


Body = bytes | StreamedBody | None


class HttpTransport(Protocol):
    """What the client needs of HTTP, as coroutines. Those of the blocking transport never wait for an event loop."""

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: Body,
        timeout: httpx.Timeout,
        is_streamed: bool,
    ) -> httpx.Response:
        """Send a request; with `is_streamed` the answer is only begun, and must be ended."""

    def iterate_events(self, response: httpx.Response) -> AsyncGenerator[ServerSentEvent, None]:
        """The server-sent events of an answer that was begun."""

    def iterate_bytes(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """The bytes of an answer that was begun, as they come."""

    async def close_response(self, response: httpx.Response) -> None:
        """Close an answer that was begun."""

    async def read_rest(self, response: httpx.Response) -> None:
        """Read the rest of an answer that was begun."""

    async def sleep(self, seconds: float) -> None: ...

    def now(self) -> float:
        """Seconds of a clock that is never set."""

    async def close(self) -> None: ...


#: A client, and the places of the calls that it sends at once.
_OwnClient = tuple[httpx.AsyncClient, asyncio.Semaphore]


@asynccontextmanager
async def _place_in(places: asyncio.Semaphore, seconds: float | None) -> AsyncIterator[None]:
    """Wait until a call may be sent.

    Raises:
        httpx.PoolTimeout: if that takes longer than these seconds.
    """
    try:
        async with asyncio.timeout(seconds):
            await places.acquire()
    except TimeoutError:
        raise httpx.PoolTimeout(TOO_MANY_CALLS) from None
    try:
        yield
    finally:
        places.release()


class AsyncTransport:
    """HTTP from asyncio.

    Connections belong to the event loop that opened them. A program may have several loops, one after the other: each
    `asyncio.run` has its own, and in Django under WSGI each request has. So each loop gets its own connections.
    """

    def __init__(self, url: str, http: httpx.AsyncClient | None) -> None:
        self._url = url
        self._given_client = http
        self._own_clients: dict[asyncio.AbstractEventLoop, AsyncGenerator[_OwnClient, None]] = {}
        self._is_closed = False

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: Body,
        timeout: httpx.Timeout,
        is_streamed: bool,
    ) -> httpx.Response:
        http, places = await self._client()
        request = http.build_request(method, url, headers=headers, content=body, timeout=timeout)
        if is_streamed or places is None:
            return await http.send(request, stream=is_streamed)
        async with _place_in(places, timeout.pool):
            return await http.send(request)

    def iterate_events(self, response: httpx.Response) -> AsyncGenerator[ServerSentEvent, None]:
        return EventSource(response).aiter_sse()

    async def iterate_bytes(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        async for piece in response.aiter_bytes():
            yield piece

    async def close_response(self, response: httpx.Response) -> None:
        await response.aclose()

    async def read_rest(self, response: httpx.Response) -> None:
        await response.aread()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()

    async def close(self) -> None:
        self._is_closed = True
        if (opened := self._own_clients.pop(asyncio.get_running_loop(), None)) is not None:
            await opened.aclose()  # connections of other loops end with their loops

    async def _client(self) -> tuple[httpx.AsyncClient, asyncio.Semaphore | None]:
        if self._given_client is not None:
            return self._given_client, None
        if self._is_closed:
            raise RuntimeError(_CLOSED)
        loop = asyncio.get_running_loop()
        if (opened := self._own_clients.get(loop)) is None:
            for ended in [it for it in list(self._own_clients) if it.is_closed()]:  # threads may add theirs meanwhile
                self._own_clients.pop(ended, None)
            opened = self._open()
            await opened.asend(None)  # first, since it may fail
            self._own_clients[loop] = opened
        return await opened.asend(None)

    async def _open(self) -> AsyncGenerator[_OwnClient, None]:
        """Give the client of one event loop. At its end a loop closes its generators, and so this client."""
        with environment_errors():
            verify = uses_tls(self._url)
            own = httpx.AsyncHTTPTransport(verify=verify, limits=_LIMITS) if is_loopback(self._url) else None
            client = httpx.AsyncClient(transport=own, limits=_LIMITS)
        async with client as http:
            made = http, asyncio.Semaphore(_MAX_CONCURRENT_CALLS)
            while True:
                yield made


class BlockingTransport:
    """HTTP that blocks.

    A forked process must not use the connections of its parent: each would read answers that are for the other one.
    """

    def __init__(self, url: str, http: httpx.Client | None) -> None:
        self._url = url
        self._given_client = http
        #: By the id of the process. Those of a parent stay here unused, because closing them could end its connections.
        self._own_clients: dict[int, httpx.Client] = {}
        self._is_closed = False

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: Body,
        timeout: httpx.Timeout,
        is_streamed: bool,
    ) -> httpx.Response:
        refuse_on_event_loop("SyncTaskClient", "TaskClient")
        content = iterate_blocking(_as_generator(body)) if isinstance(body, AsyncIterable) else body
        http = self._client()
        request = http.build_request(method, url, headers=headers, content=content, timeout=timeout)
        return http.send(request, stream=is_streamed)

    async def iterate_events(self, response: httpx.Response) -> AsyncGenerator[ServerSentEvent, None]:
        for sent in EventSource(response).iter_sse():
            yield sent

    async def iterate_bytes(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        for piece in response.iter_bytes():
            yield piece

    async def close_response(self, response: httpx.Response) -> None:
        response.close()

    async def read_rest(self, response: httpx.Response) -> None:
        response.read()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - no event loop is there to wait

    def now(self) -> float:
        return time.monotonic()

    async def close(self) -> None:
        self._is_closed = True
        if (http := self._own_clients.get(os.getpid())) is not None:
            http.close()

    def _client(self) -> httpx.Client:
        if self._given_client is not None:
            return self._given_client
        if self._is_closed:
            raise RuntimeError(_CLOSED)
        pid = os.getpid()
        if (http := self._own_clients.get(pid)) is None:
            with environment_errors():
                verify = uses_tls(self._url)
                own = httpx.HTTPTransport(verify=verify, limits=_LIMITS) if is_loopback(self._url) else None
                http = httpx.Client(transport=own, limits=_LIMITS)
            http = self._own_clients.setdefault(pid, http)  # another thread may have been faster
        return http


async def _as_generator(pieces: AsyncIterable[Value]) -> AsyncGenerator[Value, None]:
    async for piece in pieces:
        yield piece


def run_blocking(work: Coroutine[Any, Any, Value]) -> Value:
    """Do work that awaits only a blocking transport, so that one step completes it.

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


def iterate_blocking(values: AsyncGenerator[Value, None]) -> Generator[Value, None, None]:
    """Iterate the values in the same way as `run_blocking` runs work."""
    try:
        while True:
            yield run_blocking(values.__anext__())
    except StopAsyncIteration:
        return
    finally:
        run_blocking(values.aclose())
