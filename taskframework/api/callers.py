"""The caller of a request, and the role that the request needs.

The role follows from its address, so that no new route can be forgotten: everything below the prefix needs a role,
changes need a higher role than reads, and routes below `/admin` need a still higher role.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Scope

from taskframework.api.refusals import RequestRefusedError
from taskframework.console.routes import PREFIX as CONSOLE
from taskframework.errors import StoreError
from taskframework.model.keys import Caller, Role, is_reserved
from taskframework.model.scope import Scope as Owners
from taskframework.operations.keys import ANYBODY, Callers

#: Addresses that need no key, like all files of the console: they show nothing about tasks.
OPEN_PATHS = frozenset({"/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics"})
_ADMIN = "/api/v1/admin/"
#: Addresses outside of `/admin` that need the role operator, too: actions on many tasks.
_OPERATOR_PATHS = frozenset({"/api/v1/tasks/retry", "/api/v1/tasks/cancel"})
#: The name of the entry for the caller in the ASGI scope of a request, once the caller is known.
CALLER = "taskframework.caller"
#: The entry in the ASGI scope that says that the embedding program, and not a key or token, identified the caller.
IS_IDENTIFIED_BY_PROGRAM = "taskframework.is_identified_by_program"
_READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

#: Tells who makes a request, for a program with sessions or tokens of its own. None means an unknown caller.
Identify = Callable[[Request], Awaitable[Caller | None] | Caller | None]


def caller_of(request: Request) -> Caller:
    """The caller of a request."""
    return cast(Caller, request.scope[CALLER])


def scope_of(request: Request, user_id: str | None = None) -> Owners:
    """The scope of the caller: whose tasks it may see and change. If a user is named, only the tasks of that user.

    Raises:
        RequestRefusedError: if another user is named, and the caller may not act for users.
    """
    return caller_of(request).scope if user_id is None else Owners.of(user_of(request, user_id))


def user_of(request: Request, user_id: str | None) -> str:
    """The owner of a task that the caller submits: the caller, or another user whom it names. Only operators, and
    callers that may act for users, may name one.

    Raises:
        RequestRefusedError: if another user is named, and the caller may not act for users.
    """
    caller = caller_of(request)
    if user_id is None or user_id == caller.principal:
        return caller.principal
    if caller.may_act_for_users or caller.may(Role.OPERATOR):
        return user_id
    raise RequestRefusedError(
        f"The caller is {caller.principal} and may not act for {user_id[:100]!r}.",
        hint="Leave user_id out, or use a key or log-in that may act for users (`keys create --act-for-users`).",
        code="forbidden",
        fields=[{"field": "user_id", "message": "is another user"}],
    )


def quota_name(caller: Caller) -> str | None:
    """The name under which the requests and streams of a caller are counted; None for an unidentified caller."""
    # Tokens are counted by their user: an issuer makes a new one every hour or so, and several for one user.
    return None if caller is ANYBODY else caller.prefix or f"user/{caller.principal}"


def _rights_of(caller: Caller) -> tuple[object, ...]:
    """Who the caller is and what it may do. The end of its session is left out, because the program may extend it."""
    return caller.principal, caller.roles, caller.may_act_for_users


async def is_caller_still_valid(request: Request) -> bool:
    """Return whether the key that began a long answer is still valid, or the embedding program still knows the caller.
    While the store is away, no key can be revoked.
    """
    caller = caller_of(request)
    if request.scope.get(IS_IDENTIFIED_BY_PROGRAM):
        with contextlib.suppress(RequestRefusedError):
            again = await call_identify(request.app.state.identify, request)
            return again is not None and _rights_of(again) == _rights_of(caller)
        return False
    callers: Callers = request.app.state.framework.services.callers
    with contextlib.suppress(StoreError):
        return await callers.is_still_valid(caller)
    return True


async def require_valid_caller(request: Request) -> None:
    """Refuse a request that lasts long once its caller is not valid any more.

    Raises:
        RequestRefusedError: if the key of the caller was revoked or has expired, or its log-in has ended.
    """
    if not await is_caller_still_valid(request):
        raise key_refusal()


def key_refusal(*, is_shown: bool = True) -> RequestRefusedError:
    """The refusal of a request without a key or token, or with one that is not valid or no longer valid."""
    if is_shown:
        message = "The API key or token of the request is not valid: it was revoked, has expired, or does not exist."
        hint = (
            "`taskframework keys list` shows which keys are valid; `taskframework keys create` creates one. The log of "
            "the API says why a token was refused."
        )
    else:
        message = "The request has no API key or token."
        hint = "Send the header `Authorization: Bearer <key>`; `taskframework keys create` creates a key."
    return RequestRefusedError(message, hint=hint, code="unauthorized")


def required_role(path: str, method: str) -> Role | None:
    """The role that a request needs; None if it needs no caller."""
    if path in OPEN_PATHS or path.startswith(CONSOLE):
        return None
    if path.startswith(_ADMIN):
        return Role.ADMIN if path.startswith(f"{_ADMIN}keys") else Role.OPERATOR
    if path in _OPERATOR_PATHS:
        return Role.OPERATOR
    return Role.READER if method in _READ_METHODS else Role.SUBMITTER


async def call_identify(identify: Identify, request: Request) -> Caller | None:
    """Ask the embedding program who makes a request.

    Raises:
        RequestRefusedError: if the program refuses it, or gives a name that is reserved for callers without a key.
        TypeError: if it returns anything else.
    """
    try:
        found = identify(request)
        caller = await found if inspect.isawaitable(found) else found
    except HTTPException as error:
        raise RequestRefusedError(
            str(error.detail)[:500],
            hint="Log in to the application that this is part of.",
            code="forbidden" if error.status_code == HTTPStatus.FORBIDDEN else "unauthorized",
            headers=dict(error.headers or {}),
        ) from error
    if not isinstance(caller, Caller | None):
        raise TypeError(f"caller= gave a {type(caller).__name__}; it has to give a taskframework.Caller or None.")
    if caller is not None and is_reserved(caller.principal):
        raise RequestRefusedError(
            f"The user name {caller.principal!r} is reserved for callers without a key.",
            hint="Let the log-in name each user by an id, such as user/17.",
            code="forbidden",
        )
    return caller


def path_of(scope: Scope) -> str:
    """The path below the root path of the application, as the routes see it."""
    path, root = cast(str, scope["path"]), cast(str, scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path
