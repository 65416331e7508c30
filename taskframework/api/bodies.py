"""The request bodies: their models, and the code that reads a body into one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Annotated, Any, Required, TypeVar

from pydantic import (
    ConfigDict,
    Field,
    RootModel,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    with_config,
)
from starlette.requests import Request

from taskframework.api.body_fields import Body, Reopen, UserInBody
from taskframework.api.callers import require_valid_caller
from taskframework.api.operator_bodies import (
    CancelTasks,
    DiscardDeadLetters,
    RepairMessage,
    ReplayDeadLetters,
    RetryTasks,
)
from taskframework.api.receiving import receive_body
from taskframework.api.refusals import RequestRefusedError, invalid_fields_refusal
from taskframework.api.schedule_views import SCHEDULE_NAME
from taskframework.durations import Duration
from taskframework.model.keys import Role
from taskframework.model.values import MAX_NAME_LENGTH, MAX_REASON
from taskframework.operations.keys import REMEMBERED_SECONDS
from taskframework.submission.options import BatchOptions, Name, SubmissionOptions
from taskframework.submission.schedules import ScheduleDefinition

#: Problems of every route that reads a body.
BODY_CODES = (
    "bad_request",
    "invalid_json",
    "request_timeout",
    "body_too_large",
    "unsupported_media_type",
    "invalid_request",
)
JSON, NDJSON = "application/json", "application/x-ndjson"
MAX_BULK_ITEMS = 1000


@with_config(
    extra="forbid",
    hide_input_in_errors=True,
    json_schema_extra={"examples": [{"task_type": "count-words", "parameters": {"text": "one two"}}]},
)
class SubmitTask(SubmissionOptions, total=False):
    """A task to execute. An option that is omitted or null comes from the options of the task type, then from the
    settings.
    """

    task_type: Required[Annotated[str, Field(description="A registered task type", max_length=MAX_NAME_LENGTH)]]
    parameters: Annotated[Any, Field(description="Parameters, as the task type accepts them")]
    user_id: UserInBody


def _validate_or_refuse(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError as error:
        return invalid_fields_refusal(error, _fields_of(BODIES[SubmitTask]))


class SubmitTasks(Body):
    """Tasks to execute; each has its own outcome."""

    tasks: list[Annotated[SubmitTask, WrapValidator(_validate_or_refuse)]] = Field(
        min_length=1, max_length=MAX_BULK_ITEMS
    )

    @property
    def items(self) -> Sequence[SubmitTask | RequestRefusedError]:
        """The tasks; in place of each wrong task, the reason."""
        return self.tasks


@with_config(extra="forbid", hide_input_in_errors=True)
class UploadBatch(BatchOptions, total=False):
    """The task type and the options of an upload, whose items come line by line."""

    task_type: Required[Annotated[str, Field(description="A registered task type", max_length=MAX_NAME_LENGTH)]]
    user_id: UserInBody


@with_config(
    extra="forbid",
    hide_input_in_errors=True,
    json_schema_extra={"examples": [{"task_type": "count-words", "items": [{"text": "one"}, {"text": "one two"}]}]},
)
class SubmitBatch(UploadBatch, total=False):
    """Many items, each of them a task to execute. Options that are omitted or null are as for a single task."""

    items: Required[
        Annotated[
            list[Any],
            Field(
                description="Parameters of each task, as the task type accepts them",
                min_length=1,
                max_length=MAX_BULK_ITEMS,
            ),
        ]
    ]


class CancelTask(Body):
    """Why a task is cancelled."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "not needed any more"}]})

    reason: str | None = Field(default=None, max_length=MAX_REASON, description="Kept in the task's history")


class PauseQueue(Body):
    """Why a task type is paused. A missing body means an empty object."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "the provider is down"}]})

    reason: str | None = Field(default=None, max_length=MAX_REASON, description="Shown with the queue")


class RetryTask(Body):
    """How to queue a task again. A missing body means an empty object."""

    reopen: Reopen = False
    reason: str | None = Field(default=None, max_length=MAX_REASON, description="Kept in the task's history")


class SignalPayload(RootModel[Any]):
    """The payload of a signal: any JSON. A missing body means null."""

    root: Any = None


class CreateSchedule(ScheduleDefinition):
    """A schedule to create."""

    name: str = Field(
        max_length=100,
        strict=True,
        description="Characters a-z, 0-9, dot, dash and underscore",
        json_schema_extra={"pattern": SCHEDULE_NAME},
    )


class KeyLimit(Body):
    """How many requests may be made with an API key."""

    rate: float = Field(ge=0.001, le=1_000_000, description="Requests per second")
    burst: int = Field(default=1, ge=1, le=1_000_000, strict=True, description="Requests at once after a pause")


class CreateKey(Body):
    """An API key to create."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"principal": "billing", "roles": ["submitter"], "expires_after": "90d"}]}
    )

    principal: Name = Field(
        description="The user that owns the tasks submitted with it, and that appears in the history"
    )
    roles: list[Role] = Field(min_length=1, max_length=len(Role), description="Each role includes the ones before it")
    may_act_for_users: bool = Field(
        default=False, strict=True, description="Whether its role holds for the tasks of all users, to submit too"
    )
    expires_after: Annotated[Duration, Field(gt=timedelta(0))] | None = Field(
        default=None, description="How long it is valid, such as 90d; null: until it is revoked"
    )
    limit: KeyLimit | None = Field(default=None, description="Its request rate limit; null: the one in the settings")


BodyT = TypeVar("BodyT")


#: All bodies, each with its reader.
BODIES: dict[type, TypeAdapter[Any]] = {
    model: TypeAdapter(model)
    for model in (
        SubmitTask,
        SubmitTasks,
        SubmitBatch,
        UploadBatch,
        CancelTask,
        PauseQueue,
        RetryTask,
        SignalPayload,
        ScheduleDefinition,
        CreateSchedule,
        CreateKey,
        ReplayDeadLetters,
        DiscardDeadLetters,
        RepairMessage,
        RetryTasks,
        CancelTasks,
    )
}


@cache
def _fields_of(body: TypeAdapter[Any]) -> Sequence[str]:
    """The names of all fields of a body, at every level."""
    return sorted(set(_field_names(body.json_schema())))


def _field_names(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
        for part in schema.values():
            yield from _field_names(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _field_names(part)


async def read_body(request: Request, model: type[BodyT], *, is_optional: bool = False) -> BodyT:
    """Read and check the body, in one pass over the bytes.

    Args:
        request: the request.
        model: the model that the body must fit.
        is_optional: whether a missing body means the model's defaults.

    Raises:
        RequestRefusedError: if the body is too large, is not JSON, or does not fit the model; or if the key of the
            caller became invalid while the body came.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    content = await receive_body(request)
    # A body may take minutes; meanwhile the key may have been revoked.
    if loop.time() - began >= REMEMBERED_SECONDS:
        await require_valid_caller(request)
    if is_optional and not content:
        return model()
    _require_json(request)
    try:
        body: BodyT = BODIES[model].validate_json(content)
    except ValidationError as error:
        raise invalid_fields_refusal(error, _fields_of(BODIES[model])) from None
    return body


def _require_json(request: Request) -> None:
    if not has_type(request, JSON):
        given = request.headers.get("content-type", "")
        raise _unsupported(f"The content type is {given[:100]!r}." if given else "The content type is missing.")
    require_plain(request)


def has_type(request: Request, wanted: str) -> bool:
    """Return whether the request declares this media type for its body, in UTF-8."""
    media_type, _, options = request.headers.get("content-type", "").partition(";")
    charset = options.strip().lower().replace('"', "")
    return media_type.strip().lower() == wanted and charset in ("", "charset=utf-8")


def prefers(request: Request, wanted: str) -> bool:
    """Return whether the header `Accept` names this media type, and not with a lower weight than JSON."""
    weights: dict[str, float] = {}
    for entry in request.headers.get("accept", "").lower().split(","):
        media_type, *options = (part.strip() for part in entry.split(";"))
        given = [option.removeprefix("q=") for option in options if option.startswith("q=")]
        with suppress(ValueError):
            weights[media_type] = float(given[0]) if given else 1.0
    return weights.get(wanted, 0.0) > 0 and weights[wanted] >= weights.get(JSON, 0.0)


def require_plain(request: Request) -> None:
    """Refuse a compressed body, because its uncompressed size has no limit.

    Raises:
        RequestRefusedError: if the body is compressed.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise _unsupported(f"The content encoding is {encoding[:100]!r}.")


def _unsupported(message: str) -> RequestRefusedError:
    return RequestRefusedError(
        message,
        hint="Send JSON in UTF-8, not compressed, with the header Content-Type: application/json.",
        code="unsupported_media_type",
    )
