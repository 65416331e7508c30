"""The application: routes, middleware, problems and documents put together."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import partial

from fastapi import APIRouter

from taskframework.api import (
    audit,
    batch_event_streams,
    batches,
    dead_letters,
    docs,
    event_streams,
    explain,
    health,
    keys,
    limits,
    ordered_streams,
    overview,
    queues,
    replays,
    schedules,
    stream_list,
    subtasks,
    task_types,
    tasks,
    workers,
)
from taskframework.api.access_log import AccessLog
from taskframework.api.callers import Identify
from taskframework.api.context import Framework
from taskframework.api.feed import Feed, server_is_stopping
from taskframework.api.identification import IdentifyCallers
from taskframework.api.middleware import AnswerAlways
from taskframework.api.openapi import DocumentedApi
from taskframework.api.problems import handle_problems
from taskframework.api.refusals import RETRY_AFTER_SECONDS, RequestRefusedError
from taskframework.console import routes as console
from taskframework.errors import NotRunningError, StoreOnlyError, StoreUnavailableError
from taskframework.settings.release import RELEASE

_DESCRIPTION = (
    "Submit background tasks, follow them, and handle failed ones. Accepted means stored: a task that was answered "
    "with 202 is executed at least once. A caller sends an API key or a token, `Authorization: Bearer <key>`, and "
    "sees its own tasks; until the first key is created, all callers can see and change every task."
)


def create_app(
    framework: Framework, *, hosts: Collection[str] | None = None, caller: Identify | None = None
) -> DocumentedApi:
    """The whole HTTP interface of a framework; it answers while the framework is running.

    Another ASGI application may mount it, best by `mount`. Callers are identified by API keys as soon as a key exists;
    until then, the program that mounts it decides who may reach it.

    Args:
        framework: the framework that the interface serves.
        hosts: names, besides those of this machine, by which it may be reached while callers are not identified; None
            means any name.
        caller: identifies the caller of a request, in place of an API key; see `mount`.

    Returns:
        The application. Its event streams end when the framework stops, or when uvicorn is about to stop.
    """
    modules = (
        replays,  # before the tasks: otherwise `retry` and `cancel` would be taken for ids of tasks
        tasks,
        explain,
        subtasks,
        batches,
        batch_event_streams,
        task_types,
        event_streams,
        ordered_streams,
        stream_list,
        dead_letters,
        overview,
        queues,
        limits,
        workers,
        schedules,
        keys,
        audit,
        health,
        docs,
        console,
    )
    routers = (module.router for module in modules)
    app = _application(framework, *routers)
    app.state.identify = caller
    app.add_middleware(
        IdentifyCallers,
        callers=lambda: framework.services.callers,
        hosts=hosts,
        security=framework.settings.security,
        identify=caller,
        require_store=partial(_require_store, framework),
    )
    app.add_middleware(AnswerAlways, on_answer=partial(_count_answer, framework))
    if framework.settings.api.access_log:
        app.add_middleware(AccessLog)
    app.state.feed = Feed(lambda: framework.process.broker, lambda: not framework.is_running or server_is_stopping())
    return app


def create_health_app(framework: Framework) -> DocumentedApi:
    """Make an application with `/healthz`, `/readyz` and `/metrics` only, for a worker."""
    app = _application(framework, health.router)
    app.add_middleware(AnswerAlways)
    return app


def _count_answer(framework: Framework, path: str, status: int) -> None:
    # A process that is not ready answers 503 on purpose; monitoring must not count this as an error.
    if framework.is_running and not path.endswith("/readyz"):
        framework.process.metrics.responses.add(str(status))


def _require_store(framework: Framework) -> None:
    with suppress(StoreOnlyError):
        if framework.process.breaker.is_silent:
            raise RequestRefusedError(
                "The store is away, so the request was not tried.",
                hint=f"Repeat it in {RETRY_AFTER_SECONDS} seconds.",
                code="store_unavailable",
            )


def _check_store_soon(framework: Framework, error: StoreUnavailableError) -> None:
    """Find out early that the store is away: then further requests are answered at once."""
    with suppress(StoreOnlyError, NotRunningError):
        framework.process.breaker.check_soon(error)


def _application(framework: Framework, *routers: APIRouter) -> DocumentedApi:
    app = DocumentedApi(
        title="taskframework",
        version=RELEASE,
        description=_DESCRIPTION,
        # FastAPI's own page loads its scripts from the network, and it makes the document in the event loop.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # A redirect would silently lose the body of a careless client.
        redirect_slashes=False,
        # FastAPI would make three spans of each request, even of probes and scrapes, and with the contents of the
        # query. Releases of FastAPI that make no spans ignore this.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        # Add the routes directly. `include_router` makes each route again at the first request, which takes 0.1 s then.
        routes=[route for router in routers for route in router.routes],
    )
    app.state.framework = framework
    app.state.on_store_failure = partial(_check_store_soon, framework)
    handle_problems(app)
    return app
