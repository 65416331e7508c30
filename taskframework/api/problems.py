"""Turns errors into problem documents (RFC 9457): one way from an exception to its code."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.addresses import is_documented, methods_at, query_names
from taskframework.api.codes import CODES
from taskframework.api.refusals import (
    MAX_SHOWN_CHARACTERS,
    RETRY_AFTER_SECONDS,
    RETRY_LATER_HEADERS,
    RequestRefusedError,
    field_refusal,
    wrong_fields,
)
from taskframework.errors import (
    IdempotencyConflictError,
    NewerVersionError,
    NotRunningError,
    ParentFinishedError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    SubmissionError,
    TaskframeworkError,
    TaskUnreadableError,
    TransitionRefusedError,
)
from taskframework.limits.buckets import LimiterUnavailableError
from taskframework.model.keys import with_prefixes_only
from taskframework.model.status import TaskStatus
from taskframework.model.values import MAX_PROBLEMS, problem
from taskframework.operations.keys import TokenKeysUnavailableError
from taskframework.operations.tasks import SignalConflictError
from taskframework.submission.refusals import BatchClosedError, BatchConflictError, VersionConflictError

logger = logging.getLogger(__name__)

PROBLEM_JSON = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Problem:
    """The description of an error for a caller."""

    code: str
    detail: str
    hint: str
    fields: Sequence[Mapping[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Further members of the document: the task that caused the refusal.
    task: Mapping[str, str] = field(default_factory=dict)

    @property
    def status(self) -> int:
        return CODES[self.code][0]

    def document(self, root: str, instance: str | None = None) -> dict[str, Any]:
        """The problem as JSON; `root` is where the application is mounted, `instance` the path of the request."""
        status, title, _ = CODES[self.code]
        document: dict[str, Any] = {
            "type": f"{root}/docs#{self.code}",
            "title": title,
            "status": status,
            "detail": self.detail,
            "code": self.code,
            "hint": with_root_path(root, self.hint),
            **self.task,
        }
        if instance is not None:
            document["instance"] = instance
        if self.fields:
            document["errors"] = list(self.fields)
        return document


def problem_of(error: Exception, scope: Mapping[str, Any] | None = None) -> Problem:
    """The problem for an exception. For a foreign exception it only says that an error happened.

    Args:
        error: the exception.
        scope: of the request, if it is known: one that only reads took no effect.
    """
    if isinstance(error, RequestRefusedError):
        return Problem(error.code, error.message, error.hint, error.fields, error.headers)
    if isinstance(error, SubmissionError):
        code = error.code if error.code in CODES else "invalid_task"
        return Problem(code, error.message, error.hint, wrong_fields(error), task=_conflicting_task(error))
    if isinstance(error, StoreUnavailableError):
        logger.info("the store did not answer a request: %s", error.message)  # the outage is logged elsewhere, once
        return _READ_FAILED if scope is not None and scope["method"] in _READING_METHODS else _STORE_UNAVAILABLE
    if isinstance(error, StoreMisconfiguredError):
        logger.error("the store refused a request: %s", error)
        return _STORE_REFUSES
    if isinstance(error, StoreError) and getattr(error, "code", "") == "store_unavailable":  # not all of it is ready
        logger.warning("a request was refused: %s", error.message)
        return Problem("store_unavailable", error.message, error.hint, headers=RETRY_LATER_HEADERS)
    if isinstance(error, TaskUnreadableError):
        logger.warning("a request was refused: %s %s", error.message, error.reason)
    if isinstance(error, TaskframeworkError) and (code := getattr(error, "code", "")) in CODES:
        return Problem(code, error.message, error.hint, task=_conflicting_task(error))
    if isinstance(error, NotRunningError):
        return Problem(
            "not_running",
            error.message,
            "Repeat it in a moment; the process is starting or stopping.",
            (),
            RETRY_LATER_HEADERS,
        )
    if isinstance(error, TokenKeysUnavailableError):
        return Problem(
            "token_keys_unavailable", "Tokens cannot be checked now.", error.hint, headers=RETRY_LATER_HEADERS
        )
    if isinstance(error, LimiterUnavailableError):
        logger.info("the rate limits could not be read: %s", error.message)
        return _LIMITER_UNAVAILABLE
    request = "" if scope is None else f": {scope['method']} {scope['path']!r}"  # the query may have secrets
    logger.error("a request failed%s", request, exc_info=error)
    return _INTERNAL_ERROR


_STATUSES = frozenset(TaskStatus)
#: The slash before addresses in hints, unless it continues another path.
_OWN_ADDRESS = re.compile(r"(?<![\w/~.-])/(?=(?:docs|api/v1)\b)")


def _conflicting_task(error: TaskframeworkError) -> Mapping[str, str]:
    """The task that caused the refusal of a request."""
    match error:
        case ParentFinishedError():
            return {"task_id": error.parent_id, "task_status": error.status}
        case TransitionRefusedError() if error.status in _STATUSES:  # a stream is refused by this error, too
            return {"task_id": error.task_id, "task_status": error.status}
        case IdempotencyConflictError() | SignalConflictError() | NewerVersionError() | VersionConflictError():
            return {"task_id": error.task_id}
        case BatchConflictError() | BatchClosedError():
            return {"task_id": error.batch_id}
    return {}


#: The store's own messages name hosts and files; they are only for the log.
_STORE_UNAVAILABLE = Problem(
    "store_unavailable",
    "The store is away, full or too slow, so it is not known whether the request took effect.",
    f"Repeat it in {RETRY_AFTER_SECONDS} seconds; give a submission an idempotency key, then it happens once.",
    headers=RETRY_LATER_HEADERS,
)
_READ_FAILED = replace(
    _STORE_UNAVAILABLE,
    detail="The store is away, full or too slow, so the request cannot be answered now.",
    hint=f"Repeat it in {RETRY_AFTER_SECONDS} seconds.",
)
_STORE_REFUSES = replace(
    _STORE_UNAVAILABLE,
    detail="The store refuses this process, so the request cannot be carried out.",
    hint="Give the user of store.url the role readWrite on its database; the log of the API process has the reason.",
)
_READING_METHODS = frozenset({"GET", "HEAD"})
_LIMITER_UNAVAILABLE = Problem(
    "limiter_unavailable",
    "The server of the rate limits did not answer.",
    f"Repeat it in {RETRY_AFTER_SECONDS} seconds.",
    headers=RETRY_LATER_HEADERS,
)
_INTERNAL_ERROR = Problem(
    "internal_error",
    "The request failed because of an error in this program.",
    "See the log of the API process; repeating the request is safe with an idempotency key.",
)


def with_root_path(root: str, text: str) -> str:
    """Adapt the addresses in a text for people, if the application is mounted at `root`."""
    return _OWN_ADDRESS.sub(lambda _: f"{root}/", text)


def root_of(request: Request) -> str:
    """The path at which the application is mounted by another application, or the path that a proxy cut off."""
    root: str = request.scope.get("root_path", "")
    return root.rstrip("/")


def problem_response(problem: Problem, request: Request) -> Response:
    """The answer that carries a problem."""
    # The path as it was sent, percent-encoded: the decoded path may contain anything. It may also contain an API key.
    raw: bytes = request.scope.get("raw_path") or b""
    instance = with_prefixes_only(raw.partition(b"?")[0].decode("ascii", "replace"))[:200]
    content = orjson.dumps(problem.document(root_of(request), instance))
    return Response(content, problem.status, dict(problem.headers), media_type=PROBLEM_JSON)


def handle_problems(app: FastAPI) -> None:
    """Answer every error of the routes with a problem document. The middleware answers all other errors."""
    app.add_exception_handler(TaskframeworkError, _answer)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, StoreUnavailableError):
        request.app.state.on_store_failure(error)
    return problem_response(problem_of(error, request.scope), request)


async def _answer_invalid(request: Request, error: Exception) -> Response:
    """Answer errors of FastAPI's own validation: query parameters, each with its location as the first part."""
    found = error.errors() if isinstance(error, RequestValidationError) else ()
    problems = [problem(wrong["loc"][1:], wrong["msg"]) for wrong in found[:MAX_PROBLEMS]]
    known = query_names(request.scope.get("route"))
    return problem_response(problem_of(field_refusal(problems, known)), request)


def _path_of(request: Request) -> str:
    path: str = request.scope["path"]
    return path.removeprefix(root_of(request))


def _suggested_address(request: Request) -> str | None:
    """The address that the client probably meant: without a slash at its end, or with the prefix."""
    short = _path_of(request).rstrip("/")[:MAX_SHOWN_CHARACTERS]
    return next((path for path in (short, f"/api/v1{short}") if is_documented(request.app, path)), None)


async def _answer_http(request: Request, error: Exception) -> Response:
    """Answer errors of the router: an unknown path, or a method that is not allowed."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    match status:
        case 404:
            suggestion = _suggested_address(request)
            hint = f"Did you mean {root_of(request)}{suggestion}?" if suggestion else "/docs lists all addresses."
            problem = Problem("not_found", "There is nothing at this address.", hint)
        case 405:
            headers["Allow"] = allowed = ", ".join(methods_at(request.app, _path_of(request)))
            problem = Problem(
                "method_not_allowed",
                f"The method {request.method[:20]} is not allowed at this address.",
                f"Use {allowed}.",
            )
        case _ if 400 <= status < 500:
            problem = Problem("bad_request", "The request cannot be read.", "See /docs for what is accepted.")
        case _:
            problem = problem_of(error, request.scope)
    return problem_response(
        Problem(problem.code, problem.detail, problem.hint, headers={**problem.headers, **headers}), request
    )
