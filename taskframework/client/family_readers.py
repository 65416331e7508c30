"""Follows several tasks over connections that break: a task and all tasks below it, or the items of a batch."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, fields, replace
from typing import Any

import httpx
import orjson
from httpx_sse import ServerSentEvent

from taskframework.client.answers import RemoteResult, read
from taskframework.client.connection import ApiConnection
from taskframework.client.requests import Call
from taskframework.client.stream_readers import RECONNECT_PAUSE_SECONDS, StreamReader, events_in
from taskframework.errors import ApiError
from taskframework.events.external import ExternalEvent
from taskframework.events.requests import MAX_SILENCE_SECONDS

_EVENT_FIELDS = [field.name for field in fields(ExternalEvent)]


@dataclass(frozen=True, slots=True)
class TreeEvent(ExternalEvent):
    """An event of a task or of a task below it.

    Attributes:
        place: the `after` with which a reader continues behind this event.
    """

    place: str = ""


class ItemResult(RemoteResult):
    """One item of a batch, as it is at its end.

    Attributes:
        place: the `after` with which a reader continues behind this result.
    """

    place: str


class TreeStreamReader(StreamReader[TreeEvent]):
    """The place of one reader in the events of a task and of all tasks below it."""

    def _take_values(self, message: ServerSentEvent) -> list[TreeEvent]:
        events = events_in(message, self._api.url)
        # A reader that leaves between two events of one message gets all events of that message again.
        places = [self._last_id] * (len(events) - 1) + [message.id]
        self._last_id = message.id
        return [
            TreeEvent(**{name: getattr(event, name) for name in _EVENT_FIELDS}, place=place)
            for event, place in zip(events, places, strict=True)
        ]


class ItemStreamReader(StreamReader[ItemResult]):
    """The place of one reader in the items of a batch. Other events of the batch move the place, but are not given."""

    def _take_values(self, message: ServerSentEvent) -> list[ItemResult]:
        self._last_id = message.id
        if message.event != "item":
            return []
        return [read(ItemResult, {**orjson.loads(message.data), "place": message.id})]


async def follow_results(api: ApiConnection, call: Call, first: int) -> AsyncGenerator[RemoteResult, None]:
    """The results of a batch in the order of its items, each as soon as its item and all items before it have ended.

    Args:
        api: the connection to the installation.
        call: the call that asks for the results.
        first: the item to begin with.

    Raises:
        TaskframeworkError: as `ApiConnection.ask`.
    """
    while True:
        before = first
        lines = replace(call, query={"cursor": str(first)}, headers={"Accept": "application/x-ndjson"})
        try:
            async with api.open_stream(lines, silence=MAX_SILENCE_SECONDS) as response:
                async for line in _split_lines(api.transport.iterate_bytes(response)):
                    result = read(RemoteResult, _parse_json(line))
                    first = result.index + 1
                    yield result
            return
        except httpx.TransportError:  # the connection broke, or was silent for too long
            if first == before:
                await api.transport.sleep(RECONNECT_PAUSE_SECONDS)


async def _split_lines(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Split only at line feeds: the other line ends that Python knows may occur inside a text."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    if rest:
        raise httpx.RemoteProtocolError("the last line is incomplete")


def _parse_json(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        raise ApiError(
            "The answer contains a line that is not JSON.", hint="Another program may be running at this address."
        ) from None
