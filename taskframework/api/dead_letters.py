"""Dead letters over HTTP: list them, group them, show one with all details; replay, discard, repair."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.auditing import MAX_AUDITED_IDS, audited, reason_of
from taskframework.api.bodies import BODY_CODES, read_body
from taskframework.api.callers import caller_of, scope_of, user_of
from taskframework.api.context import (
    PREFIX,
    IdInPath,
    checked_id,
    framework_of,
    is_id,
    json_response,
    new_router,
    page_response,
)
from taskframework.api.letter_views import (
    DeadLetterPage,
    DeadLetterView,
    DiscardResult,
    LetterGroupPage,
    RepairPlanView,
    ReplayResult,
    outcomes_view,
)
from taskframework.api.openapi import key_header, problem_responses, request_body
from taskframework.api.operator_bodies import ChosenLetters, DiscardDeadLetters, RepairMessage, ReplayDeadLetters
from taskframework.api.page_queries import PageQuery, UserInQuery
from taskframework.api.pages import large_page_response
from taskframework.api.problems import root_of
from taskframework.api.replays import STARTED_RESPONSE, TAKES_KEY, begin_replay, where_of
from taskframework.api.submitting import SUBMISSION_CODES, key_in_header, submission_response
from taskframework.api.views import TaskView
from taskframework.model.action_filters import Action
from taskframework.model.letters import LetterFilter, LetterGroup
from taskframework.model.query import MAX_LIMIT
from taskframework.model.values import MAX_NAME_LENGTH
from taskframework.operations.audit import Noted
from taskframework.operations.dead_letters import DeadLetterOperations, LetterOutcome, refusal_of
from taskframework.operations.letter_views import DeadLetter
from taskframework.operations.mending import read_corrected
from taskframework.submission.options import AnyMoment

router = new_router(f"{PREFIX}/admin/dead-letters", "dead letters")

_DISCARD_KEY = key_header(
    "With filter: a second request with the same key is the same action. With ids it has no effect: what was discarded "
    "before is refused"
)


class GroupQuery(PageQuery):
    """Which groups to list."""

    task_type: str | None = Field(default=None, max_length=MAX_NAME_LENGTH, description="Only of this type")
    user_id: UserInQuery = None


class DeadLetterQuery(GroupQuery):
    """Which dead letters to list."""

    kind: Literal["task", "message"] | None = Field(default=None, description="Only tasks, or only messages")
    fingerprint: str | None = Field(
        default=None, max_length=MAX_NAME_LENGTH, description="Only dead letters of this group"
    )
    text: str | None = Field(
        default=None, max_length=MAX_NAME_LENGTH, description="Only if the error contains this text"
    )
    finished_after: AnyMoment | None = Field(
        default=None, description="Only if ended or received at this time or later"
    )
    finished_before: AnyMoment | None = Field(default=None, description="Only if ended or received before this time")

    @property
    def filter(self) -> LetterFilter:
        return LetterFilter(**self.model_dump(include=set(LetterFilter.__dataclass_fields__)))


@router.get(
    "",
    summary="List dead letters",
    responses={
        200: {"model": DeadLetterPage, "description": "A page, newest first"},
        **problem_responses("invalid_request", "invalid_cursor", "store_unavailable"),
    },
)
async def list_dead_letters(request: Request, query: Annotated[DeadLetterQuery, Query()]) -> Response:
    """List the tasks that ended FAILED or DEAD_LETTER, and the messages that no worker could read, as one list."""
    scope = scope_of(request, query.user_id)
    read_page = partial(_operations(request).list_letters, scope, wanted=query.filter)
    return await large_page_response(read_page, DeadLetter.view, limit=query.limit, cursor=query.cursor)


@router.get(
    "/groups",
    summary="List the causes of dead letters",
    responses={
        200: {"model": LetterGroupPage, "description": "A page, the largest group first"},
        **problem_responses("invalid_request", "invalid_cursor", "store_unavailable"),
    },
)
async def list_dead_letter_groups(request: Request, query: Annotated[GroupQuery, Query()]) -> Response:
    """List dead letters grouped by cause: how many, since when, and how many in each hour of the last day."""
    scope, wanted = scope_of(request, query.user_id), LetterFilter(task_type=query.task_type)
    page = await _operations(request).group_page(scope, wanted, limit=query.limit, cursor=query.cursor)
    return page_response(page, LetterGroup.view)


@router.get("/replay", include_in_schema=False)
@router.get("/discard", include_in_schema=False)
async def refuse_to_show() -> None:
    raise HTTPException(405)  # otherwise the word would be taken for the id of a dead letter


@router.get(
    "/{letter_id}",
    summary="Show a dead letter",
    responses={
        200: {
            "model": DeadLetterView,
            "description": "The dead letter: a task with its errors and history, a message with its bytes and headers",
        },
        **problem_responses("task_not_found", "task_unreadable", "store_unavailable"),
    },
)
async def get_dead_letter(request: Request, letter_id: IdInPath) -> Response:
    """Show one dead letter with all details."""
    letter = await _operations(request).get(checked_id(letter_id), scope_of(request))
    return json_response(letter.view(whole=True))


@router.post(
    "/replay",
    summary="Queue dead letters again",
    openapi_extra=request_body(ReplayDeadLetters) | TAKES_KEY,
    responses={
        200: {
            "model": ReplayResult,
            "description": "One outcome for each dead letter: of the ids, or found by the filter",
        },
        **STARTED_RESPONSE,
        **problem_responses(
            *BODY_CODES,
            "unknown_task_type",
            "invalid_parameters",
            "value_not_storable",
            "idempotency_conflict",
            "replay_running",
            "store_unavailable",
        ),
    },
)
async def replay_dead_letters(request: Request) -> Response:
    """Queue tasks again. If other parameters are given, they are checked before any task is changed.

    A message without a task cannot be replayed. Nor can a sub-task whose parent has ended, unless `reopen` lets the
    parent wait for it again. The tasks that a filter finds are replayed in the background if a rate or an idempotency
    key is given, or if there are many.
    """
    body = await read_body(request, ReplayDeadLetters)
    reason = reason_of(request, body.reason)
    if (ids := await _ids_to_handle_now(request, Action.REPLAY, body)) is None:
        return await _begin_in_background(request, Action.REPLAY, body, reason, reopen=body.reopen)
    operations, scope = _operations(request), scope_of(request)
    options: dict[str, Any] = {"by": caller_of(request).principal, "reopen": body.reopen, "reason": reason}
    options |= {"dry_run": body.dry_run, "key": key_in_header(request)}
    async with _audited(request, "dead-letter.replay", body, reason, edited=body.is_edited or None) as note:
        if body.is_edited:
            outcomes = await operations.replay_edited(ids, body.parameters, scope, **options)
        else:
            outcomes = await operations.replay(ids, scope, **options)
        _note_refusal(note, outcomes)
    return await _outcomes_response(request, body, outcomes, 202, "replayed")


@router.post(
    "/discard",
    summary="Discard dead letters",
    openapi_extra=request_body(DiscardDeadLetters) | {"parameters": [_DISCARD_KEY]},
    responses={
        200: {
            "model": DiscardResult,
            "description": "One outcome for each dead letter: of the ids, or found by the filter",
        },
        **STARTED_RESPONSE,
        **problem_responses(*BODY_CODES, "idempotency_conflict", "replay_running", "store_unavailable"),
    },
)
async def discard_dead_letters(request: Request) -> Response:
    """Discard dead letters. A task keeps its status, is in no list of dead letters any more, and can still be retried
    by its id. A message is deleted.
    """
    body = await read_body(request, DiscardDeadLetters)
    if (ids := await _ids_to_handle_now(request, Action.DISCARD, body)) is None:
        return await _begin_in_background(request, Action.DISCARD, body, body.reason)
    async with _audited(request, "dead-letter.discard", body, body.reason) as note:
        by, discard = caller_of(request).principal, _operations(request).discard
        outcomes = await discard(ids, scope_of(request), by=by, reason=body.reason, dry_run=body.dry_run)
        _note_refusal(note, outcomes)
    return await _outcomes_response(request, body, outcomes, 200, "discarded")


@router.post(
    "/{letter_id}/repair",
    status_code=202,
    summary="Make a task from an unreadable message",
    openapi_extra=request_body(RepairMessage),
    responses={
        202: {"model": TaskView, "description": "The task made from the message"},
        200: {
            "model": TaskView | RepairPlanView,
            "description": "The task that was made from it before; or in a dry run, what would be submitted",
        },
        **problem_responses(
            *BODY_CODES,
            *SUBMISSION_CODES,
            "task_not_found",
            "transition_refused",
            "idempotency_conflict",
            "store_unavailable",
        ),
    },
)
async def repair_dead_letter(request: Request, letter_id: IdInPath) -> Response:
    """Submit the task that a message was meant to be, and delete the message. A second repair returns the same task.
    The `correlation_id` of the task is the id of the message.
    """
    body = await read_body(request, RepairMessage)
    task_type, parameters = body.task_type or "", body.parameters
    if body.body_text is not None:
        task_type, parameters = read_corrected(body.body_text, body.task_type)
    user_id, by = user_of(request, body.user_id), caller_of(request).principal
    mend, name = framework_of(request).services.mending.mend, checked_id(letter_id)
    if body.dry_run:
        await mend(name, task_type, parameters, user_id=user_id, by=by, dry_run=True)
        return json_response({"id": name, "task_type": task_type, "parameters": parameters, "dry_run": True})
    async with audited(request, "dead-letter.repair", name, body.reason, task_type=task_type):
        submission = await mend(name, task_type, parameters, user_id=user_id, by=by)
    assert submission is not None, "only a dry run gives none"
    return submission_response(request, submission)


def _operations(request: Request) -> DeadLetterOperations:
    return framework_of(request).services.dead_letters


async def _ids_to_handle_now(request: Request, action: Action, body: ChosenLetters) -> Sequence[str] | None:
    """The letters to be handled before the answer. None if the matches of the filter become an action in the
    background: there are many, or the action has a rate, or a key with which a second request may repeat it, or the
    same action is running.
    """
    if body.filter is None:
        return [letter_id for letter_id in body.ids or () if is_id(letter_id)]
    if not body.dry_run and (body.rate is not None or key_in_header(request) is not None):
        return None
    chosen = where_of(body.filter)
    if not body.dry_run and await framework_of(request).services.replays.find_running(action, chosen) is not None:
        return None
    scope = scope_of(request, chosen.user_id)
    page = await _operations(request).list_letters(scope, limit=MAX_LIMIT, wanted=chosen.letter_filter)
    return [letter.id for letter in page.items] if page.next_cursor is None or body.dry_run else None


async def _begin_in_background(
    request: Request, action: Action, body: ChosenLetters, reason: str | None, *, reopen: bool = False
) -> Response:
    assert body.filter is not None, "ids are done at once"
    where = where_of(body.filter)
    return await begin_replay(request, action, where, rate=body.rate, reason=reason, reopen=reopen)


def _audited(
    request: Request, action: str, body: ChosenLetters, reason: str | None, **details: Any
) -> AbstractAsyncContextManager[Noted | None]:
    """The audit record of an action that is done at once; a dry run does nothing, so it has none."""
    if body.dry_run:
        return nullcontext()
    ids = body.ids or []
    target = ids[0] if len(ids) == 1 else None
    chosen = None if body.filter is None else where_of(body.filter).conditions
    several = {"ids": ids[:MAX_AUDITED_IDS], "count": len(ids)} if len(ids) > 1 else {}
    return audited(request, action, target, reason, filter=chosen, **several, **details)


def _note_refusal(note: Noted | None, outcomes: Sequence[LetterOutcome]) -> None:
    if note is not None:
        note.refusal = refusal_of(outcomes)


async def _outcomes_response(
    request: Request, body: ChosenLetters, outcomes: Sequence[LetterOutcome], success_status: int, count_field: str
) -> Response:
    root = root_of(request)
    ids = [outcome.id for outcome in outcomes] if body.ids is None else body.ids
    view = outcomes_view(ids, outcomes, 200 if body.dry_run else success_status, root)
    view[count_field] = sum(outcome.problem is None for outcome in outcomes)
    if body.filter is not None:
        where = where_of(body.filter)
        count = await framework_of(request).services.replays.count_of(Action.DISCARD, where) if body.dry_run else None
        view["total"] = len(outcomes) if count is None else count.number
    return json_response(view)
