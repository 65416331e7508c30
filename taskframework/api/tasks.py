"""Tasks over HTTP: submit, show, list, cancel, queue again."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.auditing import audited_if_for_others, audited_if_foreign, reason_of
from taskframework.api.bodies import BODY_CODES, CancelTask, RetryTask, SubmitTask, SubmitTasks, read_body
from taskframework.api.callers import caller_of, scope_of, user_of
from taskframework.api.context import PREFIX, IdInPath, checked_id, framework_of, json_response, new_router, trace_of
from taskframework.api.openapi import location_header, problem_responses, request_body
from taskframework.api.page_queries import PageQuery, UserInQuery
from taskframework.api.pages import large_page_response
from taskframework.api.problems import problem_of, root_of
from taskframework.api.refusals import RequestRefusedError
from taskframework.api.submitting import KEY_HEADER, SUBMISSION_CODES, submission_response, with_key_of_header
from taskframework.api.views import BulkResult, TaskPage, TaskView
from taskframework.errors import StoreUnavailableError
from taskframework.model.limits import MAX_LIMIT_LENGTH
from taskframework.model.query import TaskFilter
from taskframework.model.status import TaskStatus
from taskframework.model.values import MAX_NAME_LENGTH
from taskframework.model.view import public_view
from taskframework.submission.options import AnyMoment, Name
from taskframework.submission.requests import SubmitRequest
from taskframework.submission.service import Submission
from taskframework.telemetry import log_context

router = new_router(PREFIX, "tasks")

#: Most tasks of a page that is searched for, because each part of such a page looks through thousands of tasks.
_MAX_SEARCH_RESULTS = 50


class BatchQuery(PageQuery):
    """Which batches to list."""

    status: TaskStatus | None = Field(default=None, description="Only those in this status")
    user_id: UserInQuery = None
    task_type: str | None = Field(default=None, max_length=100, description="Only those of this type")
    idempotency_key: Name | None = Field(default=None, description="Only those with this idempotency key")


class TaskQuery(BatchQuery):
    """Which tasks to list."""

    parent_task_id: str | None = Field(default=None, max_length=100, description="Only sub-tasks of this task")
    stream: str | None = Field(
        default=None, max_length=MAX_NAME_LENGTH, description="Only tasks of the stream with this key"
    )
    created_after: AnyMoment | None = Field(default=None, description="Only those submitted at this time or later")
    created_before: AnyMoment | None = Field(default=None, description="Only those submitted earlier")
    finished_after: AnyMoment | None = Field(default=None, description="Only those that ended at this time or later")
    finished_before: AnyMoment | None = Field(default=None, description="Only those that ended earlier")
    correlation_id: Name | None = Field(default=None, description="Only those with this correlation id")
    waits_for_limit: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_LIMIT_LENGTH,
        description="Only those that wait for their turn in this limit, `NAME` or `NAME/KEY`",
    )
    error: str | None = Field(
        default=None, min_length=1, max_length=200, description="Only tasks whose error message contains this text"
    )
    fingerprint: str | None = Field(
        default=None, min_length=1, max_length=100, description="Only those whose error has this fingerprint"
    )

    @property
    def filter(self) -> TaskFilter:
        return TaskFilter(**self.model_dump(include=set(TaskFilter.__dataclass_fields__)))


@router.post(
    "/tasks",
    status_code=202,
    summary="Submit a task",
    openapi_extra=request_body(SubmitTask) | {"parameters": [KEY_HEADER]},
    responses={
        202: {
            "model": TaskView,
            "description": "Accepted: the task is stored and will be executed",
            "headers": location_header("task"),
        },
        200: {
            "model": TaskView,
            "description": "The task of an earlier submission with this key",
            "headers": location_header("task"),
        },
        **problem_responses(
            *BODY_CODES,
            *SUBMISSION_CODES,
            "idempotency_conflict",
            "stream_mode",
            "newer_version",
            "version_conflict",
            "record_unreadable",
            "store_unavailable",
        ),
    },
)
async def submit_task(request: Request) -> Response:
    """Store a task durably; a worker executes it as soon as it is due, whatever happens to this process."""
    body = await read_body(request, SubmitTask)
    body = with_key_of_header(request, body)
    body["user_id"] = user_id = user_of(request, body.get("user_id"))
    with trace_of(request, "submit"), log_context(user_id=user_id, correlation_id=body.get("correlation_id")):
        async with audited_if_for_others(request, "task.submit", [user_id], task_type=body["task_type"]):
            submission = await framework_of(request).services.submission.submit(SubmitRequest(**body))
    return submission_response(request, submission)


@router.post(
    "/tasks/bulk",
    summary="Submit up to 1,000 tasks",
    openapi_extra=request_body(SubmitTasks),
    responses={
        200: {"model": BulkResult, "description": "One outcome for each task; some may be refused"},
        **problem_responses(*BODY_CODES, "store_unavailable"),
    },
)
async def submit_tasks(request: Request) -> Response:
    """Store many tasks at once. Each task is accepted or refused by itself; refused tasks are not stored.

    Each task may have an `idempotency_key`; with the header `Idempotency-Key` the request is refused.
    """
    if "idempotency-key" in request.headers:  # its caller would believe that a repetition stores nothing twice
        raise RequestRefusedError(
            "A bulk request has no key of its own.", hint="Give each task an idempotency_key, and send no such header."
        )
    body = await read_body(request, SubmitTasks)
    items = [_with_owner(request, item) for item in body.items]
    readable = [SubmitRequest(**item) for item in items if isinstance(item, dict)]
    with trace_of(request, "submit many"), log_context(user_id=caller_of(request).principal):
        owners, count = [item.user_id for item in readable], len(readable)
        async with audited_if_for_others(request, "task.submit", owners, count=count):
            stored = await framework_of(request).services.submission.submit_many(readable)
    if stored and all(isinstance(outcome, StoreUnavailableError) for outcome in stored):
        raise StoreUnavailableError(str(stored[0]))
    outcomes, root = iter(stored), root_of(request)
    return json_response(
        {
            "items": [
                _bulk_outcome(index, item if isinstance(item, RequestRefusedError) else next(outcomes), root)
                for index, item in enumerate(items)
            ]
        }
    )


@router.get(
    "/tasks",
    summary="List tasks",
    responses={
        200: {"model": TaskPage, "description": "A page, newest first"},
        **problem_responses("invalid_request", "invalid_cursor", "store_unavailable"),
    },
)
async def list_tasks(request: Request, query: Annotated[TaskQuery, Query()]) -> Response:
    """List tasks from the newest to the oldest. All given filters must match.

    For `correlation_id`, `idempotency_key`, `waits_for_limit`, `error` and `fingerprint` there is no index: with one of
    these filters, each page searches the next 5,000 tasks that match the other filters. It has at most 50 tasks, and
    may be empty although more tasks follow. More follow as long as `next_cursor` is not null.
    """
    tasks, scope = framework_of(request).services.tasks, scope_of(request, query.user_id)
    limit = min(query.limit, _MAX_SEARCH_RESULTS) if query.filter.has_unindexed_condition else query.limit
    read_page = partial(tasks.list_tasks, scope, query.filter)
    return await large_page_response(read_page, public_view, limit=limit, cursor=query.cursor)


@router.get("/tasks/bulk", include_in_schema=False)
async def refuse_to_show() -> None:
    raise HTTPException(405)  # otherwise the word would be taken for the id of a task


@router.get(
    "/tasks/{task_id}",
    summary="Show a task",
    responses={
        200: {"model": TaskView, "description": "The task"},
        **problem_responses("task_not_found", "task_unreadable", "store_unavailable"),
    },
)
async def get_task(request: Request, task_id: IdInPath) -> Response:
    """Show a task as it is now, with its result or error and its history."""
    return json_response(
        public_view(await framework_of(request).services.tasks.get(checked_id(task_id), scope_of(request)))
    )


@router.post(
    "/tasks/{task_id}/cancel",
    status_code=202,
    summary="Cancel a task",
    openapi_extra=request_body(CancelTask, is_optional=True),
    responses={
        202: {"model": TaskView, "description": "Cancelled, or asked to stop: then it is still RUNNING"},
        **problem_responses(
            *BODY_CODES, "task_not_found", "task_unreadable", "transition_refused", "store_unavailable"
        ),
    },
)
async def cancel_task(request: Request, task_id: IdInPath) -> Response:
    """Cancel a task. A waiting task is CANCELLED at once; a running task is asked to stop and may still complete."""
    body = await read_body(request, CancelTask, is_optional=True)
    cancel, reason = framework_of(request).services.tasks.cancel, reason_of(request, body.reason)
    async with await audited_if_foreign(request, "task.cancel", checked_id(task_id), reason):
        task = await cancel(task_id, scope_of(request), by=caller_of(request).principal, reason=reason)
    return json_response(public_view(task), 202)


@router.post(
    "/tasks/{task_id}/retry",
    status_code=202,
    summary="Queue a finished task again, or try one again now",
    openapi_extra=request_body(RetryTask, is_optional=True),
    responses={
        202: {"model": TaskView, "description": "Queued as a new generation, or due now"},
        **problem_responses(
            *BODY_CODES,
            "task_not_found",
            "task_unreadable",
            "transition_refused",
            "parent_finished",
            "store_unavailable",
        ),
    },
)
async def retry_task(request: Request, task_id: IdInPath) -> Response:
    """Queue a task that is FAILED, DEAD_LETTER or CANCELLED again, as a new generation with all its attempts.

    For a RETRYING task, make the next attempt due now; the task keeps the attempts that it has left.
    """
    body = await read_body(request, RetryTask, is_optional=True)
    retry, reason = framework_of(request).services.tasks.retry, reason_of(request, body.reason)
    async with await audited_if_foreign(request, "task.retry", checked_id(task_id), reason):
        by = caller_of(request).principal
        task = await retry(task_id, scope_of(request), by=by, reopen=body.reopen, reason=reason)
    return json_response(public_view(task), 202)


def _with_owner(request: Request, item: SubmitTask | RequestRefusedError) -> SubmitTask | RequestRefusedError:
    """The item with its owner, or the error if the caller may not name this owner."""
    if isinstance(item, RequestRefusedError):
        return item
    try:
        item["user_id"] = user_of(request, item.get("user_id"))
    except RequestRefusedError as error:
        return error
    return item


def _bulk_outcome(index: int, outcome: Submission | Exception, root: str) -> dict[str, Any]:
    if isinstance(outcome, Submission):
        status = 202 if outcome.is_new else 200
        return {"index": index, "status": status, "task": public_view(outcome.task), "error": None}
    problem = problem_of(outcome)
    return {"index": index, "status": problem.status, "task": None, "error": problem.document(root)}
