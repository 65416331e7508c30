"""The installation at a glance, over HTTP."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.context import PREFIX, broker_of, framework_of, json_response, new_router
from taskframework.api.openapi import problem_responses
from taskframework.model.overview import ProblemCode
from taskframework.model.status import TaskStatus
from taskframework.operations.overview import overview_view

router = new_router(f"{PREFIX}/admin/overview", "overview")


class TypeOverviewView(BaseModel):
    """One task type. Rates are of the last minute, in tasks a second."""

    task_type: str
    is_paused: bool
    waiting: int = Field(description="Tasks that could start now")
    running: int
    retrying: int = Field(description="Tasks that failed and will be retried")
    is_bounded: bool = Field(description="More tasks of this type may be waiting or retrying than were counted")
    is_running_bounded: bool = Field(description="More tasks may be running than were counted")
    oldest_waiting_at: datetime | None = Field(description="Since when the oldest of them could start")
    submitted_per_second: float
    finished_per_second: float = Field(description="Whatever their end status")
    failed_per_second: float


class ProblemFoundView(BaseModel):
    """A problem that a person should look at."""

    code: ProblemCode
    text: str
    task_type: str | None = Field(description="The task type; null if the problem is not about one type")


class OverviewView(BaseModel):
    """An installation at one moment."""

    at: datetime
    by_status: dict[TaskStatus, int] = Field(
        description="All tasks at `counted_at`; those that are RUNNING or RETRYING at `at`, unless they are too many"
    )
    counted_at: datetime | None = Field(
        description="When they were counted: seconds ago, with millions of tasks up to a minute; null: not yet"
    )
    types: list[TypeOverviewView]
    is_bounded: bool = Field(
        description="More tasks of some type may be waiting, running or retrying than were counted"
    )
    problems: list[ProblemFoundView] = Field(description="The worst first")
    workers: int = Field(description="Live worker processes")
    dead_letters: int | None = Field(
        description="Tasks that are FAILED or DEAD_LETTER and not discarded, counted as `by_status` is; null until then"
    )


@router.get(
    "",
    summary="Show the installation at a glance",
    responses={
        200: {"model": OverviewView, "description": "Counts, rates and problems"},
        **problem_responses("store_unavailable", "not_running"),
    },
)
async def get_overview(request: Request) -> Response:
    """Show how many tasks wait, run, come and end, and which problems need a person. The cost does not depend on the
    number of tasks.
    """
    overview = await framework_of(request).services.overview.read(broker_of(request))
    return json_response(overview_view(overview))
