"""The common parts of routes that make a task: the idempotency key of the request, and the answer with the task."""

from __future__ import annotations

from typing import TypeVar, cast

from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.context import PREFIX, json_response
from taskframework.api.openapi import key_header
from taskframework.api.problems import root_of
from taskframework.api.refusals import RequestRefusedError
from taskframework.model.values import NAME_RULE, is_name
from taskframework.model.view import public_view
from taskframework.submission.options import SharedOptions
from taskframework.submission.service import Submission

SUBMISSION_CODES = ("invalid_task", "unknown_task_type", "invalid_parameters", "value_not_storable")
KEY_HEADER = key_header(
    "A second submission with the same key returns the first task; same as the field idempotency_key"
)

BodyT = TypeVar("BodyT", bound=SharedOptions)


def submission_response(request: Request, submission: Submission) -> Response:
    """Answer 202 with the task that a submission made, or 200 with the task of an earlier submission."""
    location = f"{root_of(request)}{PREFIX}/tasks/{submission.task.task_id}"
    return json_response(public_view(submission.task), 202 if submission.is_new else 200, {"Location": location})


def key_in_header(request: Request) -> str | None:
    """The idempotency key that the request has as a header.

    Raises:
        RequestRefusedError: if there are two, or it is no key.
    """
    keys = request.headers.getlist("idempotency-key")
    if len(keys) > 1:
        raise RequestRefusedError("The header Idempotency-Key was sent twice.", hint="Send it once.")
    if keys and not is_name(keys[0]):
        raise RequestRefusedError(
            f"The header Idempotency-Key {NAME_RULE}.",
            hint="Send another key, such as a UUID.",
            fields=[{"field": "idempotency_key", "message": NAME_RULE}],
        )
    return keys[0] if keys else None


def with_key_of_header(request: Request, body: BodyT) -> BodyT:
    """The body with the key of the header, if there is one.

    Raises:
        RequestRefusedError: if the body has a different key.
    """
    if (key := key_in_header(request)) is None:
        return body
    if body.get("idempotency_key") not in (None, key):
        raise RequestRefusedError(
            "The header Idempotency-Key and the field idempotency_key differ.",
            hint="Send only one of them, or the same value in both.",
            fields=[{"field": "idempotency_key", "message": "differs from the header Idempotency-Key"}],
        )
    return cast(BodyT, {**body, "idempotency_key": key})
