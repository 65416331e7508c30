"""Hearing of several tasks over connections that break: of a task and all below it, and of the items of a batch."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, fields, replace
from typing import Any

import httpx
import orjson
from httpx_sse import ServerSentEvent

from taskframework.client.answers import RemoteResult, read
from taskframework.client.connection import ApiConnection, Call
from taskframework.client.following import PAUSE, Following, events_in
from taskframework.errors import ApiError
from taskframework.events.external import ExternalEvent
from taskframework.events.http import LONGEST_SILENCE

_NAMES = [field.name for field in fields(ExternalEvent)]


@dataclass(frozen=True, slots=True)
class TreeEvent(ExternalEvent):
    """An event of a task or of one below it.

    Attributes:
        place: give it as `after` to go on behind this event.
    """

    place: str = ""


class ItemResult(RemoteResult):
    """What became of one item of a batch at its end.

    Attributes:
        place: give it as `after` to go on behind this result.
    """

    place: str


class FollowingTree(Following[TreeEvent]):
    """Where one reader is in the life of a task and of all below it."""

    def _take(self, sent: ServerSentEvent) -> list[TreeEvent]:
        events = events_in(sent, self._api.url)
        # A reader that leaves between two events of one message gets all events of that message again.
        places = [self._last_id] * (len(events) - 1) + [sent.id]
        self._last_id = sent.id
        return [
            TreeEvent(**{name: getattr(event, name) for name in _NAMES}, place=place)
            for event, place in zip(events, places, strict=True)
        ]


class FollowingItems(Following[ItemResult]):
    """Where one reader is in the items of a batch. What else is told of the batch moves it on and is left out."""

    def _take(self, sent: ServerSentEvent) -> list[ItemResult]:
        self._last_id = sent.id
        if sent.event != "item":
            return []
        return [read(ItemResult, {**orjson.loads(sent.data), "place": sent.id})]


async def followed_results(api: ApiConnection, call: Call, first: int) -> AsyncGenerator[RemoteResult, None]:
    """The results of a batch in the order of its items, each as soon as it and all before it are over.

    Args:
        api: where the batch is.
        call: asks for its results.
        first: the item to begin with.

    Raises:
        TaskframeworkError: as `ApiConnection.ask`.
    """
    while True:
        before = first
        lines = replace(call, query={"cursor": str(first)}, headers={"Accept": "application/x-ndjson"})
        try:
            async with api.begun(lines, silence=LONGEST_SILENCE) as response:
                async for line in _lines(api.wire.pieces(response)):
                    result = read(RemoteResult, _json(line))
                    first = result.index + 1
                    yield result
            return
        except httpx.TransportError:  # it broke, or nothing was new for long
            if first == before:
                await api.wire.sleep(PAUSE)


async def _lines(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Only what a line feed ends is a line: others that Python knows may stand inside of a text."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    if rest:
        raise httpx.RemoteProtocolError("the last line is incomplete")


def _json(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        raise ApiError(
            "The answer contains a line that is not JSON.", hint="Another program may be running at this address."
        ) from None
