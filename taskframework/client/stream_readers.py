"""Follows server-sent events over connections that break: every event comes once and in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import Any, Generic, TypeVar

import httpx
import orjson
from httpx_sse import ServerSentEvent, SSEError

from taskframework.brokers.base import ExternalMessage
from taskframework.client.connection import ApiConnection
from taskframework.client.paths import task_path
from taskframework.client.requests import Call
from taskframework.errors import ApiError, ApiUnavailableError, TaskframeworkError
from taskframework.events.external import PREFIX, SINGLE, ExternalEvent, read_events
from taskframework.events.requests import MAX_SILENCE_SECONDS, is_heartbeat, require_event_stream
from taskframework.model.status import TaskStatus
from taskframework.urls import redacted

ValueT = TypeVar("ValueT")

#: How many streams at most wait for the end of a task. httpx has 100 connections, and other calls need some, too.
MAX_WAITING_STREAMS = 50
#: Seconds until a stream that gave nothing new is opened again.
RECONNECT_PAUSE_SECONDS = 1.0
#: Seconds by which a wait may exceed its timeout because its stream is silent.
_MAX_LATE_SECONDS = 1.0
#: Fields of a task that a snapshot has and an event does not have.
_SNAPSHOT_ONLY_FIELDS = ("parameters", "history")


class StreamReader(ABC, Generic[ValueT]):
    """The place of one reader in a stream."""

    def __init__(self, api: ApiConnection, call: Call, last_id: str) -> None:
        """Begin to follow.

        Args:
            api: the connection to the installation.
            call: the call that opens the stream.
            last_id: the id after which the stream continues; empty for the beginning.
        """
        self._api = api
        self._call = call
        self._last_id = last_id
        #: Whether the whole stream was read, and nothing more will come.
        self.is_over = False

    @abstractmethod
    def _take_values(self, message: ServerSentEvent) -> list[ValueT]:
        """Return the new values in a sent message, and keep the id after which the stream continues."""

    async def values(self) -> AsyncGenerator[ValueT, None]:
        """All values of the stream, over as many connections as necessary.

        Raises:
            TaskframeworkError: as `read_connection`; ApiUnavailableError if no answer came in time.
        """
        while not self.is_over:
            has_news = False
            async with aclosing(self.read_connection()) as parts:
                async for values in parts:
                    has_news = has_news or bool(values)
                    for value in values:
                        yield value
            if not has_news and not self.is_over:
                await self._api.transport.sleep(RECONNECT_PAUSE_SECONDS)

    async def read_connection(
        self, *, silence: float = MAX_SILENCE_SECONDS, patience: float | None = None
    ) -> AsyncGenerator[list[ValueT], None]:
        """The new values of one connection, until it ends; an empty list is a sign of life.

        Raises:
            ApiError: if the API gives no stream.
            TaskNotFoundError: if there is no such task, or no longer.
        """
        was_silent = True
        try:
            async with self._api.open_stream(self._opening_call(), silence=silence, patience=patience) as response:
                if response.status_code == 204:
                    self.is_over = True
                    return
                _require_event_stream(response)
                async with aclosing(self._api.transport.iterate_events(response)) as messages:
                    async for message in messages:
                        was_silent = False
                        # After `resync` the events that were missed come with the next connection.
                        yield [] if is_heartbeat(message) or message.event == "resync" else self._take_values(message)
        except httpx.ReadTimeout:
            if was_silent:  # the interface sends something at once, so a proxy keeps it back
                raise ApiError(
                    f"{redacted(self._api.url)} sent nothing for {silence:g} seconds.",
                    hint="A proxy in between seems to hold back server-sent events; wait() works without them.",
                ) from None
        except httpx.TransportError:
            return  # it broke; the next connection continues from here

    def _opening_call(self) -> Call:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self._last_id} if self._last_id else {})
        return replace(self._call, headers=headers)


class TaskStreamReader(StreamReader[ExternalEvent]):
    """The place of one reader in the events of a task."""

    def __init__(self, api: ApiConnection, task_id: str, after: int) -> None:
        """Begin to follow.

        Args:
            api: where the task is.
            task_id: the task.
            after: the sequence of the last event the reader has; 0 for none.
        """
        call = Call("GET", f"{task_path(task_id)}/events", error_context={"task_id": task_id})
        super().__init__(api, call, f"{task_id}-{after}")
        self._task_id = task_id
        self._sequence = after
        self._progress = (0, 0)
        #: Whether the interface gives no streams, so that the wait continues without them.
        self.is_refused = False

    async def wait_until_final(self, seconds_left: Callable[[], float]) -> bool:
        """Listen until the task is final, the connection ends or the time is nearly over.

        Args:
            seconds_left: gives the seconds that are left.

        Returns:
            Whether anything new came.
        """
        silence = min(MAX_SILENCE_SECONDS, seconds_left())
        has_news = False
        if self.is_refused or self._api.open_streams >= MAX_WAITING_STREAMS:
            return False
        try:
            async with aclosing(self.read_connection(silence=silence, patience=0)) as connection:
                async for events in connection:
                    has_news = has_news or bool(events)
                    if any(TaskStatus(event.data["status"]).is_final for event in events):
                        break
                    if seconds_left() < silence - _MAX_LATE_SECONDS:
                        break
        except ApiUnavailableError:
            return has_news
        except TaskframeworkError as error:
            self.is_refused = isinstance(error, ApiError)
        return has_news

    def _take_values(self, message: ServerSentEvent) -> list[ExternalEvent]:
        return [event for event in events_in(message, self._api.url) if self._is_new(event)]

    def _is_new(self, event: ExternalEvent) -> bool:
        if event.progress_revision is None:
            is_new = event.sequence > self._sequence
            self._sequence = max(self._sequence, event.sequence)
            self._last_id = f"{self._task_id}-{self._sequence}"
        else:
            place = (event.sequence, event.progress_revision)
            is_new = place > self._progress
            self._progress = max(self._progress, place)
        return is_new


def events_in(message: ServerSentEvent, source: str) -> list[ExternalEvent]:
    """The events of a sent message; for a snapshot, which comes if the task's first events are forgotten, its history.

    Args:
        message: an event, or a snapshot of a task.
        source: the source of the events of a snapshot, because a task does not name its installation.
    """
    if message.event == "snapshot":
        return list(_events_of_snapshot(orjson.loads(message.data), source))
    return read_events(ExternalMessage(message.data.encode(), SINGLE, {}))


def _require_event_stream(response: httpx.Response) -> None:
    try:
        require_event_stream(response)
    except SSEError as error:
        url = redacted(str(response.request.url))
        raise ApiError(f"No events at {url}: {error}.", status=response.status_code) from None


def _events_of_snapshot(view: Mapping[str, Any], source: str) -> Iterator[ExternalEvent]:
    data = {name: value for name, value in view.items() if name not in _SNAPSHOT_ONLY_FIELDS}
    for entry in view["history"]:
        yield ExternalEvent(
            id=f"{view['task_id']}-{entry['sequence']}",
            type=PREFIX + entry["type"],
            source=source,
            task_id=view["task_id"],
            sequence=entry["sequence"],
            time=datetime.fromisoformat(entry["at"]),
            data=data,
        )
