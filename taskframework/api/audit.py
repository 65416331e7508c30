"""What operators did, over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.context import PREFIX, framework_of, new_router, page_response
from taskframework.api.openapi import problem_responses
from taskframework.api.page_queries import PageQuery
from taskframework.api.views import NextCursor
from taskframework.model.values import MAX_NAME_LENGTH
from taskframework.operations.audit import audit_view

router = new_router(f"{PREFIX}/admin/audit", "audit")


class AuditView(BaseModel):
    """One action of an operator: who asked for it, when and why."""

    at: datetime
    by: str
    action: str = Field(examples=["queue.pause"])
    target: str | None = Field(description="Target of the action; null if a filter selected the targets")
    reason: str | None
    details: Any
    refusal: str | None = Field(description="Why it was refused; null if it was done")


class AuditPage(BaseModel):
    """What operators did, newest first."""

    items: list[AuditView]
    next_cursor: NextCursor


class AuditQuery(PageQuery):
    """Which entries to list."""

    by: str | None = Field(
        default=None, min_length=1, max_length=MAX_NAME_LENGTH, description="Only actions of this operator"
    )
    action: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="Only this action, or all actions on one thing, such as `queue`",
    )


@router.get(
    "",
    summary="List what operators did",
    responses={
        200: {"model": AuditPage, "description": "A page, newest first; it may be short although more pages follow"},
        **problem_responses("invalid_request", "invalid_cursor", "store_unavailable"),
    },
)
async def list_audit(request: Request, query: Annotated[AuditQuery, Query()]) -> Response:
    """List what operators did, over HTTP and on the command line: who, what, when and why."""
    entries = framework_of(request).services.audit.list_entries
    page = await entries(limit=query.limit, cursor=query.cursor, by=query.by, action=query.action)
    return page_response(page, audit_view)
