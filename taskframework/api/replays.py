"""Actions on many tasks over HTTP: begin one by a filter, look at it, stop it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.auditing import audited, reason_of
from taskframework.api.bodies import BODY_CODES, read_body
from taskframework.api.callers import caller_of
from taskframework.api.context import PREFIX, IdInPath, framework_of, json_response, new_router, page_response
from taskframework.api.letter_views import CountView, ReplayPage, ReplayView
from taskframework.api.openapi import key_header, location_header, problem_responses, request_body
from taskframework.api.operator_bodies import CancelTasks, ChooseLetters, ChooseTasks, RetryTasks
from taskframework.api.page_queries import PageQuery
from taskframework.api.problems import root_of
from taskframework.api.submitting import key_in_header
from taskframework.model.action_filters import Action, ActionFilter
from taskframework.model.replays import replay_view
from taskframework.operations.replays import ReplayOperations, stop_refusal

_REPLAYS = f"{PREFIX}/admin/replays"

router = new_router(PREFIX, "replays")

#: The answer of a route that begins an action on many tasks.
STARTED_RESPONSE: dict[int | str, dict[str, Any]] = {
    202: {
        "model": ReplayView,
        "description": "It has started and continues in the background",
        "headers": location_header("action"),
    }
}
_COUNT_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {"model": CountView, "description": "A dry run: the number of tasks"}
}
_REPLAY_RESPONSE: dict[int | str, dict[str, Any]] = {200: {"model": ReplayView, "description": "Its present state"}}
#: The header of a route that begins an action on many tasks, for `openapi_extra`.
TAKES_KEY = {"parameters": [key_header("A second request with the same key is the same action")]}


@router.get(
    "/admin/replays",
    summary="List actions on many tasks",
    responses={
        200: {"model": ReplayPage, "description": "A page, newest first"},
        **problem_responses("invalid_request", "invalid_cursor", "store_unavailable"),
    },
)
async def list_replays(request: Request, query: Annotated[PageQuery, Query()]) -> Response:
    """List the replays, discards, retries and cancels of many tasks, including those that have ended."""
    page = await _operations(request).list_replays(limit=query.limit, cursor=query.cursor)
    return page_response(page, replay_view)


@router.get(
    "/admin/replays/{replay_id}",
    summary="Show an action on many tasks",
    responses={**_REPLAY_RESPONSE, **problem_responses("replay_not_found", "store_unavailable")},
)
async def get_replay(request: Request, replay_id: IdInPath) -> Response:
    """Show the progress of an action on many tasks."""
    return json_response(replay_view(await _operations(request).get(replay_id)))


@router.post(
    "/admin/replays/{replay_id}/stop",
    summary="Stop an action on many tasks",
    responses={**_REPLAY_RESPONSE, **problem_responses("replay_not_found", "store_unavailable")},
)
async def stop_replay(request: Request, replay_id: IdInPath) -> Response:
    """Stop an action: it takes no further tasks, but finishes those that it is working on now. It cannot be continued;
    its numbers show what it has done. An action that had already finished stays `DONE`.
    """
    async with audited(request, "replay.stop", replay_id) as note:
        stopped = await _operations(request).stop(replay_id)
        note.refusal = stop_refusal(stopped)
    return json_response(replay_view(stopped))


@router.get("/tasks/retry", include_in_schema=False)
@router.get("/tasks/cancel", include_in_schema=False)
async def refuse_to_show_these() -> None:
    raise HTTPException(405)  # otherwise the word would be taken for the id of a task


@router.post(
    "/tasks/retry",
    status_code=202,
    summary="Queue failed tasks again",
    openapi_extra=request_body(RetryTasks) | TAKES_KEY,
    responses={
        **STARTED_RESPONSE,
        **_COUNT_RESPONSE,
        **problem_responses(*BODY_CODES, "idempotency_conflict", "replay_running", "store_unavailable"),
    },
)
async def retry_tasks(request: Request) -> Response:
    """Queue all tasks again that the filter finds: those that are FAILED or DEAD_LETTER, or of the given status."""
    body = await read_body(request, RetryTasks)
    reason = reason_of(request, body.reason)
    if body.dry_run:
        return await _count_response(request, Action.RETRY, where_of(body.filter))
    return await begin_replay(
        request, Action.RETRY, where_of(body.filter), rate=body.rate, reason=reason, reopen=body.reopen
    )


@router.post(
    "/tasks/cancel",
    status_code=202,
    summary="Cancel tasks",
    openapi_extra=request_body(CancelTasks) | TAKES_KEY,
    responses={
        **STARTED_RESPONSE,
        **_COUNT_RESPONSE,
        **problem_responses(*BODY_CODES, "idempotency_conflict", "replay_running", "store_unavailable"),
    },
)
async def cancel_tasks(request: Request) -> Response:
    """Cancel all tasks that the filter finds. Waiting tasks are cancelled at once; running tasks are asked to stop."""
    body = await read_body(request, CancelTasks)
    reason = reason_of(request, body.reason)
    if body.dry_run:
        return await _count_response(request, Action.CANCEL, where_of(body.filter))
    return await begin_replay(request, Action.CANCEL, where_of(body.filter), rate=body.rate, reason=reason)


def where_of(chosen: ChooseLetters | ChooseTasks) -> ActionFilter:
    """The chosen conditions, for the record."""
    return ActionFilter(**chosen.model_dump(exclude_none=True))


async def begin_replay(
    request: Request,
    action: Action,
    where: ActionFilter,
    *,
    rate: float | None,
    reason: str | None,
    reopen: bool = False,
) -> Response:
    """Begin an action on many tasks, and answer with it."""
    name = f"{'task' if action in (Action.RETRY, Action.CANCEL) else 'dead-letter'}.{action}"
    async with audited(request, name, None, reason, filter=where.conditions, rate=rate):
        replay = await _operations(request).begin(
            action,
            where,
            by=caller_of(request).principal,
            rate=rate,
            reason=reason,
            reopen=reopen,
            key=key_in_header(request),
        )
    location = f"{root_of(request)}{_REPLAYS}/{replay.replay_id}"
    return json_response(replay_view(replay), 202, {"Location": location})


async def _count_response(request: Request, action: Action, where: ActionFilter) -> Response:
    count = await _operations(request).count_of(action, where)
    return json_response({"total": count.number, "is_total_bounded": count.is_bounded})


def _operations(request: Request) -> ReplayOperations:
    return framework_of(request).services.replays
