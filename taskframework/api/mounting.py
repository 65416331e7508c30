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
from taskframework.settings import Settings
from taskframework.tasks.extensions import accepts_arguments

_PREFIX = re.compile(r"(/[\w.~-]+)+")
_SCHEMA = "#/components/schemas/"


class RunnableFramework(Framework, Protocol):
    """A `TaskFramework` that this application starts and stops."""

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

    The framework runs inside the application's own lifespan: everything that the lifespan opens is open earlier, and is
    closed later. Add routes at or below the prefix before this call.

    Args:
        app: the application.
        framework: the framework that is served.
        prefix: the path at which it is mounted.
        caller: gets a request and returns the `Caller` that makes it; if it raises an `HTTPException`, the request is
            refused. If it returns None, an API key or a token may identify the caller. Without `caller` only keys and
            tokens identify callers, and while no key exists everybody who reaches the application may do everything.
        worker: whether this process executes tasks, too.
        starts: whether the application starts and stops the framework; if not, your lifespan does it with
            `framework.running`.
        in_openapi: whether the application's OpenAPI document describes the interface, too.

    Raises:
        ConfigurationError: if the prefix is not a path, or ends with a slash; or if an argument is something else.
    """
    _require_usable(app, framework, prefix, caller)
    if not _PREFIX.fullmatch(prefix):
        if _PREFIX.fullmatch(path := prefix.rstrip("/")):
            raise ConfigurationError(f"The prefix {prefix!r} must not end with a slash.", hint=f'Write "{path}".')
        raise ConfigurationError(f"The prefix {prefix!r} is not a path.", hint='Write a path such as "/background".')
    api = create_app(framework, caller=caller)
    app.mount(prefix, api)
    if starts:
        app.router.lifespan_context = _lifespan_with_framework(app.router.lifespan_context, framework, worker=worker)
    app.router.lifespan = _lifespan_with_clear_errors(app.router.lifespan)  # type: ignore[method-assign, assignment]
    if in_openapi and isinstance(app, FastAPI):
        _extend_openapi(app, api, prefix, with_keys=caller is None)


def _require_usable(app: object, framework: object, prefix: object, caller: object) -> None:
    if not isinstance(app, Starlette) or not isinstance(getattr(framework, "settings", None), Settings):
        raise ConfigurationError(
            f"An interface cannot be mounted with {_name_of(app)} and {_name_of(framework)}.",
            hint="Write mount(app, framework), with a FastAPI or Starlette application and a TaskFramework.",
        )
    if caller is not None and not (callable(caller) and accepts_arguments(caller, 1)):
        raise ConfigurationError(
            f"{_name_of(caller)} does not say who makes a request.",
            hint="Give as `caller` a function that gets the request, and returns a Caller or None.",
        )
    if not isinstance(prefix, str):
        raise ConfigurationError(f"The prefix is {_name_of(prefix)}.", hint='Write a path such as "/background".')


def _name_of(given: object) -> str:
    """Name something by itself if it is a class or a function, otherwise by its class."""
    return str(getattr(given, "__qualname__", None) or f"a {type(given).__name__}")


Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def _lifespan_with_framework(own: Lifespan, framework: RunnableFramework, *, worker: bool) -> Lifespan:
    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        async with own(app) as state, framework.running(worker=worker):
            yield state

    return lifespan


def _lifespan_with_clear_errors(own: ASGIApp) -> ASGIApp:
    """Replace Starlette's `lifespan`, which gives a server the whole traceback of an error at the start, for the log.

    If the settings or the servers are the cause, the error's own message says so, and what to do.
    """

    async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_clear_error(message: Message) -> None:
            error = sys.exception()
            if isinstance(error, (ConfigurationError, StoreError, BrokerError)) and "message" in message:
                message["message"] = str(error)
            await send(message)

        await own(scope, receive, send_clear_error)

    return lifespan


def _extend_openapi(app: FastAPI, api: FastAPI, prefix: str, *, with_keys: bool) -> None:
    """Add the interface to the application's document, which is made when it is first asked for, and then kept."""
    own = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _merge_documents(own(), api.openapi(), prefix, with_keys=with_keys)
        return app.openapi_schema

    app.openapi_schema = None
    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it


def _merge_documents(
    document: dict[str, Any], part: Mapping[str, Any], prefix: str, *, with_keys: bool
) -> dict[str, Any]:
    """Add the operations and models of another document. Operation ids get the prefix, so that no two are equal; models
    get it only if the document has another model of the same name.
    """
    id_prefix = re.sub(r"\W+", "_", prefix.strip("/")) + "_"
    components = document.setdefault("components", {})
    schemas, found = components.setdefault("schemas", {}), part["components"]["schemas"]
    names = {name: id_prefix + name if name in schemas else name for name in found}
    renamed = {_SCHEMA + name: _SCHEMA + new for name, new in names.items() if name != new}
    schemas.update({names[name]: _with_new_references(schema, renamed) for name, schema in found.items()})
    for path, operations in _with_new_references(part["paths"], renamed).items():
        for operation in operations.values():
            operation["operationId"] = id_prefix + operation["operationId"]
            if operation.pop("security", None) is not None and with_keys:
                operation["security"] = [{id_prefix + "key": []}, {}]
        document.setdefault("paths", {})[prefix + path] = operations
    if with_keys:
        components.setdefault("securitySchemes", {})[id_prefix + "key"] = part["components"]["securitySchemes"]["key"]
    return document


def _with_new_references(part: Any, renamed: Mapping[str, str]) -> Any:
    """A copy of a document part, with the new references."""
    if isinstance(part, dict):
        return {name: _with_new_references(value, renamed) for name, value in part.items()}
    if isinstance(part, list):
        return [_with_new_references(value, renamed) for value in part]
    return renamed.get(part, part) if isinstance(part, str) else part
