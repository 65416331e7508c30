"""The client for asyncio."""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import Self

import httpx

from taskframework.client.calls import AllCalls
from taskframework.client.connection import ApiConnection
from taskframework.client.transport import AsyncTransport
from taskframework.events.requests import address_of

#: Default of a client: seconds to wait for an answer. An API whose store is away says so after 11 s at first
#: (`store.timeout` and a ping); a client that waits for less would only learn that there was no answer.
DEFAULT_TIMEOUT_SECONDS = 15.0
#: Default of a client: seconds during which a call is repeated.
DEFAULT_PATIENCE_SECONDS = 30.0


class TaskClient(AllCalls):
    """An installation's HTTP interface, for programs that are not part of it::

        async with TaskClient("http://localhost:8000") as client:
            task = await client.submit("count-words", {"text": "one two three"})
            print(await client.wait(task.task_id, timeout=30))

    A call is repeated when the connection fails or the interface asks for it (429, 503), if that does no harm.
    Errors are those of the framework: `TaskNotFoundError`, `SubmissionError` and so on, and `ApiError` for the rest.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta | float = DEFAULT_TIMEOUT_SECONDS,
        patience: timedelta | float = DEFAULT_PATIENCE_SECONDS,
        api_key: str | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        """Prepare to ask; no connection is made yet.

        Args:
            url: address of an `api` or `dev`, with the path it is mounted at, if any.
            timeout: longest time to connect, and to wait for the next piece of an answer, in seconds or as a timedelta.
            patience: how long a call is repeated, in seconds or as a timedelta; zero asks once.
            api_key: sent with each call, if callers need one.
            http: your own httpx client, for certificates, proxies or headers; the client does not close it.

        Raises:
            ConfigurationError: if the URL is not the address of an API.
        """
        address = address_of(url)
        transport = AsyncTransport(address, http)
        super().__init__(ApiConnection(address, transport, timeout=timeout, patience=patience, api_key=api_key))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._api.transport.close()
