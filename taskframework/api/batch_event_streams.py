"""Server-sent events of a batch, and of its items."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.callers import scope_of
from taskframework.api.context import PREFIX, IdInPath, checked_id, framework_of, new_router
from taskframework.api.event_streams import LAST_EVENT_ID, PROBLEM_CODES, STREAM_RESPONSE, follow_family, follow_one
from taskframework.api.items_follower import ItemsFollower
from taskframework.api.openapi import problem_responses
from taskframework.model.batch_status import BatchStatus
from taskframework.model.task import Task

router = new_router(PREFIX, "batches")


class BatchStreamQuery(BaseModel):
    """What to follow."""

    model_config = ConfigDict(extra="forbid")

    items: bool = Field(default=False, description="Also send each item once, when it has ended")


@router.get(
    "/batches/{batch_id}/events",
    summary="Follow a batch",
    response_class=Response,
    openapi_extra={"parameters": [LAST_EVENT_ID]},
    responses={
        200: STREAM_RESPONSE,
        204: {"description": "The batch has ended and the client has received everything"},
        **problem_responses(*PROBLEM_CODES),
    },
)
async def follow_batch(request: Request, batch_id: IdInPath, query: Annotated[BatchStreamQuery, Query()]) -> Response:
    """Send the batch as `event: snapshot` (or, with Last-Event-ID, the events since that one), then its events as they
    happen. `task.progress` comes with each count of its tasks. The stream ends after the event of the batch's end.

    With `items`, also send the outcome of each item once, as `event: item`, in the order in which the items end. Then
    the stream ends when the last item has ended, too.
    """
    services = framework_of(request).services
    batch = await services.batches.get(checked_id(batch_id), scope_of(request))

    def view(task: Task) -> dict[str, Any]:
        return BatchStatus(task, services.store.now()).view()

    if query.items:
        return await follow_family(request, batch.task_id, ItemsFollower, view)
    return await follow_one(request, batch.task_id, view)
