"""The task types that can be submitted, over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.context import PREFIX, framework_of, new_router
from taskframework.api.openapi import problem_responses
from taskframework.api.page_queries import TypePageQuery, page_by_type
from taskframework.api.views import TaskTypePage
from taskframework.model.message import rfc3339
from taskframework.tasks.declarations import TaskDeclaration

router = new_router(PREFIX, "tasks")


@router.get(
    "/task-types",
    summary="List task types",
    responses={
        200: {"model": TaskTypePage, "description": "All of them or a page, by name"},
        **problem_responses("invalid_request", "store_unavailable"),
    },
)
async def list_task_types(request: Request, query: Annotated[TypePageQuery, Query()]) -> Response:
    """List the task types that can be submitted: those of this process, and those that workers have declared."""
    framework = framework_of(request)
    default_max_attempts = framework.settings.retry.max_attempts
    page = page_by_type(await framework.services.types.list_known(), query)
    items = [_view(known, default_max_attempts) for known in page.items]
    # Not orjson: a schema may name limits beyond 64 bits.
    return Response(to_json({"items": items, "next_cursor": page.next_cursor}), media_type="application/json")


def _view(known: TaskDeclaration, max_attempts: int) -> dict[str, object]:
    return {
        "task_type": known.task_type,
        "parameters_schema": known.parameters_schema,
        "result_schema": known.result_schema,
        "priority": known.priority,
        "max_attempts": known.max_attempts if known.max_attempts is not None else max_attempts,
        "declared_at": None if known.declared_at is None else rfc3339(known.declared_at),
    }
