"""Receives the events of a process over HTTP, for installations without a broker that other programs can reach."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

from taskframework.background import end
from taskframework.brokers.base import Consumption, ExternalMessage, OnExternalMessage, log_event_failure
from taskframework.errors import BrokerUnavailableError
from taskframework.events.external import SINGLE
from taskframework.events.requests import (
    MAX_SILENCE_SECONDS,
    address_of,
    authorization,
    environment_errors,
    is_heartbeat,
    is_loopback,
    require_event_stream,
    uses_tls,
)
from taskframework.urls import redacted

if TYPE_CHECKING:
    import httpx
    from httpx_sse import EventSource, ServerSentEvent

logger = logging.getLogger(__name__)

PATH = "/api/v1/events"
#: Seconds until a failed connection, or an event that could not be handed over, is tried again.
_RETRY_PAUSE_SECONDS = 1.0


class NobodyListensError(ConnectionError):
    """No loop or handler takes the events any more, because a loop was left. This is not an error: the next one gets
    the events.
    """


class EventsUnavailableError(BrokerUnavailableError):
    """No interface answers at the address of the events."""


class HttpEvents:
    """The event stream of an `api` or `dev` process; an `EventSubscriber` uses it in place of a broker.

    It is also the `Consumption`: from `subscribe` to `stop` it connects again after each lost connection.
    """

    def __init__(self, url: str, *, api_key: str | None = None, tell: Callable[[str], None] = logger.warning) -> None:
        """Prepare to listen.

        Args:
            url: address of the HTTP interface, with the path at which it is mounted, if any.
            api_key: sent to the interface, if it has keys.
            tell: called with a sentence for every connection that ended, for every reason why there is no new one, and
                for events that may have been missed.

        Raises:
            ConfigurationError: if the URL is not an address of an interface, or a header cannot contain the key.
        """
        self.url = address_of(url)
        self._headers = authorization(api_key, self.url)
        self.tell = tell
        #: Whether events are being delivered now.
        self.is_live = False
        self._client: httpx.AsyncClient | None = None
        self._listening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Check that the interface answers now. If the connection breaks later, it is made again.

        Raises:
            EventsUnavailableError: if no interface answers with events.
        """
        import httpx

        try:
            timeout = httpx.Timeout(5.0, read=MAX_SILENCE_SECONDS)
            with environment_errors():
                direct = httpx.AsyncHTTPTransport(verify=uses_tls(self.url)) if is_loopback(self.url) else None
                self._client = httpx.AsyncClient(timeout=timeout, headers=self._headers, transport=direct)
            async with self._connection(is_first=True):
                pass
        except httpx.HTTPError as error:
            await self.close()
            raise self._unavailable(error) from None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def subscribe(self, on_message: OnExternalMessage, *, durable_name: str | None = None) -> Consumption:
        """Receive events one at a time, from now on. A queue name has no effect here: no events are kept."""
        self.is_live = False
        self._listening = asyncio.create_task(self._listen(on_message))
        return self

    async def stop(self) -> None:
        if self._listening is not None:
            await end(self._listening)
        self.is_live = False

    @contextlib.asynccontextmanager
    async def _connection(self, *, is_first: bool) -> AsyncGenerator[EventSource, None]:
        """Open the stream of events for a block."""
        from httpx_sse import aconnect_sse

        assert self._client is not None, "it was opened"
        # Events are not repeated. With this header, whatever its value, the interface says that some may be missing.
        headers = {} if is_first else {"Last-Event-ID": "again"}
        async with aconnect_sse(self._client, "GET", self.url + PATH, headers=headers) as source:
            source.response.raise_for_status()
            require_event_stream(source.response)
            yield source

    async def _listen(self, on_message: OnExternalMessage) -> None:
        import httpx

        is_first = True
        told: set[str] = set()
        while True:
            reason = ""
            try:
                async with self._connection(is_first=is_first) as source:
                    self.is_live, is_first = True, False
                    async for event in source.aiter_sse():
                        await self._receive(event, on_message)
            except httpx.HTTPError as error:
                reason = str(self._unavailable(error))
            if self.is_live:
                self.is_live, told = False, set()
                self.tell(f"The connection to {redacted(self.url)} ended; trying again.")
            elif reason not in told:
                told.add(reason)
                self.tell(f"{reason} Trying again.")
            await asyncio.sleep(_RETRY_PAUSE_SECONDS)

    def _unavailable(self, error: httpx.HTTPError) -> EventsUnavailableError:
        import httpx

        reason = (str(error).splitlines() or [type(error).__name__])[0].replace(self.url, redacted(self.url))
        hint = "Start `taskframework dev --app …` or `taskframework api --app …` there, or give its address."
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403):
            reason = "the API key is not valid" if self._headers else "it needs an API key"
            hint = "Give a key that is allowed to read: --key KEY or TASKFRAMEWORK_KEY, in a program api_key=…."
        return EventsUnavailableError(f"No events at {redacted(self.url)}: {reason.rstrip('.')}.", hint=hint)

    async def _receive(self, event: ServerSentEvent, on_message: OnExternalMessage) -> None:
        if event.event == "resync":
            self.tell(f"Listening to {redacted(self.url)}; events may have been missed in between.")
        elif not is_heartbeat(event):
            await _handle_until_done(ExternalMessage(event.data.encode(), SINGLE, {}), on_message)


async def _handle_until_done(message: ExternalMessage, on_message: OnExternalMessage) -> None:
    while True:
        try:
            await on_message(message)
            return
        except NobodyListensError:
            await asyncio.sleep(_RETRY_PAUSE_SECONDS)
        except Exception as error:
            log_event_failure(logger, " and is retried", error)
            await asyncio.sleep(_RETRY_PAUSE_SECONDS)
