"""Who calls: told by the API key of a request before anything else looks at it.

What a caller needs follows from the address, so that a new route cannot be forgotten: everything below the prefix needs
a role, what changes something needs more than what looks, and what is below `/admin` more than the rest.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable, Collection
from typing import cast
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from taskframework.api.problems import RequestRefusedError
from taskframework.errors import StoreError
from taskframework.model.keys import Caller, Role
from taskframework.model.scope import Scope as Owners
from taskframework.operations.keys import ANYBODY, Callers

#: Without a key: they tell nothing of anybody's tasks.
OPEN_PATHS = frozenset({"/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics"})
_ADMIN = "/api/v1/admin/"
_CALLER = "taskframework.caller"
_LOOKING = frozenset({"GET", "HEAD", "OPTIONS"})


def caller_of(request: Request) -> Caller:
    """Who makes the request."""
    return cast(Caller, request.scope[_CALLER])


def scope_of(request: Request, user_id: str | None = None) -> Owners:
    """Whose tasks the caller may see and change; of those only one user's, if one is named.

    Raises:
        RequestRefusedError: if another user is named, and the caller may not act for users.
    """
    return caller_of(request).scope if user_id is None else Owners.of(user_of(request, user_id))


def user_of(request: Request, user_id: str | None) -> str:
    """Whose task a submission of the caller is: its own, unless it names a user and may do that.

    Raises:
        RequestRefusedError: if another user is named, and the caller may not act for users.
    """
    caller = caller_of(request)
    if user_id is None or user_id == caller.principal:
        return caller.principal
    if caller.may_act_for_users or caller.may(Role.OPERATOR):
        return user_id
    raise RequestRefusedError(
        f"This key is {caller.principal}'s and may not act for {user_id[:100]!r}.",
        hint="Leave user_id out, or use a key that was made with --act-for-users.",
        code="forbidden",
        fields=[{"field": "user_id", "message": "is another user"}],
    )


async def still_counts(request: Request) -> bool:
    """Whether the key that began a long answer still counts. While the store is away nobody can revoke one."""
    callers: Callers = request.app.state.framework.services.callers
    with contextlib.suppress(StoreError):
        return await callers.still_counts(caller_of(request))
    return True


def needed_for(path: str, method: str) -> Role | None:
    """The role that a request needs; None: nobody needs one."""
    if path in OPEN_PATHS:
        return None
    if _ADMIN in path:
        return Role.ADMIN if f"{_ADMIN}keys" in path else Role.OPERATOR
    return Role.READER if method in _LOOKING else Role.SUBMITTER


class IdentifyCallers:
    """Plain ASGI middleware: refuses who may not make a request, and notes who makes it."""

    def __init__(self, app: ASGIApp, *, callers: Callable[[], Callers], hosts: Collection[str] | None = None) -> None:
        """Stand before an application.

        Args:
            app: the application.
            callers: tells who shows a key.
            hosts: by which names besides those of this machine it is reached while callers are not identified; None:
                by any.
        """
        self._app = app
        self._callers = callers
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (needed := needed_for(_path_of(scope), scope["method"])) is not None:
            scope[_CALLER] = await self._identified(Headers(scope=scope), needed)
        await self._app(scope, receive, send)

    async def _identified(self, headers: Headers, needed: Role) -> Caller:
        callers = self._callers()
        if not await callers.are_identified():
            if self._hosts is not None:
                _refuse_foreign(headers, self._hosts)
            return ANYBODY
        scheme, _, key = headers.get("authorization", "").partition(" ")
        caller = await callers.find(key.strip()) if scheme.lower() == "bearer" else None
        if caller is None:
            raise RequestRefusedError(
                "The request has no API key that counts.",
                hint="Send the header `Authorization: Bearer <key>`; `taskframework keys create` makes one.",
                code="unauthorized",
            )
        if not caller.may(needed):
            raise RequestRefusedError(
                f"This key has the role {', '.join(caller.roles)}; the request needs {needed}.",
                hint="Use a key with that role.",
                code="forbidden",
            )
        return caller


def _path_of(scope: Scope) -> str:
    """The path below that of the application, as the routes see it."""
    path, root = cast(str, scope["path"]), cast(str, scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def _refuse_foreign(headers: Headers, hosts: Collection[str]) -> None:
    """Refuse a web page that a browser on this machine has open, and names that lead here by somebody else's DNS.

    Raises:
        RequestRefusedError: if the request was meant for, or comes from, another host.
    """
    for header in ("host", "origin"):
        given = headers.get(header)
        if given is not None and not _is_known(given if header == "origin" else f"//{given}", hosts):
            raise RequestRefusedError(
                f"The header {header.capitalize()} names another host, and callers are not identified.",
                hint="Use http://127.0.0.1, add the name of your proxy to api.hosts, or make keys: "
                "`taskframework keys create`.",
                code="forbidden",
            )


def _is_known(address: str, hosts: Collection[str]) -> bool:
    try:
        name = urlsplit(address).hostname or ""
    except ValueError:
        return False
    if name in hosts or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
