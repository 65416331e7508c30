"""The HTTP interface as a part of a user's own web application."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskframework.api.app import create_app
from taskframework.api.callers import Identify
from taskframework.api.context import Framework
from taskframework.errors import BrokerError, ConfigurationError, StoreError

_PREFIX = re.compile(r"(/[\w.~-]+)+")
_SCHEMA = "#/components/schemas/"


class RunnableFramework(Framework, Protocol):
    """A `TaskFramework`, which this application starts and stops."""

    def running(self, *, worker: bool = True, api: bool = False) -> AbstractAsyncContextManager[object]: ...


def mount(
    app: Starlette,
    framework: RunnableFramework,
    prefix: str = "/background",
    *,
    caller: Identify | None = None,
    worker: bool = True,
    starts: bool = True,
    in_openapi: bool = True,
) -> None:
    """Make the whole HTTP interface, with its console, a part of a FastAPI or Starlette application.

    ::

        app = FastAPI(lifespan=lifespan)
        mount(app, framework, "/background", caller=who_asks)

    The framework runs inside the application's own lifespan: what that opens is there before, and closed after. Routes
    that the application has at or below the prefix have to be added before.

    Args:
        app: the application.
        framework: what is served.
        prefix: the path below which it is.
        caller: given a request, tells who makes it, as a `Caller`; an `HTTPException` of it refuses the request. For
            None an API key or a token may tell it. Without `caller` keys and tokens do alone, and as long as there are
            none everybody who reaches the application does everything.
        worker: whether this process executes tasks, too.
        starts: whether the application starts and stops the framework; else your lifespan does, by `framework.running`.
        in_openapi: whether the application's OpenAPI document describes the interface, too.

    Raises:
        ConfigurationError: if the prefix is none.
    """
    if not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(f"The prefix {prefix!r} is not a path.", hint='Write a path such as "/background".')
    api = create_app(framework, caller=caller)
    app.mount(prefix, api)
    if starts:
        app.router.lifespan_context = _running_inside(app.router.lifespan_context, framework, worker=worker)
    app.router.lifespan = _refusing_in_words(app.router.lifespan)  # type: ignore[method-assign, assignment]
    if in_openapi and isinstance(app, FastAPI):
        _describe(app, api, prefix, with_keys=caller is None)


Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def _running_inside(own: Lifespan, framework: RunnableFramework, *, worker: bool) -> Lifespan:
    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        async with own(app) as state, framework.running(worker=worker):
            yield state

    return lifespan


def _refusing_in_words(own: ASGIApp) -> ASGIApp:
    """Starlette's `lifespan`, which gives a server the whole traceback of what went wrong at the start, to be logged.

    Where settings or servers are to blame, the error says so by itself, with what to do.
    """

    async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        async def tell(message: Message) -> None:
            error = sys.exception()
            if isinstance(error, (ConfigurationError, StoreError, BrokerError)) and "message" in message:
                message["message"] = str(error)
            await send(message)

        await own(scope, receive, tell)

    return lifespan


def _describe(app: FastAPI, api: FastAPI, prefix: str, *, with_keys: bool) -> None:
    """Add the interface to the application's document, which is made when it is first asked for, and kept."""
    own = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _merged(own(), api.openapi(), prefix, with_keys=with_keys)
        return app.openapi_schema

    app.openapi_schema = None
    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it


def _merged(document: dict[str, Any], part: Mapping[str, Any], prefix: str, *, with_keys: bool) -> dict[str, Any]:
    """A document with the operations and models of another one: operations are named by the prefix, too, so that no two
    have one name, and models where the document has another one of that name.
    """
    mark = re.sub(r"\W+", "_", prefix.strip("/")) + "_"
    components = document.setdefault("components", {})
    schemas, found = components.setdefault("schemas", {}), part["components"]["schemas"]
    names = {name: mark + name if name in schemas else name for name in found}
    renamed = {_SCHEMA + name: _SCHEMA + new for name, new in names.items() if name != new}
    schemas.update({names[name]: _with(schema, renamed) for name, schema in found.items()})
    for path, operations in _with(part["paths"], renamed).items():
        for operation in operations.values():
            operation["operationId"] = mark + operation["operationId"]
            if operation.pop("security", None) is not None and with_keys:
                operation["security"] = [{mark + "key": []}, {}]
        document.setdefault("paths", {})[prefix + path] = operations
    if with_keys:
        components.setdefault("securitySchemes", {})[mark + "key"] = part["components"]["securitySchemes"]["key"]
    return document


def _with(part: Any, renamed: Mapping[str, str]) -> Any:
    """A copy in which references are the new ones."""
    if isinstance(part, dict):
        return {name: _with(value, renamed) for name, value in part.items()}
    if isinstance(part, list):
        return [_with(value, renamed) for value in part]
    return renamed.get(part, part) if isinstance(part, str) else part
