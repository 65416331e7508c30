"""Dead letters over HTTP: list, show, replay by their ids."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.bodies import BODY_CODES, ReplayDeadLetters, read
from taskframework.api.callers import caller_of, scope_of
from taskframework.api.context import (
    IdInPath,
    checked_id,
    framework_of,
    is_id,
    json_response,
    page_response,
    refuse_repeated,
)
from taskframework.api.openapi import refuses, takes
from taskframework.api.problems import describe, root_of
from taskframework.api.tasks import PageQuery, UserInQuery
from taskframework.api.views import DeadLetterPage, DeadLetterView, ReplayResult
from taskframework.errors import TaskNotFoundError
from taskframework.operations.dead_letters import DeadLetter, ReplayOutcome

router = APIRouter(prefix="/api/v1/admin/dead-letters", tags=["dead letters"])


class DeadLetterQuery(PageQuery):
    """Which dead letters to list."""

    user_id: UserInQuery = None


@router.get(
    "",
    summary="List dead letters",
    dependencies=[Depends(refuse_repeated)],
    responses={
        200: {"model": DeadLetterPage, "description": "A page, newest first"},
        **refuses("invalid_request", "invalid_cursor", "store_unavailable"),
    },
)
async def list_dead_letters(request: Request, query: Annotated[DeadLetterQuery, Query()]) -> Response:
    """List the tasks that ended FAILED or DEAD_LETTER and the messages nobody could read, as one list."""
    page = await framework_of(request).services.dead_letters.list_letters(
        scope_of(request, query.user_id), limit=query.limit, cursor=query.cursor
    )
    return page_response(page, DeadLetter.view)


@router.get("/replay", include_in_schema=False)
async def refuse_to_show() -> None:
    raise HTTPException(405)  # else it would be taken for the id of a dead letter


@router.get(
    "/{letter_id}",
    summary="Show a dead letter",
    responses={
        200: {"model": DeadLetterView, "description": "The dead letter; a message with all its bytes and headers"},
        **refuses("task_not_found", "task_unreadable", "store_unavailable"),
    },
)
async def get_dead_letter(request: Request, letter_id: IdInPath) -> Response:
    """Show one dead letter."""
    letter = await framework_of(request).services.dead_letters.get(checked_id(letter_id), scope_of(request))
    return json_response(letter.view(whole=True))


@router.post(
    "/replay",
    summary="Queue dead letters anew",
    openapi_extra=takes(ReplayDeadLetters),
    responses={
        200: {"model": ReplayResult, "description": "One outcome for each id"},
        **refuses(*BODY_CODES, "store_unavailable"),
    },
)
async def replay_dead_letters(request: Request) -> Response:
    """Queue tasks anew, each with its own outcome. A message without a task cannot be replayed; nor can a sub-task
    whose parent is over, unless `reopen` lets the parent wait for it again.
    """
    body = await read(request, ReplayDeadLetters)
    operations = framework_of(request).services.dead_letters
    ids = [letter_id for letter_id in body.ids if is_id(letter_id)]
    replayed = await operations.replay(
        ids, scope_of(request), by=caller_of(request).principal, dry_run=body.dry_run, reopen=body.reopen
    )
    outcomes = {outcome.id: outcome for outcome in replayed}
    done = 200 if body.dry_run else 202
    return json_response(
        {"items": [_view(name, outcomes.get(name), done, root_of(request)) for name in dict.fromkeys(body.ids)]}
    )


def _view(letter_id: str, outcome: ReplayOutcome | None, done: int, root: str) -> dict[str, Any]:
    problem = TaskNotFoundError(letter_id, what="dead letter") if outcome is None else outcome.problem
    if problem is None:
        return {"id": letter_id, "status": done, "error": None}
    described = describe(problem)
    return {"id": letter_id, "status": described.status, "error": described.document(root)}
