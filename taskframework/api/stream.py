"""Server-sent events: the life of one task, or of all."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from taskframework.api import following
from taskframework.api.context import IdInPath, checked_id, framework_of, scope_of
from taskframework.api.feed import Feed, Watcher
from taskframework.api.following import HEARTBEAT, RESYNC, Follower
from taskframework.api.openapi import STREAM_CONTENT, refuses
from taskframework.api.problems import RequestRefusedError

router = APIRouter(prefix="/api/v1", tags=["events"])

_SEQUENCE = re.compile(r"([0-9]{1,9})(?:-p([0-9]{1,9}))?")
_LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "Id of the last event received; sent by browsers that connect again. Empty is as none.",
    "schema": {"type": "string"},
}
_STREAM = {
    "description": "Server-sent events; a comment comes every 10 seconds of silence",
    "content": STREAM_CONTENT,
}


class EventStream(StreamingResponse):
    """A response that goes on until its frames end or its reader leaves; then the watcher leaves the feed."""

    media_type = "text/event-stream"

    def __init__(self, feed: Feed, watcher: Watcher, frames: AsyncGenerator[bytes, None]) -> None:
        super().__init__(frames, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._feed = feed
        self._watcher = watcher
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._frames.aclose()
            await self._feed.leave(self._watcher)


@router.get(
    "/tasks/{task_id}/events",
    summary="Follow a task",
    response_class=Response,
    openapi_extra={"parameters": [_LAST_EVENT_ID]},
    responses={
        200: _STREAM,
        204: {"description": "The task is final and the client has its last event"},
        **refuses(
            "task_not_found", "task_unreadable", "invalid_request", "store_unavailable", "too_many_streams", "stopping"
        ),
    },
)
async def follow_task(request: Request, task_id: IdInPath) -> Response:
    """First the task as `event: snapshot` (or, with Last-Event-ID, the events since), then its events as they happen.

    Ends after the event that makes the task final.
    """
    framework, feed, scope = framework_of(request), _feed_of(request), scope_of(request)
    task = await framework.services.tasks.get(checked_id(task_id), scope)
    after = _last_event(request, task.task_id)
    watcher = await feed.join(scope, task.task_id)
    try:
        task = await framework.services.tasks.get(task.task_id, scope)
    except BaseException:
        await feed.leave(watcher)
        raise
    follower = Follower(task, watcher, framework.services.store, scope, framework.settings.app.source, after)
    if follower.has_nothing:
        await feed.leave(watcher)
        return Response(status_code=204)  # a browser does not connect again
    return EventStream(feed, watcher, follower.frames())


@router.get(
    "/events",
    summary="Follow all tasks",
    response_class=Response,
    openapi_extra={"parameters": [_LAST_EVENT_ID]},
    responses={200: _STREAM, **refuses("too_many_streams", "stopping")},
)
async def follow_all(request: Request) -> Response:
    """The events of all tasks from now on. What happened before, or while a client was away, is not repeated: a
    client that sends Last-Event-ID is told so by `event: resync`.
    """
    feed = _feed_of(request)
    watcher = await feed.join(scope_of(request))
    return EventStream(feed, watcher, _all_frames(watcher, bool(request.headers.get("last-event-id"))))


async def _all_frames(watcher: Watcher, was_away: bool) -> AsyncGenerator[bytes, None]:
    yield RESYNC if was_away else HEARTBEAT
    while (heard := await watcher.take(following.HEARTBEAT_SECONDS)) or not watcher.is_over:
        yield b"".join(one.frame for one in heard) or HEARTBEAT
    if watcher.is_behind:
        yield RESYNC


def _last_event(request: Request, task_id: str) -> tuple[int, int | None] | None:
    """The sequence that Last-Event-ID names, and the progress revision if it is one of progress.

    Raises:
        RequestRefusedError: if it is not the id of an event of this task.
    """
    given = request.headers.get("last-event-id")
    if not given:
        return None
    match = _SEQUENCE.fullmatch(given.removeprefix(f"{task_id}-"))
    if match is None or not given.startswith(f"{task_id}-"):
        raise RequestRefusedError(
            "The header Last-Event-ID is not the id of an event of this task.",
            hint="Send the id of the last event received, or leave the header out to begin with the whole task.",
            fields=[{"field": "Last-Event-ID", "message": "must be <task_id>-<sequence>"}],
        )
    return int(match[1]), int(match[2]) if match[2] else None


def _feed_of(request: Request) -> Feed:
    return cast(Feed, request.app.state.feed)
