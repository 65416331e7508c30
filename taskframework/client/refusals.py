"""Makes an exception from a problem document: the same class that `TaskFramework` raises, if it means the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx

from taskframework.errors import (
    WHOLE,
    ApiError,
    ApiUnavailableError,
    IdempotencyConflictError,
    InvalidParametersError,
    InvalidRequestError,
    NewerVersionError,
    ParentFinishedError,
    SignalsFullError,
    StoreUnavailableError,
    SubmissionError,
    TaskframeworkError,
    TaskNotFoundError,
    TaskUnreadableError,
    TransitionRefusedError,
    UnknownTaskTypeError,
    ValueNotStorableError,
)
from taskframework.model.query import CursorInvalidError
from taskframework.model.status import TaskStatus
from taskframework.submission.refusals import (
    BatchClosedError,
    BatchConflictError,
    BatchItemError,
    BatchTooLargeError,
    StreamModeError,
    VersionConflictError,
)
from taskframework.urls import redacted

#: Exceptions that `TaskFramework` raises as well, with the attributes that they have there.
_ERROR_ATTRIBUTES: Mapping[type[Any], tuple[str, ...]] = {
    TaskNotFoundError: ("task_id",),
    TaskUnreadableError: ("task_id",),
    TransitionRefusedError: ("task_id", "action", "status"),
    ParentFinishedError: ("task_id", "action", "status", "parent_id"),
    SignalsFullError: ("task_id",),
    BatchConflictError: ("batch_id", "index"),
    BatchClosedError: ("batch_id",),
    BatchTooLargeError: (),
    SubmissionError: (),
    InvalidRequestError: ("field", "reason"),
    CursorInvalidError: (),
    UnknownTaskTypeError: ("task_type", "known"),
    InvalidParametersError: ("task_type", "problems"),
    ValueNotStorableError: ("what", "reason"),
    IdempotencyConflictError: ("key", "task_id"),
    NewerVersionError: ("key", "version", "task_id"),
    StreamModeError: (),
    VersionConflictError: ("key", "version", "task_id"),
    StoreUnavailableError: (),
}
#: The same exceptions by their codes.
ERRORS_BY_CODE: Mapping[str, tuple[type[TaskframeworkError], tuple[str, ...]]] = {
    kind.code: (kind, names) for kind, names in _ERROR_ATTRIBUTES.items()
}
#: The beginning of the name of a wrong field in an item of a batch.
_ITEM = re.compile(r"items\.(?P<index>\d+)(?:\.|$)")
#: Statuses by which the interface, or a proxy before it, says that it cannot serve now.
UNAVAILABLE_STATUSES = frozenset({429, 502, 503, 504})


def error_of_response(response: httpx.Response, error_context: Mapping[str, Any]) -> TaskframeworkError:
    """The exception for an answer that is not a success.

    Args:
        response: the answer, already read.
        error_context: facts about the request that a problem document does not repeat, such as the task's id.
    """
    try:
        document = response.json()
    except ValueError:
        document = None
    if isinstance(document, dict) and isinstance(document.get("code"), str):
        if document["code"] == "not_found":  # the client asks only for paths that exist, so the address is wrong
            document["detail"] = f"There is nothing at {redacted(str(response.request.url))}."
            document["hint"] = "Give the client the address of an `api` or `dev`, without /api/v1."
        return error_of(document, error_context)
    kind = ApiUnavailableError if response.status_code in UNAVAILABLE_STATUSES else ApiError
    return kind(
        f"{redacted(str(response.request.url))} answered {response.status_code} {response.reason_phrase}, "
        "without a reason.",
        hint="There may be a proxy in between, or another program at this address.",
        status=response.status_code,
    )


def error_of(document: Mapping[str, Any], error_context: Mapping[str, Any]) -> TaskframeworkError:
    """The exception that a problem document describes."""
    code, status = str(document["code"]), document.get("status")
    detail, hint = str(document.get("detail", "")), str(document.get("hint", ""))
    if code not in ERRORS_BY_CODE:
        kind = ApiUnavailableError if status in UNAVAILABLE_STATUSES else ApiError
        return kind(detail, hint=hint, status=status, code=code, fields=document.get("errors") or ())
    known, names = ERRORS_BY_CODE[code]
    error = known.__new__(known)
    # The message is that of the interface: the class itself could build it only from facts that are known there.
    TaskframeworkError.__init__(error, detail, hint=hint)
    values = {**_attributes_in(document), **error_context}
    vars(error).update({name: values.get(name) for name in names})
    return error


def with_item(error: SubmissionError) -> SubmissionError:
    """The refusal of a batch as a `BatchItemError` if an item is the cause, as `TaskFramework` raises it."""
    match error:
        case InvalidParametersError():
            field = error.problems[0]["field"]
        case InvalidRequestError():
            field = error.field
        case ValueNotStorableError():
            field = error.what
        case _:
            return error
    if (index := _item_index(field)) is None:
        return error
    error.message = error.message.removeprefix(f"Item {index}: ")
    return BatchItemError(index, error)


def says_cancelled(error: TaskframeworkError) -> bool:
    """Return whether a call was refused because its task or batch is CANCELLED."""
    return isinstance(error, TransitionRefusedError) and error.status == TaskStatus.CANCELLED


def says_gone(error: TaskframeworkError) -> bool:
    """Return whether a call was refused because what it names does not exist, although its address is right."""
    return isinstance(error, ApiError) and (error.code or "").endswith("_not_found")


def says_too_large(error: TaskframeworkError) -> bool:
    """Return whether a call was refused because of the size of its body, by the interface or a proxy."""
    return isinstance(error, ApiError) and error.status == httpx.codes.REQUEST_ENTITY_TOO_LARGE


def _attributes_in(document: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of our exceptions, as far as a problem document gives them."""
    fields = document.get("errors") or [{"field": "", "message": ""}]
    first = fields[0]
    return {
        "task_id": document.get("task_id"),
        "status": document.get("task_status"),
        "parent_id": document.get("task_id"),
        "batch_id": document.get("task_id"),
        "index": _item_index(first["field"]),
        "known": (),
        "field": first["field"],
        "what": first["field"],
        "reason": first["message"],
        "problems": [{**wrong, "field": _parameter_name(wrong["field"])} for wrong in fields],
    }


def _parameter_name(field: str) -> str:
    """The name of a field in the parameters, as `InvalidParametersError` has it."""
    return WHOLE if field == "parameters" else field.removeprefix("parameters.")


def _item_index(field: str) -> int | None:
    """The index of an item of a batch, if the field is an item or a part of one."""
    found = _ITEM.match(field)
    return None if found is None else int(found["index"])
