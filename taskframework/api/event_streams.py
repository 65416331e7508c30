"""Server-sent events: the life of one task, of a task and all below it, or of all tasks."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Annotated, Any, TypeVar, cast

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from taskframework.api import task_follower
from taskframework.api.callers import caller_of, is_caller_still_valid, quota_name, scope_of
from taskframework.api.context import PREFIX, IdInPath, checked_id, framework_of, new_router
from taskframework.api.feed import Feed, Watcher
from taskframework.api.openapi import STREAM_CONTENT, problem_responses
from taskframework.api.places import KnownTask, PlaceInvalidError, read_place
from taskframework.api.refusals import RequestRefusedError
from taskframework.api.task_follower import HEARTBEAT, RESYNC, TaskFollower
from taskframework.api.tree_follower import TreeFollower
from taskframework.model.subtasks import MAX_DEPTH
from taskframework.model.task import Task
from taskframework.model.view import public_view
from taskframework.operations.keys import REMEMBERED_SECONDS
from taskframework.submission.options import Name

logger = logging.getLogger(__name__)

router = new_router(PREFIX, "events")

#: A place from a client may have this many times the open tasks for which a stream has room now, and one more on each
#: level: another release may have had more room. The bound keeps an invented place from using unlimited memory.
_PLACE_TOLERANCE = 2
_SEQUENCE = re.compile(r"([0-9]{1,9})(?:-p([0-9]{1,9}))?")
Known = TypeVar("Known")
LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "Id of the last event received; sent by browsers that reconnect. Empty means none.",
    "schema": {"type": "string"},
}
PROBLEM_CODES = (
    "task_not_found",
    "task_unreadable",
    "invalid_request",
    "store_unavailable",
    "too_many_streams",
    "stopping",
    "not_running",
)
STREAM_RESPONSE = {
    "description": "Server-sent events; a comment is sent after every 10 seconds without an event",
    "content": STREAM_CONTENT,
}


class EventStream(StreamingResponse):
    """A response that continues until its frames end or its reader leaves; then the watcher leaves the feed."""

    media_type = "text/event-stream"

    def __init__(self, request: Request, feed: Feed, watcher: Watcher, frames: AsyncGenerator[bytes, None]) -> None:
        super().__init__(frames, headers={"X-Accel-Buffering": "no"})
        self._request = request
        self._feed = feed
        self._watcher = watcher
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ending = asyncio.create_task(self._end_with_caller())
        try:
            await super().__call__(scope, receive, send)
        finally:
            ending.cancel()
            await self._frames.aclose()
            await self._feed.leave(self._watcher)

    async def _end_with_caller(self) -> None:
        """End the stream when the key that began it is no longer valid."""
        while await self._is_caller_still_valid():  # noqa: ASYNC110 - another process may revoke it
            await asyncio.sleep(REMEMBERED_SECONDS)
        self._watcher.end()

    async def _is_caller_still_valid(self) -> bool:
        try:
            return await is_caller_still_valid(self._request)
        except Exception:  # the function `caller=` of an application may fail in any way, and work again later
            logger.exception("could not check whether the caller of an open stream is still valid; trying again")
            return True


class TaskStreamQuery(BaseModel):
    """What to follow."""

    model_config = ConfigDict(extra="forbid")

    tree: bool = Field(default=False, description="Also all tasks below it: sub-tasks, their sub-tasks, and so on")


class FeedQuery(BaseModel):
    """Whose events to follow."""

    model_config = ConfigDict(extra="forbid")

    task_type: str | None = Field(default=None, max_length=100, description="Only tasks of this type")
    user_id: Name | None = Field(default=None, description="Only tasks of this user")


@router.get(
    "/tasks/{task_id}/events",
    summary="Follow a task",
    response_class=Response,
    openapi_extra={"parameters": [LAST_EVENT_ID]},
    responses={
        200: STREAM_RESPONSE,
        204: {"description": "The task has ended and the client has received its last event"},
        **problem_responses(*PROBLEM_CODES),
    },
)
async def follow_task(request: Request, task_id: IdInPath, query: Annotated[TaskStreamQuery, Query()]) -> Response:
    """Send the task as `event: snapshot` (or, with Last-Event-ID, the events since that one), then its events as they
    happen.

    The stream ends after the event that makes the task final. With `tree` it has the events of all tasks below the task
    too, and ends when all of them are final.
    """
    task = await framework_of(request).services.tasks.get(checked_id(task_id), scope_of(request))
    if query.tree:
        return await follow_family(request, task.task_id, TreeFollower)
    return await follow_one(request, task.task_id)


@router.get(
    "/events",
    summary="Follow all tasks",
    response_class=Response,
    openapi_extra={"parameters": [LAST_EVENT_ID]},
    responses={
        200: STREAM_RESPONSE,
        **problem_responses("invalid_request", "too_many_streams", "stopping", "not_running"),
    },
)
async def follow_all(request: Request, query: Annotated[FeedQuery, Query()]) -> Response:
    """Send the events of all tasks from now on. Events from before, or from a time in which the client was not
    connected, are not sent again: a client that sends Last-Event-ID gets `event: resync` first.
    """
    feed = _feed_of(request)
    scope, caller = scope_of(request, query.user_id), quota_name(caller_of(request))
    watcher = await feed.join(scope, task_type=query.task_type, caller=caller)
    return EventStream(request, feed, watcher, _all_frames(watcher, bool(request.headers.get("last-event-id"))))


async def _all_frames(watcher: Watcher, was_away: bool) -> AsyncGenerator[bytes, None]:
    yield RESYNC if was_away else HEARTBEAT
    while (events := await watcher.take(task_follower.HEARTBEAT_SECONDS)) or not watcher.is_over:
        yield b"".join(event.frame for event in events) or HEARTBEAT
    if watcher.has_missed_events:
        yield RESYNC


async def follow_one(request: Request, task_id: str, view: Callable[[Task], dict[str, Any]] = public_view) -> Response:
    """Follow one task only.

    Args:
        request: the request of the client, whose Last-Event-ID says what the client has.
        task_id: an existing task.
        view: makes the snapshot of the task.
    """
    framework, scope = framework_of(request), scope_of(request)
    after, source = _read_last_event_id(request, f"{task_id}-", _read_sequence), framework.settings.app.source

    async def make_follower(watcher: Watcher) -> TaskFollower:
        task = await framework.services.tasks.get(task_id, scope)
        return TaskFollower(task, watcher, framework.services.store, scope, source, after, view)

    return await _stream_response(request, task_id, make_follower)


async def follow_family(
    request: Request, task_id: str, kind: type[TreeFollower], view: Callable[[Task], dict[str, Any]] = public_view
) -> Response:
    """Follow a task and all tasks below it.

    Args:
        request: the request of the client, whose Last-Event-ID says what the client has.
        task_id: an existing task.
        kind: which follower to use.
        view: makes the snapshot of the task.
    """
    framework, scope, feed = framework_of(request), scope_of(request), _feed_of(request)
    max_open = _PLACE_TOLERANCE * kind.max_open_tasks + MAX_DEPTH
    known = _read_last_event_id(request, kind.id_of(task_id, ""), lambda place: read_place(task_id, place, max_open))
    followed, source = known or KnownTask(task_id), framework.settings.app.source

    async def make_follower(watcher: Watcher) -> TreeFollower:
        follower = kind(followed, feed, watcher, framework.services.store, scope, source, view)
        await follower.begin()
        return follower

    return await _stream_response(request, task_id, make_follower)


async def _stream_response(
    request: Request, task_id: str, make_follower: Callable[[Watcher], Awaitable[TaskFollower | TreeFollower]]
) -> Response:
    """Answer with the frames of a follower; with 204 if it will never have any, so that browsers do not connect again.

    Args:
        request: the request of the client.
        task_id: the task to watch.
        make_follower: makes the follower after the watcher has joined, so that no event is missed between the two.
    """
    feed = _feed_of(request)
    watcher = await feed.join(scope_of(request), task_id, caller=quota_name(caller_of(request)))
    try:
        follower = await make_follower(watcher)
    except BaseException:
        await feed.leave(watcher)
        raise
    if follower.has_nothing_to_send:
        await feed.leave(watcher)
        return Response(status_code=204)
    return EventStream(request, feed, watcher, follower.frames())


def _read_last_event_id(request: Request, beginning: str, read: Callable[[str], Known]) -> Known | None:
    """The place of the client by its Last-Event-ID; None if it has received nothing.

    Args:
        request: the request of the client.
        beginning: the beginning of the ids of this stream.
        read: reads the rest of an id; raises PlaceInvalidError.

    Raises:
        RequestRefusedError: if it is not the id of an event of this stream.
    """
    given = request.headers.get("last-event-id")
    if not given:
        return None
    try:
        if not given.startswith(beginning):
            raise PlaceInvalidError(f"it does not begin with {beginning}")
        return read(given.removeprefix(beginning))
    except PlaceInvalidError as error:
        raise RequestRefusedError(
            "The header Last-Event-ID is not the id of an event of this stream.",
            hint="Send the id of the last event received, or leave the header out to begin with the whole task.",
            fields=[{"field": "Last-Event-ID", "message": str(error)}],
        ) from error


def _read_sequence(text: str) -> tuple[int, int | None]:
    """Read a sequence, and the progress revision if it is the id of progress."""
    match = _SEQUENCE.fullmatch(text)
    if match is None:
        raise PlaceInvalidError("it must be <task_id>-<sequence>")
    return int(match[1]), int(match[2]) if match[2] else None


def _feed_of(request: Request) -> Feed:
    return cast(Feed, request.app.state.feed)
