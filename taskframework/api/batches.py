"""Batches over HTTP: upload, look, read results, cancel, retry failed tasks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, cast

import orjson
from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from taskframework.api.auditing import audited_if_for_others, audited_if_foreign, reason_of
from taskframework.api.bodies import (
    BODIES,
    BODY_CODES,
    JSON,
    NDJSON,
    CancelTask,
    SubmitBatch,
    UploadBatch,
    has_type,
    prefers,
    read_body,
    require_plain,
)
from taskframework.api.callers import (
    caller_of,
    is_caller_still_valid,
    quota_name,
    require_valid_caller,
    scope_of,
    user_of,
)
from taskframework.api.context import (
    PREFIX,
    IdInPath,
    checked_id,
    framework_of,
    json_response,
    new_router,
    page_response,
    trace_of,
)
from taskframework.api.feed import Feed, Watcher
from taskframework.api.ndjson import read_values
from taskframework.api.openapi import ITEM_SCHEMA, location_header, problem_responses, request_body
from taskframework.api.page_queries import DEFAULT_LIMIT, LIMIT_DESCRIPTION
from taskframework.api.pages import large_page_response
from taskframework.api.problems import root_of
from taskframework.api.refusals import RequestRefusedError, invalid_fields_refusal
from taskframework.api.submitting import KEY_HEADER, SUBMISSION_CODES, with_key_of_header
from taskframework.api.tasks import BatchQuery
from taskframework.api.views import BatchPage, BatchView, NumericCursor
from taskframework.model.batch_status import BatchResult, BatchStatus
from taskframework.model.query import MAX_LIMIT, Page, TaskFilter
from taskframework.model.subtasks import MAX_SUBTASKS
from taskframework.model.values import Json
from taskframework.operations.keys import REMEMBERED_SECONDS
from taskframework.submission.acceptance import batch_option_schemas
from taskframework.submission.batches import BatchSubmission
from taskframework.submission.requests import BatchRequest
from taskframework.telemetry import log_context

router = new_router(PREFIX, "batches")

_TASK_TYPE = {"type": "string", "maxLength": 200}
#: The options of an upload, described as the fields of the body are. A query has no null: options are left out.
_UPLOAD_OPTIONS = {"task_type": _TASK_TYPE} | {
    name: schema["anyOf"][0] for name, schema in batch_option_schemas().items()
}
_UPLOAD_OPTIONS["user_id"] = _UPLOAD_OPTIONS["correlation_id"]
#: Text that is a number in a query. Python refuses to read thousands of digits, and accepts digits of other scripts.
_NUMBER = re.compile(r"[0-9]{1,18}")
_UPLOAD_PARAMETERS = [
    {
        "name": name,
        "in": "query",
        "description": f"For an upload as {NDJSON}: same as the field of this name in {JSON}",
        "schema": schema,
    }
    for name, schema in _UPLOAD_OPTIONS.items()
]
_NDJSON_BODY = {"schema": {"type": "string", "description": "One item per line, up to 100,000"}}
_REQUEST_BODY = request_body(SubmitBatch)
_REQUEST_BODY["requestBody"]["content"][NDJSON] = _NDJSON_BODY
_RESULT_CONTENT = {
    JSON: {"schema": {"$ref": "#/components/schemas/BatchResultPage"}},
    NDJSON: {ITEM_SCHEMA: {"$ref": "#/components/schemas/BatchResultView"}},
}


class ResultQuery(BaseModel):
    """Which results to give."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=DEFAULT_LIMIT, ge=1, le=MAX_LIMIT, description=LIMIT_DESCRIPTION)
    cursor: NumericCursor | None = Field(
        default=None, description="`next_cursor` of the previous page; or the number of the first item, from 0"
    )

    @property
    def first(self) -> int:
        return min(int(self.cursor or 0), MAX_SUBTASKS)


class ResultStream(StreamingResponse):
    """Results as lines while the batch runs. If the process stops before the last result, the answer is cut off, so
    that its reader does not take this for the end. It counts as a watcher of the feed, although it gets no events.
    """

    media_type = NDJSON

    def __init__(self, request: Request, watcher: Watcher, results: AsyncIterator[Sequence[BatchResult]]) -> None:
        super().__init__(self._lines(request, results), headers={"X-Accel-Buffering": "no"})
        self._feed, self._watcher = cast(Feed, request.app.state.feed), watcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._feed.leave(self._watcher)

    @staticmethod
    async def _lines(request: Request, results: AsyncIterator[Sequence[BatchResult]]) -> AsyncIterator[bytes]:
        feed = cast(Feed, request.app.state.feed)
        async for part in results:
            if feed.is_over or not await is_caller_still_valid(request):
                raise ClientDisconnect
            if part:
                yield b"".join(orjson.dumps(result.view()) + b"\n" for result in part)


@router.post(
    "/batches",
    status_code=202,
    summary="Submit a batch",
    openapi_extra=_REQUEST_BODY | {"parameters": [*_UPLOAD_PARAMETERS, KEY_HEADER]},
    responses={
        202: {
            "model": BatchView,
            "description": "Accepted: all items are stored and will be executed",
            "headers": location_header("batch"),
        },
        200: {
            "model": BatchView,
            "description": "The batch that an earlier upload with this key completed",
            "headers": location_header("batch"),
        },
        **problem_responses(
            *BODY_CODES,
            *SUBMISSION_CODES,
            "task_not_found",
            "idempotency_conflict",
            "batch_conflict",
            "batch_closed",
            "batch_too_large",
            "store_unavailable",
        ),
    },
)
async def submit_batch(request: Request) -> Response:
    """Store many items of one type. In JSON: up to 1,000 items; if one is wrong, none is stored. As
    `application/x-ndjson`: up to 100,000 items, one on each line, with the options in the query; they are stored, and
    begin to run, while the upload continues. To continue an upload that was interrupted or had a wrong line, send it
    again from its beginning with the same idempotency key.
    """
    with trace_of(request, "submit batch"), log_context(user_id=caller_of(request).principal):
        submission = await (_upload_lines(request) if has_type(request, NDJSON) else _submit_json(request))
    now = framework_of(request).services.store.now()
    return json_response(
        BatchStatus(submission.batch, now).view(),
        202 if submission.is_new else 200,
        {"Location": f"{root_of(request)}{PREFIX}/batches/{submission.batch.task_id}"},
    )


async def _submit_json(request: Request) -> BatchSubmission:
    if request.query_params:
        given = request.headers.get("content-type", "")
        shown = f"{given[:100]!r}" if given else "missing"
        raise RequestRefusedError(
            f"Options in the query belong to an upload, and the content type is {shown}.",
            hint=f"To upload one item per line, send the header Content-Type: {NDJSON}."
            " In JSON, send the options as fields of the body.",
            code="invalid_request" if has_type(request, JSON) else "unsupported_media_type",
        )
    body = with_key_of_header(request, await read_body(request, SubmitBatch))
    options: dict[str, Any] = {name: value for name, value in body.items() if name != "items"}
    options["user_id"] = user_id = user_of(request, body.get("user_id"))
    async with audited_if_for_others(request, "batch.submit", [user_id], task_type=body["task_type"]):
        return await framework_of(request).services.batch_submission.submit(BatchRequest(**options), body["items"])


async def _upload_lines(request: Request) -> BatchSubmission:
    require_plain(request)
    given = {
        name: int(text) if _UPLOAD_OPTIONS.get(name, {}).get("type") == "integer" and _NUMBER.fullmatch(text) else text
        for name, text in request.query_params.items()
    }
    try:
        options: UploadBatch = BODIES[UploadBatch].validate_python(given)
    except ValidationError as error:
        raise invalid_fields_refusal(error, list(_UPLOAD_OPTIONS)) from None
    options["user_id"] = user_id = user_of(request, options.get("user_id"))
    wanted = BatchRequest(**with_key_of_header(request, options))
    async with audited_if_for_others(request, "batch.submit", [user_id], task_type=options["task_type"]):
        return await framework_of(request).services.batch_submission.upload(wanted, _read_items(request))


async def _read_items(request: Request) -> AsyncIterator[list[Json]]:
    """Give the items of an upload as they come, as long as the key that began it is valid: an upload may take hours.

    Raises:
        RequestRefusedError: if the key is no longer valid, and as `read_values`.
    """
    loop = asyncio.get_running_loop()
    checked_at = loop.time()

    async def check_key() -> None:
        nonlocal checked_at
        if loop.time() - checked_at >= REMEMBERED_SECONDS:
            checked_at = loop.time()
            await require_valid_caller(request)

    async for values in read_values(request):
        await check_key()
        yield values
    await check_key()  # before the batch is sealed


@router.get(
    "/batches",
    summary="List batches",
    responses={
        200: {"model": BatchPage, "description": "A page, newest first"},
        **problem_responses("invalid_request", "invalid_cursor", "store_unavailable"),
    },
)
async def list_batches(request: Request, query: Annotated[BatchQuery, Query()]) -> Response:
    """List batches from the newest to the oldest, each with the progress of its last count.

    There is no index for `idempotency_key`: with this filter, each page searches the next 5,000 batches that match the
    other filters. So a page may be empty although more batches follow, as long as `next_cursor` is not null.
    """
    page = await framework_of(request).services.batches.list_batches(
        scope_of(request, query.user_id),
        TaskFilter(status=query.status, task_type=query.task_type, idempotency_key=query.idempotency_key),
        limit=query.limit,
        cursor=query.cursor,
    )
    return page_response(page, BatchStatus.view)


@router.get(
    "/batches/{batch_id}",
    summary="Show a batch",
    responses={
        200: {"model": BatchView, "description": "The batch, counted now"},
        **problem_responses("task_not_found", "task_unreadable", "store_unavailable"),
    },
)
async def get_batch(request: Request, batch_id: IdInPath) -> Response:
    """Show the progress of a batch."""
    status = framework_of(request).services.batches.status
    return json_response((await status(checked_id(batch_id), scope_of(request))).view())


@router.get(
    "/batches/{batch_id}/results",
    summary="Read the results of a batch",
    response_class=Response,
    responses={
        200: {
            "description": f"A page; or, with Accept: {NDJSON}, one line for each result",
            "content": _RESULT_CONTENT,
        },
        **problem_responses(
            "invalid_request",
            "task_not_found",
            "task_unreadable",
            "too_many_streams",
            "stopping",
            "store_unavailable",
        ),
    },
)
async def read_results(request: Request, batch_id: IdInPath, query: Annotated[ResultQuery, Query()]) -> Response:
    """Return the results of the items, in the order of the upload. A page shows each item as it is now.

    With `Accept: application/x-ndjson`, each result is sent as soon as its item and all items before it have ended, up
    to the last item; `limit` has no effect then.
    """
    batches, scope = framework_of(request).services.batches, scope_of(request)
    if prefers(request, NDJSON):
        await batches.get(checked_id(batch_id), scope)  # before the answer has begun
        feed = cast(Feed, request.app.state.feed)
        # No task has this id, so the watcher gets no events.
        watcher = await feed.join(scope, f"results of {batch_id}", caller=quota_name(caller_of(request)))
        return ResultStream(request, watcher, batches.follow_results(batch_id, scope, first=query.first))

    async def read_page(*, limit: int, cursor: str | None) -> Page[BatchResult]:
        return await batches.results(checked_id(batch_id), scope, limit=limit, first=int(cursor or query.first))

    return await large_page_response(read_page, BatchResult.view, limit=query.limit)


@router.post(
    "/batches/{batch_id}/cancel",
    status_code=202,
    summary="Cancel a batch",
    openapi_extra=request_body(CancelTask, is_optional=True),
    responses={
        202: {
            "model": BatchView,
            "description": "Cancelled; its unfinished tasks are now being cancelled one by one",
        },
        **problem_responses(
            *BODY_CODES, "task_not_found", "task_unreadable", "transition_refused", "store_unavailable"
        ),
    },
)
async def cancel_batch(request: Request, batch_id: IdInPath) -> Response:
    """Cancel a batch. Its waiting tasks are cancelled, its running tasks are asked to stop."""
    body = await read_body(request, CancelTask, is_optional=True)
    cancel, reason = framework_of(request).services.batches.cancel, reason_of(request, body.reason)
    async with await audited_if_foreign(request, "batch.cancel", checked_id(batch_id), reason):
        status = await cancel(batch_id, scope_of(request), by=caller_of(request).principal, reason=reason)
    return json_response(status.view(), 202)


@router.post(
    "/batches/{batch_id}/retry-failed",
    status_code=202,
    summary="Retry the failed tasks of a batch",
    responses={
        202: {
            "model": BatchView,
            "description": "The batch is open again; its failed tasks are now being queued one by one",
        },
        **problem_responses("task_not_found", "task_unreadable", "transition_refused", "store_unavailable"),
    },
)
async def retry_failed(request: Request, batch_id: IdInPath) -> Response:
    """Queue every failed or cancelled task of a batch again. A batch that has ended waits for these tasks again."""
    retry = framework_of(request).services.batches.retry_failed
    async with await audited_if_foreign(request, "batch.retry-failed", checked_id(batch_id)):
        status = await retry(batch_id, scope_of(request), by=caller_of(request).principal)
    return json_response(status.view(), 202)
