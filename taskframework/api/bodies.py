"""What callers send: the models of the request bodies, and reading a body into one of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from starlette.requests import ClientDisconnect, Request

from taskframework.api.problems import RequestRefusedError, invalid_fields
from taskframework.submission.service import MAX_NAME, SubmitRequest
from taskframework.tasks.options import MAX_ATTEMPTS

#: Problems of every route that reads a body.
BODY_CODES = (
    "bad_request",
    "invalid_json",
    "request_timeout",
    "body_too_large",
    "unsupported_media_type",
    "invalid_request",
)
MAX_BULK = 1000
MAX_REPLAY = 500
_MAX_REASON = 1000
#: Seconds that each piece of a body may take.
_PIECE_SECONDS = 10.0
#: Bytes a second that a body needs on average, so that pieces of one byte do not keep a connection for ever.
_SLOWEST = 1024

_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")


def _only_timestamps(value: object) -> object:
    """pydantic would also take seconds since 1970, and a bare date as midnight."""
    if isinstance(value, str) and _TIMESTAMP.match(value) is None:
        raise ValueError("must be an RFC 3339 time such as 2027-01-31T12:00:00Z")
    if value is not None and not isinstance(value, str | datetime):
        raise ValueError("must be an RFC 3339 time in a text, such as 2027-01-31T12:00:00Z")
    return value


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("is too far away") from None


Moment = Annotated[AwareDatetime, BeforeValidator(_only_timestamps), AfterValidator(_in_utc)]
#: A name as the submission accepts it: printable ASCII. Documented here, refused there with better words.
NAME_PATTERN = "^[ -~]*$"
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME, json_schema_extra={"pattern": NAME_PATTERN})]


class Body(BaseModel):
    """Of a repeated key in an object the last one counts."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class SubmitTask(Body):
    """A task to be done. What is left out or null comes from the task type's options, then from the settings."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"task_type": "count-words", "parameters": {"text": "one two"}}]}
    )

    task_type: str = Field(description="A registered task type", max_length=MAX_NAME)
    parameters: Any = Field(default=None, repr=False, description="What the task type's parameter model accepts")
    priority: Literal["high", "normal", "low"] | None = Field(default=None, description="The lane it travels in")
    not_before: Moment | None = Field(default=None, description="Earliest time of the first attempt")
    deadline: Moment | None = Field(default=None, description="It ends FAILED if it is not done by then")
    max_attempts: int | None = Field(default=None, ge=1, le=MAX_ATTEMPTS, strict=True, description="Attempts in all")
    idempotency_key: Name | None = Field(
        default=None, description="A second submission with it returns the first task; also as header Idempotency-Key"
    )
    correlation_id: Name | None = Field(default=None, description="Carried through messages, logs and events")

    def to_request(self, user_id: str) -> SubmitRequest:
        return SubmitRequest(
            task_type=self.task_type,
            parameters=self.parameters,
            user_id=user_id,
            priority=self.priority,
            not_before=self.not_before,
            deadline=self.deadline,
            max_attempts=self.max_attempts,
            idempotency_key=self.idempotency_key,
            correlation_id=self.correlation_id,
        )


def _or_refusal(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError as error:
        return invalid_fields(error)


class SubmitTasks(Body):
    """Tasks to be done; each has its own outcome."""

    tasks: list[Annotated[SubmitTask, WrapValidator(_or_refusal)]] = Field(min_length=1, max_length=MAX_BULK)

    @property
    def items(self) -> Sequence[SubmitTask | RequestRefusedError]:
        """The tasks, and in place of each that is wrong, why."""
        return self.tasks


class CancelTask(Body):
    """Why a task is cancelled."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "not needed any more"}]})

    reason: str | None = Field(default=None, max_length=_MAX_REASON, description="Kept in the task's history")


class RetryTask(Body):
    """An empty object, or no body at all: a retry has no options."""


class ReplayDeadLetters(Body):
    """Dead letters to queue anew."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"ids": ["0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11"], "dry_run": True}]}
    )

    ids: list[str] = Field(min_length=1, max_length=MAX_REPLAY, description="Ids of the dead-letter list")
    dry_run: bool = Field(default=False, strict=True, description="Only tell what would happen")


ModelT = TypeVar("ModelT", bound=Body)


async def read(request: Request, model: type[ModelT], *, is_optional: bool = False) -> ModelT:
    """Read and check the body, in one pass over the bytes.

    Args:
        request: the request.
        model: what the body must be.
        is_optional: whether no body at all means the model's defaults.

    Raises:
        RequestRefusedError: too large, not JSON, or not what the model accepts.
    """
    content = await _receive(request, request.app.state.framework.settings.api.max_body)
    if is_optional and not content:
        return model()
    _require_json(request)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise invalid_fields(error) from None


async def _receive(request: Request, limit: int) -> bytearray:
    """The bytes that really come; Content-Length may be missing, and it may lie."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > limit):
        raise _too_large(limit)
    content = bytearray()
    loop = asyncio.get_running_loop()
    started = loop.time()
    more = True
    try:
        async with asyncio.timeout(_PIECE_SECONDS) as patience:
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                content += message.get("body", b"")
                more = message.get("more_body", False)
                if len(content) > limit:
                    raise _too_large(limit)
                patience.reschedule(_PIECE_SECONDS + min(loop.time(), started + len(content) / _SLOWEST))
    except TimeoutError:
        raise RequestRefusedError(
            f"The body did not come in time: {len(content):,} bytes so far.",
            hint=f"Send it in one go; a pause may last {_PIECE_SECONDS:g} seconds.",
            code="request_timeout",
        ) from None
    return content


def _too_large(limit: int) -> RequestRefusedError:
    return RequestRefusedError(
        f"The body has more than {limit:,} bytes.",
        hint="Send less: keep large data elsewhere and pass a reference, or send several requests.",
        code="body_too_large",
    )


def _require_json(request: Request) -> None:
    given = request.headers.get("content-type", "")
    media_type, _, options = given.partition(";")
    charset = options.strip().lower().replace('"', "")
    if media_type.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise _unsupported(f"The content type is {given[:100]!r}." if given else "There is no content type.")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise _unsupported(f"The content encoding is {encoding[:100]!r}.")


def _unsupported(message: str) -> RequestRefusedError:
    return RequestRefusedError(
        message,
        hint="Send JSON in UTF-8, not compressed, with the header Content-Type: application/json.",
        code="unsupported_media_type",
    )
