"""The ordered streams as an operator sees them over HTTP: all streams, or the halted streams."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.callers import scope_of
from taskframework.api.context import PREFIX, framework_of, new_router, page_response
from taskframework.api.openapi import problem_responses
from taskframework.api.page_queries import PageQuery, UserInQuery
from taskframework.api.stream_views import StreamCursor, StreamPage
from taskframework.operations.streams import ListedStream

router = new_router(f"{PREFIX}/admin/streams", "streams")


class StreamListQuery(PageQuery):
    """Which streams to list."""

    user_id: UserInQuery = None
    cursor: StreamCursor | None = Field(default=None, description="`next_cursor` of the previous page, unchanged")
    is_halted: bool | None = Field(default=None, description="Only halted streams, or only others")


@router.get(
    "",
    summary="List ordered streams",
    responses={
        200: {
            "model": StreamPage,
            "description": "A page, by user and key; it may be short although more pages follow",
        },
        **problem_responses("invalid_request", "invalid_cursor", "store_unavailable"),
    },
)
async def list_streams(request: Request, query: Annotated[StreamListQuery, Query()]) -> Response:
    """List all streams, or only halted streams. These wait until an operator replays the failed task or continues the
    stream without it.
    """
    streams, scope = framework_of(request).services.streams, scope_of(request, query.user_id)
    page = await streams.list_streams(scope, limit=query.limit, cursor=query.cursor, is_halted=query.is_halted)
    return page_response(page, ListedStream.view)
