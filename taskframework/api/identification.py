"""Identifies callers by the API key or token of a request, before any other code looks at the request."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from taskframework.api.allowances import Allowances
from taskframework.api.callers import (
    CALLER,
    IS_IDENTIFIED_BY_PROGRAM,
    Identify,
    call_identify,
    key_refusal,
    path_of,
    quota_name,
    required_role,
)
from taskframework.api.refusals import RequestRefusedError
from taskframework.model.keys import Caller
from taskframework.model.rate_limits import BucketLimit
from taskframework.model.wording import pluralize
from taskframework.operations.keys import ANYBODY, Callers
from taskframework.settings import BucketSettings, SecuritySettings


class IdentifyCallers:
    """Plain ASGI middleware: identifies the caller of each request, and refuses callers that may not make it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        callers: Callable[[], Callers],
        hosts: Collection[str] | None = None,
        security: SecuritySettings,
        identify: Identify | None = None,
        require_store: Callable[[], None] = lambda: None,
    ) -> None:
        """Wrap an application.

        Args:
            app: the application.
            callers: finds the caller of a key.
            hosts: the names, besides those of this machine, by which it may be reached while callers are not
                identified; None means any name.
            security: how many requests each caller may make.
            identify: is called first, before keys and tokens; with it, no unidentified caller is accepted.
            require_store: raises while the store is known not to answer, so that no request waits to learn that.
        """
        self._app = app
        self._require_store = require_store
        self._callers = callers
        self._hosts = hosts
        self._identify = identify
        self._key_limit = _limit_of(security.key_limit)
        self._failure_limit = _limit_of(security.failure_limit)
        self._request_allowances, self._failure_allowances = Allowances(), Allowances()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (required := required_role(path_of(scope), scope["method"])) is not None:
            self._require_store()
            scope[CALLER] = caller = await self._identify_caller(scope, receive)
            self._require_allowance(caller)
            if not caller.may(required):
                role = f"the role {', '.join(caller.roles)}" if caller.roles else "no role"
                raise RequestRefusedError(
                    f"The caller has {role}; the request needs {required}.",
                    hint="Use a key, a token or a log-in with that role.",
                    code="forbidden",
                )
        await self._app(scope, receive, send)

    async def _identify_caller(self, scope: Scope, receive: Receive) -> Caller:
        callers, headers = self._callers(), Headers(scope=scope)
        if self._identify is not None:
            if (known := await call_identify(self._identify, Request(scope, receive))) is not None:
                scope[IS_IDENTIFIED_BY_PROGRAM] = True
                return known
        elif not await callers.are_identified():
            if self._hosts is not None:
                _refuse_foreign_hosts(headers, self._hosts)
            # For a second after the first key was made, this process may not know that there is one. But a key that a
            # request sends is looked up.
            return (await callers.find(key) if (key := _key_of(headers)) else None) or ANYBODY
        address, limit = _address_of(scope), self._failure_limit
        # Once too many wrong keys came from an address, only keys that this process remembers are accepted from it.
        # Then guessing costs no read of the store, and a caller with a valid key at the same address can continue.
        asks = limit is None or not self._failure_allowances.wait(address, limit)
        caller = await callers.find(key, may_ask=asks) if (key := _key_of(headers)) else None
        if caller is not None:
            return caller
        # A request without a key is no guess, and is refused without a read of the store.
        if key and limit is not None and (wait := self._failure_allowances.take(address, limit)):
            raise _too_many("There were too many requests with invalid keys from this address.", wait)
        raise key_refusal(is_shown=bool(key))

    def _require_allowance(self, caller: Caller) -> None:
        limit, name = caller.limit or self._key_limit, quota_name(caller)
        if limit is not None and name is not None and (wait := self._request_allowances.take(name, limit)):
            rate = f"{pluralize(limit.rate, 'request')} per second"
            raise _too_many(f"This caller may make {rate}, {limit.burst} at once.", wait)


def _limit_of(bucket: BucketSettings | None) -> BucketLimit | None:
    return None if bucket is None else BucketLimit(bucket.rate, bucket.burst_capacity)


def _key_of(headers: Headers) -> str | None:
    """The key or token in a request.

    Raises:
        RequestRefusedError: if there are several, since a proxy may have checked another one than this process would.
    """
    given = headers.getlist("authorization")
    if len(given) > 1:
        raise RequestRefusedError(
            f"The request has the header Authorization {len(given)} times.",
            hint="Send it once, with one key or token.",
            code="bad_request",
        )
    scheme, _, key = "".join(given).partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def _address_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _too_many(message: str, wait: float) -> RequestRefusedError:
    return RequestRefusedError(
        message,
        hint="Repeat it after the number of seconds in the header Retry-After.",
        code="too_many_requests",
        headers={"Retry-After": str(math.ceil(wait))},
    )


def _refuse_foreign_hosts(headers: Headers, hosts: Collection[str]) -> None:
    """Refuse requests from web pages open in a browser on this machine, and host names that foreign DNS maps to it.

    Raises:
        RequestRefusedError: if the request was meant for, or comes from, another host.
    """
    for header in ("host", "origin"):
        given = headers.get(header)
        if given is not None and not _is_known_host(given if header == "origin" else f"//{given}", hosts):
            raise RequestRefusedError(
                f"The header {header.capitalize()} names another host, and callers are not identified.",
                hint="Use http://127.0.0.1, add the name of your proxy to api.hosts, or make keys: "
                "`taskframework keys create`.",
                code="forbidden",
            )


def _is_known_host(address: str, hosts: Collection[str]) -> bool:
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
