"""The limits over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.context import PREFIX, framework_of, json_response, new_router
from taskframework.api.limit_views import LimitPage
from taskframework.api.openapi import problem_responses
from taskframework.model.query import MAX_LIMIT
from taskframework.operations.limits import LimitState, SlotsState

router = new_router(f"{PREFIX}/admin/limits", "limits")


class LimitQuery(BaseModel):
    """How many to list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(
        default=MAX_LIMIT, ge=1, le=MAX_LIMIT, description="Maximum number of buckets, and of concurrency limits"
    )


@router.get(
    "",
    summary="List rate limits and concurrency limits",
    responses={
        200: {"model": LimitPage, "description": "The buckets, then the slots, by name and key"},
        **problem_responses("invalid_request", "limiter_unavailable", "store_unavailable"),
    },
)
async def list_limits(request: Request, query: Annotated[LimitQuery, Query()]) -> Response:
    """List the buckets of the settings, and the bucket of each key from which permits were taken lately, as they are
    now. Then list the slots of the concurrency limits that were used lately, and the tasks that hold them.

    With `rate_limiter.type: memory` each process has its own buckets. These are those of the process that answers.
    """
    limits = framework_of(request).services.limits
    states: list[LimitState | SlotsState] = [
        *await limits.list_limits(query.limit),
        *await limits.list_slots(query.limit),
    ]
    return json_response({"items": [state.view() for state in states], "next_cursor": None})
