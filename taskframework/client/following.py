"""Hearing server-sent events over connections that break: all that is told, each once and in order."""

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
from taskframework.events.http import LONGEST_SILENCE, is_heartbeat, require_events
from taskframework.model.status import TaskStatus
from taskframework.settings.urls import redacted

ValueT = TypeVar("ValueT")

#: Most streams that are open to wait for ends. httpx has 100 connections, and other calls need some too.
MOST_STREAMS = 50
#: Seconds until a stream that told nothing is opened again.
PAUSE = 1.0
#: Seconds by which a wait may exceed its timeout because its stream is silent.
_LATE = 1.0
#: Fields of a task that a snapshot has and an event does not have.
_ONLY_WHOLE = ("parameters", "history")


class Following(ABC, Generic[ValueT]):
    """Where one reader is in a stream."""

    def __init__(self, api: ApiConnection, call: Call, last_id: str) -> None:
        """Begin to follow.

        Args:
            api: where the stream is.
            call: opens it.
            last_id: the id that goes on behind what the reader has; empty for the beginning.
        """
        self._api = api
        self._call = call
        self._last_id = last_id
        #: All there is was heard, and nothing more will come.
        self.is_over = False

    @abstractmethod
    def _take(self, sent: ServerSentEvent) -> list[ValueT]:
        """What is new in something that was sent; keeps the id to go on behind it."""

    async def told(self) -> AsyncGenerator[ValueT, None]:
        """All that is told, over as many connections as it takes.

        Raises:
            TaskframeworkError: as `connection`; ApiUnavailableError if nobody answered for too long.
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
        self, *, silence: float = LONGEST_SILENCE, patience: float | None = None
    ) -> AsyncGenerator[list[ValueT], None]:
        """What is new on one connection, until that ends; an empty list is a sign of life.

        Raises:
            ApiError: if no stream is to be had.
            TaskNotFoundError: if there is no such task, or not any more.
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
                        # What `resync` says was missed comes with the next connection.
                        yield [] if is_heartbeat(one) or one.event == "resync" else self._take(one)
        except httpx.ReadTimeout:
            if was_silent:  # the interface sends something at once, so a proxy keeps it back
                raise ApiError(
                    f"{redacted(self._api.url)} sent nothing for {silence:g} seconds.",
                    hint="A proxy in between seems to hold back server-sent events; wait() works without them.",
                ) from None
        except httpx.TransportError:
            return  # it broke; the next one goes on where this one was

    def _opening(self) -> Call:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self._last_id} if self._last_id else {})
        return replace(self._call, headers=headers)


class FollowingTask(Following[ExternalEvent]):
    """Where one reader is in the life of a task."""

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
        #: The interface gives no streams here, so that waiting goes on without them.
        self.is_refused = False

    async def until_final(self, left: Callable[[], float]) -> bool:
        """Listen until the task is final, the connection ends or the time is nearly over.

        Args:
            left: how many seconds there are.

        Returns:
            Whether there was anything new.
        """
        silence = min(LONGEST_SILENCE, left())
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
    """The events that were sent; of a whole task, which comes where its first events are forgotten, its history.

    Args:
        sent: an event, or a snapshot of a task.
        source: stands for the installation, whose name a task does not tell.
    """
    if sent.event == "snapshot":
        return list(_history_of(orjson.loads(sent.data), source))
    return read_events(ExternalMessage(sent.data.encode(), SINGLE, {}))


def _require_events(response: httpx.Response) -> None:
    try:
        require_events(response)
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
