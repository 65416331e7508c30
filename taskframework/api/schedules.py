"""Schedules over HTTP: create, show, change, delete, run now, pause and resume."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.auditing import audited
from taskframework.api.bodies import BODY_CODES, CreateSchedule, read_body
from taskframework.api.context import (
    PREFIX,
    framework_of,
    json_response,
    new_router,
    page_response,
    trace_of,
)
from taskframework.api.openapi import key_header, location_header, problem_responses, request_body
from taskframework.api.page_queries import PageQuery
from taskframework.api.problems import root_of
from taskframework.api.schedule_views import SCHEDULE_NAME, SchedulePage, ScheduleView
from taskframework.api.submitting import SUBMISSION_CODES, key_in_header, submission_response
from taskframework.api.views import TaskView
from taskframework.model.schedules import Schedule
from taskframework.operations.schedules import ScheduleOperations, SeenSchedule
from taskframework.submission.schedules import ScheduleDefinition

_SCHEDULES = f"{PREFIX}/admin/schedules"

router = new_router(_SCHEDULES, "schedules")

ScheduleName = Annotated[
    str, Path(description="Name of the schedule", json_schema_extra={"pattern": SCHEDULE_NAME, "maxLength": 100})
]
_DEFINITION_CODES = (*BODY_CODES, *SUBMISSION_CODES, "store_unavailable")
_RUN_KEY = key_header("A second run with the same key is the same run; without a key, each request is a new run")


class ScheduleQuery(PageQuery):
    """Which page to list."""

    cursor: str | None = Field(
        default=None, max_length=100, description="`next_cursor` of the previous page, unchanged", pattern=SCHEDULE_NAME
    )


@router.get(
    "",
    summary="List schedules",
    responses={
        200: {"model": SchedulePage, "description": "A page, by name"},
        **problem_responses("invalid_request", "store_unavailable"),
    },
)
async def list_schedules(request: Request, query: Annotated[ScheduleQuery, Query()]) -> Response:
    """List the schedules, including those of the settings."""
    page = await _operations(request).list_schedules(limit=query.limit, after=query.cursor)
    return page_response(page, SeenSchedule.view)


@router.post(
    "",
    status_code=201,
    summary="Create a schedule",
    openapi_extra=request_body(CreateSchedule),
    responses={
        201: {"model": ScheduleView, "description": "The schedule", "headers": location_header("schedule")},
        **problem_responses(*_DEFINITION_CODES, "schedule_exists", "too_many_schedules"),
    },
)
async def create_schedule(request: Request) -> Response:
    """Create a schedule. Its parameters are checked as in a submission."""
    body = await read_body(request, CreateSchedule)
    async with audited(request, "schedule.create", body.name, task_type=body.task_type):
        schedule = await _operations(request).create(body.name, body)
    location = f"{root_of(request)}{_SCHEDULES}/{schedule.name}"
    return json_response(await _view(request, schedule), 201, {"Location": location})


@router.get(
    "/{name}",
    summary="Show a schedule",
    responses={
        200: {"model": ScheduleView, "description": "The schedule with its next runs"},
        **problem_responses("schedule_not_found", "store_unavailable"),
    },
)
async def get_schedule(request: Request, name: ScheduleName) -> Response:
    """Show one schedule, its last run and its next runs."""
    return json_response(await _view(request, await _operations(request).get(name)))


@router.put(
    "/{name}",
    summary="Replace a schedule",
    openapi_extra=request_body(ScheduleDefinition),
    responses={
        200: {"model": ScheduleView, "description": "The schedule as it is now"},
        **problem_responses(*_DEFINITION_CODES, "schedule_not_found", "schedule_from_settings"),
    },
)
async def put_schedule(request: Request, name: ScheduleName) -> Response:
    """Replace the whole definition. Omitted fields get their defaults; only an omitted pause stays as it is.

    The time of the next run stays, unless the rule itself changes.
    """
    definition = await read_body(request, ScheduleDefinition)
    async with audited(request, "schedule.put", name, task_type=definition.task_type):
        schedule = await _operations(request).put(name, definition)
    return json_response(await _view(request, schedule))


@router.delete(
    "/{name}",
    status_code=204,
    summary="Delete a schedule",
    responses={
        204: {"description": "It is deleted"},
        **problem_responses("schedule_not_found", "schedule_from_settings", "store_unavailable"),
    },
)
async def delete_schedule(request: Request, name: ScheduleName) -> Response:
    """Delete a schedule. The tasks that it has submitted stay."""
    async with audited(request, "schedule.delete", name):
        await _operations(request).delete(name)
    return Response(status_code=204)


@router.post(
    "/{name}/run",
    status_code=202,
    summary="Run a schedule now",
    openapi_extra={"parameters": [_RUN_KEY]},
    responses={
        202: {"model": TaskView, "description": "The task that was submitted"},
        200: {"model": TaskView, "description": "The task that an earlier request with this key submitted"},
        **problem_responses(
            "invalid_request", "schedule_not_found", *SUBMISSION_CODES, "idempotency_conflict", "store_unavailable"
        ),
    },
)
async def run_schedule(request: Request, name: ScheduleName) -> Response:
    """Submit its task now, even if the last run has not ended or the schedule is paused. The next run does not move."""
    async with audited(request, "schedule.run", name):
        with trace_of(request, "run schedule"):
            submission = await _operations(request).run(name, key=key_in_header(request))
    return submission_response(request, submission)


@router.post(
    "/{name}/pause",
    summary="Pause a schedule",
    responses={
        200: {"model": ScheduleView, "description": "The paused schedule"},
        **problem_responses("schedule_not_found", "store_unavailable"),
    },
)
async def pause_schedule(request: Request, name: ScheduleName) -> Response:
    """Pause a schedule until it is resumed, even if processes are restarted."""
    async with audited(request, "schedule.pause", name):
        schedule = await _operations(request).pause(name)
    return json_response(await _view(request, schedule))


@router.post(
    "/{name}/resume",
    summary="Resume a schedule",
    responses={
        200: {"model": ScheduleView, "description": "The resumed schedule"},
        **problem_responses("schedule_not_found", "store_unavailable"),
    },
)
async def resume_schedule(request: Request, name: ScheduleName) -> Response:
    """Resume a schedule with the next run from now. Times that passed during the pause do not count as missed."""
    async with audited(request, "schedule.resume", name):
        schedule = await _operations(request).resume(name)
    return json_response(await _view(request, schedule))


def _operations(request: Request) -> ScheduleOperations:
    return framework_of(request).services.schedules


async def _view(request: Request, schedule: Schedule) -> dict[str, Any]:
    return await _operations(request).view(schedule)
