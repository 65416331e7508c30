"""Ordered streams over HTTP: the state of a stream, its results in order, and continuing a halted stream."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import nullcontext
from time import monotonic
from typing import Annotated, cast

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from taskframework.api import task_follower
from taskframework.api.auditing import audited
from taskframework.api.bodies import prefers
from taskframework.api.callers import caller_of, quota_name, scope_of, user_of
from taskframework.api.context import PREFIX, StrictRoute, framework_of, json_response, last_segment, new_router
from taskframework.api.event_streams import LAST_EVENT_ID, EventStream
from taskframework.api.feed import Feed, Watcher, sse_frame
from taskframework.api.openapi import ITEM_SCHEMA, problem_responses
from taskframework.api.page_queries import DEFAULT_LIMIT, LIMIT_DESCRIPTION
from taskframework.api.pages import large_page_response
from taskframework.api.refusals import RequestRefusedError
from taskframework.api.stream_views import StreamedResult, StreamResultPage, StreamView
from taskframework.api.task_follower import HEARTBEAT
from taskframework.errors import StoreError, TaskNotFoundError
from taskframework.model.query import MAX_LIMIT, Page
from taskframework.model.stream_results import StreamResult
from taskframework.model.streams import StreamKey
from taskframework.model.values import MAX_NAME_LENGTH, is_name
from taskframework.operations.streams import StreamOperations
from taskframework.submission.options import Name


class _StreamRoute(StrictRoute):
    """A route of a stream. In an address, `%2F` is a slash of the key: `a%2Fresults` is the stream `a/results`."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As any route; but if its path ends with a word, the address must end with a slash as it is and this word."""
        word, sent = self.path.rpartition("/")[2], last_segment(scope)
        if sent is not None and sent != word and not word.startswith("{"):
            return Match.NONE, {}
        return super().matches(scope)


router = new_router(f"{PREFIX}/streams", "streams")
router.route_class = _StreamRoute


#: The highest position in a request: the largest whole number that every JSON reader reads exactly.
_MAX_POSITION = 2**53 - 1
_EVENT_STREAM = "text/event-stream"
# A key may have slashes, also as they are, so the longer paths come first.
KeyInPath = Annotated[str, Path(description="Key of the stream", json_schema_extra={"maxLength": MAX_NAME_LENGTH})]
_RESULT_CONTENT = {
    "application/json": {"schema": {"$ref": f"#/components/schemas/{StreamResultPage.__name__}"}},
    _EVENT_STREAM: {ITEM_SCHEMA: {"$ref": f"#/components/schemas/{StreamedResult.__name__}"}},
}


class StreamQuery(BaseModel):
    """Whose stream."""

    model_config = ConfigDict(extra="forbid")

    user_id: Name | None = Field(
        default=None, description="Its owner, if the caller is an operator or may act for users; default: the caller"
    )


class ResultQuery(StreamQuery):
    """Which results to give."""

    limit: int = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT, description=LIMIT_DESCRIPTION)
    from_position: int = Field(
        default=0, ge=0, le=_MAX_POSITION, description="The first position; `next_cursor` of the previous page"
    )


class GoOnQuery(StreamQuery):
    """Which stream is to continue, and without which task."""

    position: int | None = Field(
        default=None,
        ge=0,
        le=_MAX_POSITION,
        description="Only if the task at this position halted it; without it, a second request may pass over the next",
    )


@router.get(
    "/{key:key}/results",
    summary="Read the results of a stream in order",
    response_class=Response,
    openapi_extra={"parameters": [LAST_EVENT_ID]},
    responses={
        200: {
            "description": f"A page; or, with Accept: {_EVENT_STREAM}, one event for each result",
            "content": _RESULT_CONTENT,
        },
        **problem_responses("invalid_request", "task_not_found", "too_many_streams", "stopping", "store_unavailable"),
    },
)
async def read_stream_results(request: Request, key: KeyInPath, query: Annotated[ResultQuery, Query()]) -> Response:
    """Return the results of a stream in the order of positions, up to the first task for which readers still wait.

    A task without a result in time is skipped: its status is `SKIPPED` for every reader. That happens at its deadline;
    without a deadline, `streams.gap` after a later task has ended. With `Accept: text/event-stream` each result is sent
    as `event: result` as soon as it and all results before it exist. This never ends, and `limit` has no effect then.
    """
    streams, stream = _operations(request), _stream_key_of(request, key, query)
    if not prefers(request, _EVENT_STREAM):

        async def read_page(*, limit: int, cursor: str | None) -> Page[StreamResult]:
            return await streams.results(stream, limit=limit, first=int(cursor or query.from_position))

        return await large_page_response(read_page, _view, limit=query.limit)
    first = _first_position(request, query.from_position)
    await streams.status(stream)  # before the answer has begun
    feed = cast(Feed, request.app.state.feed)
    watcher = await feed.join(scope_of(request), stream.record_id, caller=quota_name(caller_of(request)))
    return EventStream(request, feed, watcher, _result_frames(watcher, streams.follow_results(stream, first=first)))


@router.get("/{key:key}/go-on", include_in_schema=False)
async def refuse_to_show() -> None:
    raise HTTPException(405)  # otherwise the word would be taken for the end of a key


@router.post(
    "/{key:key}/go-on",
    summary="Continue a halted stream",
    responses={
        200: {"model": StreamView, "description": "The stream, which continues without the task that halted it"},
        **problem_responses("invalid_request", "task_not_found", "transition_refused", "store_unavailable"),
    },
)
async def let_stream_go_on(request: Request, key: KeyInPath, query: Annotated[GoOnQuery, Query()]) -> Response:
    """Let a halted stream continue without the task that failed. To run that task first, replay it instead."""
    stream = _stream_key_of(request, key, query)
    is_own = stream.user_id == caller_of(request).principal
    async with nullcontext() if is_own else audited(request, "stream.go-on", stream.key, user_id=stream.user_id):
        status = await _operations(request).go_on(stream, position=query.position)
    return json_response(status.view())


@router.get(
    "/{key:key}",
    summary="Show a stream",
    responses={
        200: {"model": StreamView, "description": "The stream"},
        **problem_responses("invalid_request", "task_not_found", "store_unavailable"),
    },
)
async def get_stream(request: Request, key: KeyInPath, query: Annotated[StreamQuery, Query()]) -> Response:
    """Show which task of a stream has the turn, and how many tasks wait."""
    return json_response((await _operations(request).status(_stream_key_of(request, key, query))).view())


async def _result_frames(
    watcher: Watcher, results: AsyncIterator[Sequence[StreamResult]]
) -> AsyncGenerator[bytes, None]:
    """Events for results as they come, and a comment after each silence, until the process stops."""
    yield HEARTBEAT
    sent_at = monotonic()
    try:
        async for part in results:
            if watcher.is_over:
                return
            if part or monotonic() - sent_at >= task_follower.HEARTBEAT_SECONDS:
                sent_at = monotonic()
                yield b"".join(sse_frame("result", _view(result), str(result.position)) for result in part) or HEARTBEAT
    except (StoreError, TaskNotFoundError):
        return  # the reader connects again, and then gets the reason


def _view(result: StreamResult) -> dict[str, object]:
    return result.view()


def _operations(request: Request) -> StreamOperations:
    return framework_of(request).services.streams


def _stream_key_of(request: Request, key: str, query: StreamQuery) -> StreamKey:
    """The stream with this key that belongs to the caller, or to the user that the caller names.

    Raises:
        RequestRefusedError: if another user is named, and the caller may not act for users.
        TaskNotFoundError: as for a stream that does not exist, if the text cannot be a key.
    """
    if not is_name(key):
        raise TaskNotFoundError(key, what="stream")
    return StreamKey(user_of(request, query.user_id), key)


def _first_position(request: Request, first: int) -> int:
    """The position to begin with, after the last one that the client has.

    Raises:
        RequestRefusedError: if its Last-Event-ID is not an id of this stream.
    """
    given = request.headers.get("last-event-id")
    if not given:
        return first
    if not re.fullmatch("[0-9]{1,15}", given):
        raise RequestRefusedError(
            "The header Last-Event-ID is not the id of an event of this stream.",
            hint="Send the id of the last event received, or leave the header out and give from_position.",
            fields=[{"field": "Last-Event-ID", "message": "must be a position"}],
        )
    return int(given) + 1
