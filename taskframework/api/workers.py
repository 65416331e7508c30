"""The workers over HTTP: which workers exist, and which tasks each runs."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.context import PREFIX, framework_of, new_router, page_response
from taskframework.api.openapi import problem_responses
from taskframework.api.page_queries import NameCursor, PageQuery
from taskframework.api.pages import large_page_response
from taskframework.api.views import TaskPage, WorkerPage
from taskframework.model.view import public_view
from taskframework.operations.workers import WorkerState

router = new_router(f"{PREFIX}/admin/workers", "workers")

WorkerInPath = Annotated[str, Path(description="A worker's id", max_length=300)]


class WorkerQuery(PageQuery):
    """Which page of workers to list."""

    cursor: NameCursor = None


@router.get(
    "",
    summary="List workers",
    responses={
        200: {"model": WorkerPage, "description": "A page, by id"},
        **problem_responses("invalid_request", "store_unavailable"),
    },
)
async def list_workers(request: Request, query: Annotated[WorkerQuery, Query()]) -> Response:
    """List the worker processes, each by its last report; a report comes every ten seconds. A killed worker is listed
    as lost for ten minutes, and then disappears.
    """
    workers = framework_of(request).services.workers
    return page_response(await workers.list_workers(limit=query.limit, after=query.cursor), WorkerState.view)


@router.get(
    "/{worker_id}/tasks",
    summary="List the running tasks of a worker",
    responses={
        200: {"model": TaskPage, "description": "A page, newest first; it may be short although more pages follow"},
        **problem_responses("invalid_request", "invalid_cursor", "worker_not_found", "store_unavailable"),
    },
)
async def list_worker_tasks(
    request: Request, worker_id: WorkerInPath, query: Annotated[PageQuery, Query()]
) -> Response:
    """List the tasks that a worker runs now. `started_at` is when the present attempt began."""
    read_page = partial(framework_of(request).services.workers.list_running, worker_id)
    return await large_page_response(read_page, public_view, limit=query.limit, cursor=query.cursor)
