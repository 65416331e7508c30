"""Why a task is not running, over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.callers import scope_of
from taskframework.api.context import (
    PREFIX,
    IdInPath,
    broker_of,
    checked_id,
    framework_of,
    json_response,
    new_router,
    refusal_of,
)
from taskframework.api.openapi import problem_responses
from taskframework.model.facts import CauseCode
from taskframework.model.status import TaskStatus

router = new_router(f"{PREFIX}/tasks", "tasks")


class ExplanationView(BaseModel):
    """Why a task is not running, or not finished: the first cause that is true."""

    task_id: str
    status: TaskStatus
    code: CauseCode = Field(description="The cause, for programs", examples=["paused"])
    because: str = Field(description="The cause as a sentence", examples=["ada paused count-words at …"])
    change: str = Field(description="What to do, as a sentence")
    details: dict[str, Any] = Field(description="Details of the cause; the fields depend on `code`")
    at: datetime = Field(description="Time of this answer")


@router.get(
    "/{task_id}/explain",
    summary="Explain why a task is not running",
    responses={
        200: {"model": ExplanationView, "description": "One cause, and what to do"},
        **problem_responses("task_not_found", "task_unreadable", "store_unavailable", "not_running"),
    },
)
async def explain_task(request: Request, task_id: IdInPath) -> Response:
    """Explain why a task is not running, or not finished, at this moment. This takes a few bounded reads, however many
    tasks there are.
    """
    explain = framework_of(request).services.explain.explain
    explanation = await explain(checked_id(task_id), scope_of(request), broker_of(request), refusal_of(request))
    return json_response(explanation.view())
