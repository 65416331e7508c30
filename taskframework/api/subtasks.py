"""Parents over HTTP: the sub-tasks of a task, and signals for a waiting task."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import Path, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.auditing import audited_if_foreign
from taskframework.api.bodies import BODY_CODES, SignalPayload, read_body
from taskframework.api.callers import scope_of
from taskframework.api.context import (
    PREFIX,
    IdInPath,
    checked_id,
    framework_of,
    json_response,
    new_router,
)
from taskframework.api.openapi import key_header, problem_responses, request_body
from taskframework.api.page_queries import PageQuery
from taskframework.api.pages import large_page_response
from taskframework.api.submitting import key_in_header
from taskframework.api.views import TaskPage, TaskView
from taskframework.model.status import TaskStatus
from taskframework.model.values import MAX_NAME_LENGTH
from taskframework.model.view import public_view
from taskframework.submission.options import NAME_PATTERN

router = new_router(PREFIX, "sub-tasks")

SignalName = Annotated[
    str,
    Path(description="Name of the signal", json_schema_extra={"pattern": NAME_PATTERN, "maxLength": MAX_NAME_LENGTH}),
]
_KEY_HEADER = key_header(
    "A second signal with the same key is the same signal; without a key, each request is a new signal"
)


class SubtaskQuery(PageQuery):
    """Which sub-tasks to list."""

    status: TaskStatus | None = Field(default=None, description="Only sub-tasks in this status")
    round: int | None = Field(default=None, ge=1, le=2**31, description="Sub-tasks of this round (default: the newest)")


@router.get(
    "/tasks/{task_id}/subtasks",
    summary="List the sub-tasks of a task",
    responses={
        200: {"model": TaskPage, "description": "A page in slot order: in the order in which they were planned"},
        **problem_responses(
            "invalid_request", "invalid_cursor", "task_not_found", "task_unreadable", "store_unavailable"
        ),
    },
)
async def list_subtasks(request: Request, task_id: IdInPath, query: Annotated[SubtaskQuery, Query()]) -> Response:
    """List the sub-tasks of a task's newest round, in the order in which they were planned."""
    read_page = partial(
        framework_of(request).services.tasks.subtasks,
        checked_id(task_id),
        scope_of(request),
        round=query.round,
        status=query.status,
    )
    return await large_page_response(read_page, public_view, limit=query.limit, cursor=query.cursor)


@router.post(
    "/tasks/{task_id}/signals/{name:key}",
    status_code=202,
    summary="Signal a task",
    openapi_extra=request_body(SignalPayload, is_optional=True) | {"parameters": [_KEY_HEADER]},
    responses={
        202: {"model": TaskView, "description": "The task as it is after the signal"},
        **problem_responses(
            *BODY_CODES,
            "value_not_storable",
            "task_not_found",
            "task_unreadable",
            "transition_refused",
            "too_many_signals",
            "idempotency_conflict",
            "store_unavailable",
        ),
    },
)
async def signal_task(request: Request, task_id: IdInPath, name: SignalName) -> Response:
    """Send a signal to a task. The body is the payload: any JSON.

    A task that waits for the signal continues with it. Any other task keeps the signal until it waits for it.
    """
    payload = (await read_body(request, SignalPayload, is_optional=True)).root
    signal = framework_of(request).services.tasks.signal
    async with await audited_if_foreign(request, "task.signal", checked_id(task_id), signal=name):
        task = await signal(task_id, scope_of(request), name, payload, key=key_in_header(request))
    return json_response(public_view(task), 202)
