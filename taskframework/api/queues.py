"""Task types as queues over HTTP: list them, pause a type in all workers, resume it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.auditing import audited, reason_of
from taskframework.api.bodies import BODY_CODES, PauseQueue, read_body
from taskframework.api.callers import caller_of
from taskframework.api.context import PREFIX, broker_of, framework_of, json_response, new_router, page_response
from taskframework.api.openapi import problem_responses, request_body
from taskframework.api.page_queries import TypePageQuery, page_by_type
from taskframework.api.queue_views import QueuePage, QueueView
from taskframework.api.refusals import RequestRefusedError
from taskframework.errors import UnknownTaskTypeError
from taskframework.operations.queues import Queue

router = new_router(f"{PREFIX}/admin/queues", "queues")

TaskTypeInPath = Annotated[str, Path(description="A task type")]
_QUEUE_RESPONSE: dict[int | str, dict[str, Any]] = {200: {"model": QueueView, "description": "The queue as it is now"}}
_REFUSALS = ("task_type_not_found", "store_unavailable", "not_running")


@router.get(
    "",
    summary="List queues",
    responses={
        200: {"model": QueuePage, "description": "All of them or a page, by task type"},
        **problem_responses("invalid_request", *_REFUSALS[1:]),
    },
)
async def list_queues(request: Request, query: Annotated[TypePageQuery, Query()]) -> Response:
    """List the task types, with the messages that wait in the broker, and who paused which type."""
    queues = await framework_of(request).services.queues.list_queues(broker_of(request))
    return page_response(page_by_type(queues, query), Queue.view)


@router.get("/{task_type}", summary="Show a queue", responses={**_QUEUE_RESPONSE, **problem_responses(*_REFUSALS)})
async def get_queue(request: Request, task_type: TaskTypeInPath) -> Response:
    """Show one task type."""
    return await _queue_response(request, task_type)


@router.post(
    "/{task_type}/pause",
    summary="Pause a task type",
    openapi_extra=request_body(PauseQueue, is_optional=True),
    responses={**_QUEUE_RESPONSE, **problem_responses(*BODY_CODES, *_REFUSALS)},
)
async def pause_queue(request: Request, task_type: TaskTypeInPath) -> Response:
    """Within two seconds no worker begins a task of this type any more. Running tasks continue, new tasks wait."""
    body = await read_body(request, PauseQueue, is_optional=True)
    async with audited(request, "queue.pause", task_type, body.reason):
        with _answer_not_found():
            await framework_of(request).services.queues.pause(
                task_type, by=caller_of(request).principal, reason=reason_of(request, body.reason)
            )
    return await _queue_response(request, task_type)


@router.post(
    "/{task_type}/resume", summary="Resume a task type", responses={**_QUEUE_RESPONSE, **problem_responses(*_REFUSALS)}
)
async def resume_queue(request: Request, task_type: TaskTypeInPath) -> Response:
    """Let tasks of this type begin again, in all workers within two seconds."""
    async with audited(request, "queue.resume", task_type):
        await framework_of(request).services.queues.resume(task_type)
        return await _queue_response(request, task_type)


async def _queue_response(request: Request, task_type: str) -> Response:
    with _answer_not_found():
        queue = await framework_of(request).services.queues.get(task_type, broker_of(request))
    return json_response(queue.view())


@contextmanager
def _answer_not_found() -> Iterator[None]:
    """Answer 404 for an unknown task type in the path; in a body it would be a wrong field (422)."""
    try:
        yield
    except UnknownTaskTypeError as error:
        raise RequestRefusedError(error.message, hint=error.hint, code="task_type_not_found") from error
