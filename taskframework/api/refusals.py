"""The refusal of a request: which field is wrong, and what it may be."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from pydantic import ValidationError

from taskframework.api.codes import CODES
from taskframework.errors import (
    WHOLE,
    IdempotencyConflictError,
    InvalidParametersError,
    InvalidRequestError,
    SubmissionError,
    TaskframeworkError,
    UnknownTaskTypeError,
    ValueNotStorableError,
)
from taskframework.model.query import CursorInvalidError
from taskframework.model.values import NO_FIELD, problems_of
from taskframework.operations.mending import AlreadyRepairedError
from taskframework.submission.acceptance import describe_option
from taskframework.submission.refusals import BatchConflictError, BatchItemError
from taskframework.tasks.names_elsewhere import names_meant

#: How many characters of a field name that a caller invented are sent back at most.
MAX_SHOWN_CHARACTERS = 100
#: Seconds after which a caller may repeat a request that could not be answered now.
RETRY_AFTER_SECONDS = 5
RETRY_LATER_HEADERS = {"Retry-After": str(RETRY_AFTER_SECONDS)}
#: Headers of every problem with a status. After 408 the connection is closed: the rest of the late request must not be
#: taken for the next one.
_STATUS_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 408: {"Connection": "close"}, 503: RETRY_LATER_HEADERS}


class RequestRefusedError(TaskframeworkError):
    """The request cannot be served as it is."""

    def __init__(
        self,
        message: str,
        *,
        hint: str,
        code: str = "invalid_request",
        fields: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Refuse a request.

        Args:
            message: the error in the request.
            hint: what the caller can do about it.
            code: one of `CODES`.
            fields: the wrong fields, each `{field, message}`.
            headers: headers of the answer, besides those of its status.
        """
        super().__init__(message, hint=hint)
        self.code = code
        self.fields = fields
        self.headers = {**_STATUS_HEADERS.get(CODES[code][0], {}), **headers}


def wrong_fields(error: SubmissionError, parameters: str = "parameters") -> Sequence[Mapping[str, str]]:
    match error:
        case InvalidParametersError():
            return [{**wrong, "field": _nested_field(parameters, wrong["field"])} for wrong in error.problems]
        case BatchItemError(cause=ValueNotStorableError() as cause):
            return [{"field": f"items.{error.index}", "message": cause.reason}]
        case BatchItemError():
            return wrong_fields(error.cause, f"items.{error.index}")
        case BatchConflictError():
            return [{"field": f"items.{error.index}", "message": error.message}]
        case InvalidRequestError():
            return [{"field": error.field, "message": error.reason}]
        case UnknownTaskTypeError():
            return [{"field": "task_type", "message": error.message}]
        case AlreadyRepairedError():  # the next case is for keys that a caller chose
            return ()
        case IdempotencyConflictError():
            return [{"field": "idempotency_key", "message": error.message}]
        case CursorInvalidError():
            return [{"field": "cursor", "message": error.message}]
        case ValueNotStorableError():
            return [{"field": error.what, "message": error.reason}]
    return ()


def _nested_field(parent: str, name: str) -> str:
    return parent if name == WHOLE else f"{parent}.{name}"


def invalid_fields_refusal(error: ValidationError, known: Collection[str] = ()) -> RequestRefusedError:
    """The refusal for a body that is not JSON or does not fit its model. It omits the input, which may be secret.

    Args:
        error: the error of the model.
        known: the known field names, to suggest the one that was meant.
    """
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    if problems[0]["type"] == "json_invalid":
        return RequestRefusedError(
            f"{problems[0]['msg']}.",
            hint="Send one JSON value in UTF-8, without a byte order mark and nested at most 200 levels deep.",
            code="invalid_json",
        )
    return field_refusal(problems_of(error), known)


def field_refusal(found: Sequence[Mapping[str, str]], known: Collection[str]) -> RequestRefusedError:
    # An unknown field has any name that the caller gave it.
    problems = [{"field": wrong["field"][:MAX_SHOWN_CHARACTERS], "message": wrong["message"]} for wrong in found]
    unknown = [wrong for wrong in problems if wrong["message"] == NO_FIELD]
    meant = {wrong["field"]: names_meant(wrong["field"].rpartition(".")[2], known) for wrong in unknown}
    suggestions = [name for names in meant.values() for name in names]
    # A misspelt field comes first: its author thinks that the missing field was given.
    first = next((wrong for wrong in unknown if meant[wrong["field"]]), problems[0])
    place = "The body" if first["field"] == WHOLE else first["field"]
    option = first["field"].partition(".")[0]
    if suggestions:
        hint = f"Did you mean {' and '.join(map(repr, dict.fromkeys(suggestions)))}? /docs describes the request."
    elif option in known and (described := describe_option(option)) is not None:
        hint = described
    else:
        hint = "Correct the fields named in errors; /docs describes the request."
    return RequestRefusedError(f"{place}: {first['message']}.", hint=hint, fields=problems)
