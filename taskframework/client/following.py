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
from taskframework.client.connection import ApiConnection, Call, task_path
from taskframework.errors import ApiError, ApiUnavailableError, TaskframeworkError
from taskframework.events.external import PREFIX, SINGLE, ExternalEvent, read_events
from taskframework.events.http import MAX_SILENCE_SECONDS, is_heartbeat, require_event_stream
from taskframework.model.status import TaskStatus
from taskframework.settings.urls import redacted

ValueT = TypeVar("ValueT")

#: How many streams at most wait for the end of a task. httpx has 100 connections, and other calls need some, too.
MOST_STREAMS = 50
#: Seconds until a stream that gave nothing new is opened again.
PAUSE = 1.0
#: Seconds by which a wait may exceed its timeout because its stream is silent.
_LATE = 1.0
#: Fields of a task that a snapshot has and an event does not have.
_ONLY_WHOLE = ("parameters", "history")


class Following(ABC, Generic[ValueT]):
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
    def _take(self, sent: ServerSentEvent) -> list[ValueT]:
        """Return the new values in a sent message, and keep the id after which the stream continues."""

    async def told(self) -> AsyncGenerator[ValueT, None]:
        """All values of the stream, over as many connections as necessary.

        Raises:
            TaskframeworkError: as `connection`; ApiUnavailableError if no answer came in time.
        """
        while not self.is_over:
            is_told = False
            async with aclosing(self.connection()) as parts:
                async for values in parts:
                    is_told = is_told or bool(values)
                    for value in values:
                        yield value
            if not is_told and not self.is_over:
                await self._api.wire.sleep(PAUSE)

    async def connection(
        self, *, silence: float = MAX_SILENCE_SECONDS, patience: float | None = None
    ) -> AsyncGenerator[list[ValueT], None]:
        """The new values of one connection, until it ends; an empty list is a sign of life.

        Raises:
            ApiError: if the API gives no stream.
            TaskNotFoundError: if there is no such task, or no longer.
        """
        was_silent = True
        try:
            async with self._api.begun(self._opening(), silence=silence, patience=patience) as response:
                if response.status_code == 204:
                    self.is_over = True
                    return
                _require_events(response)
                async with aclosing(self._api.wire.events(response)) as sent:
                    async for one in sent:
                        was_silent = False
                        # After `resync` the events that were missed come with the next connection.
                        yield [] if is_heartbeat(one) or one.event == "resync" else self._take(one)
        except httpx.ReadTimeout:
            if was_silent:  # the interface sends something at once, so a proxy keeps it back
                raise ApiError(
                    f"{redacted(self._api.url)} sent nothing for {silence:g} seconds.",
                    hint="A proxy in between seems to hold back server-sent events; wait() works without them.",
                ) from None
        except httpx.TransportError:
            return  # it broke; the next connection continues from here

    def _opening(self) -> Call:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self._last_id} if self._last_id else {})
        return replace(self._call, headers=headers)


class FollowingTask(Following[ExternalEvent]):
    """The place of one reader in the events of a task."""

    def __init__(self, api: ApiConnection, task_id: str, after: int) -> None:
        """Begin to follow.

        Args:
            api: where the task is.
            task_id: the task.
            after: the sequence of the last event the reader has; 0 for none.
        """
        call = Call("GET", f"{task_path(task_id)}/events", about={"task_id": task_id})
        super().__init__(api, call, f"{task_id}-{after}")
        self._task_id = task_id
        self._sequence = after
        self._progress = (0, 0)
        #: Whether the interface gives no streams, so that the wait continues without them.
        self.is_refused = False

    async def until_final(self, left: Callable[[], float]) -> bool:
        """Listen until the task is final, the connection ends or the time is nearly over.

        Args:
            left: gives the seconds that are left.

        Returns:
            Whether anything new came.
        """
        silence = min(MAX_SILENCE_SECONDS, left())
        is_told = False
        if self.is_refused or self._api.streams >= MOST_STREAMS:
            return False
        try:
            async with aclosing(self.connection(silence=silence, patience=0)) as told:
                async for events in told:
                    is_told = is_told or bool(events)
                    if any(TaskStatus(event.data["status"]).is_final for event in events):
                        break
                    if left() < silence - _LATE:
                        break
        except ApiUnavailableError:
            return is_told
        except TaskframeworkError as error:
            self.is_refused = isinstance(error, ApiError)
        return is_told

    def _take(self, sent: ServerSentEvent) -> list[ExternalEvent]:
        return [event for event in events_in(sent, self._api.url) if self._is_new(event)]

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


def events_in(sent: ServerSentEvent, source: str) -> list[ExternalEvent]:
    """The events of a sent message; for a snapshot, which comes if the task's first events are forgotten, its history.

    Args:
        sent: an event, or a snapshot of a task.
        source: the source of the events of a snapshot, because a task does not name its installation.
    """
    if sent.event == "snapshot":
        return list(_history_of(orjson.loads(sent.data), source))
    return read_events(ExternalMessage(sent.data.encode(), SINGLE, {}))


def _require_events(response: httpx.Response) -> None:
    try:
        require_event_stream(response)
    except SSEError as error:
        url = redacted(str(response.request.url))
        raise ApiError(f"No events at {url}: {error}.", status=response.status_code) from None


def _history_of(view: Mapping[str, Any], source: str) -> Iterator[ExternalEvent]:
    data = {name: value for name, value in view.items() if name not in _ONLY_WHOLE}
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
