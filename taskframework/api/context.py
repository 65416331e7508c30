"""The context that every route needs: the framework of its request, the caller, and the trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Annotated, Any, Protocol, TypeVar, cast
from urllib.parse import unquote

import orjson
from fastapi import APIRouter, Path
from fastapi.routing import APIRoute
from opentelemetry import context
from opentelemetry.trace import SpanKind
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from taskframework.api.addresses import query_names
from taskframework.api.receiving import receive_body
from taskframework.api.refusals import RequestRefusedError
from taskframework.brokers.base import Broker
from taskframework.errors import StoreOnlyError, TaskNotFoundError
from taskframework.model.query import Page
from taskframework.model.values import MAX_PROBLEMS, NO_FIELD
from taskframework.settings import Settings
from taskframework.telemetry import current_trace_id, is_tracing, span, trace_named
from taskframework.wiring.process_services import ProcessServices
from taskframework.wiring.store_services import StoreServices

Entry = TypeVar("Entry")

#: The beginning of all paths of the interface.
PREFIX = "/api/v1"
_ID = r"[0-9A-Za-z][0-9A-Za-z_.:-]{0,99}"
#: An id in the path. Its form is only documented, not checked there: a text that cannot be an id is not found.
IdInPath = Annotated[str, Path(description="An id from an earlier answer", json_schema_extra={"pattern": f"^{_ID}$"})]


class _KeyConvertor(PathConvertor):
    """The whole rest of a path. The `path` of starlette ends at a line break."""

    regex = r"[\s\S]*"


register_url_convertor("key", _KeyConvertor())


class StrictRoute(APIRoute):
    """A route that refuses every part of a query that would have no effect: `?dry_run=true` in place of the field in
    the body would otherwise do what its author only wanted to see. A body without effect is refused, too.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        # Routes that are not documented refuse everything, with an answer of their own.
        is_without_query = self.include_in_schema and not query_names(self)
        changes = "GET" not in (self.methods or ())
        is_without_body = self.include_in_schema and changes and not self._has_documented_body

        async def check_and_handle(request: Request) -> Response:
            if request.query_params:
                self._refuse_repeated(request)
                if is_without_query:
                    self._refuse_all(request)
            if is_without_body and await _sends_values(request):
                hint = f"Leave it out{'' if is_without_query else ', or use the query'}; /docs describes the request."
                raise RequestRefusedError("This call has no body.", hint=hint)
            return await handle(request)

        return check_and_handle

    @property
    def _has_documented_body(self) -> bool:
        return "requestBody" in (self.openapi_extra or {})

    def _refuse_repeated(self, request: Request) -> None:
        """Refuse `?limit=1&limit=2`, of which one value would silently be ignored."""
        counts = Counter(name for name, _ in request.query_params.multi_items())
        if repeated := sorted(name[:100] for name, count in counts.items() if count > 1)[:MAX_PROBLEMS]:
            raise RequestRefusedError(
                f"Given more than once: {', '.join(repeated)}.",
                hint="Give each parameter once.",
                fields=[{"field": name, "message": "given more than once"} for name in repeated],
            )

    def _refuse_all(self, request: Request) -> None:
        """Refuse the parameters of a request that takes none. Models of queries refuse what they do not have."""
        names = [name[:100] for name in request.query_params][:MAX_PROBLEMS]
        elsewhere = ", or send it in the body" if self._has_documented_body else ""
        raise RequestRefusedError(
            f"{names[0]}: there is no such parameter in the query.",
            hint=f"Leave it out{elsewhere}; /docs describes the request.",
            fields=[{"field": name, "message": NO_FIELD} for name in names],
        )


async def _sends_values(request: Request) -> bool:
    """Whether the body of a request is anything but an empty object, which many clients send in place of no body."""
    content = await receive_body(request)
    return bool(content) and b"".join(content.split()) != b"{}"


def new_router(path: str, tag: str) -> APIRouter:
    """A router for routes below a path.

    Args:
        path: the beginning of the paths of the routes; empty for probes, which may have any query.
        tag: the section of the OpenAPI document. There each operation has the name of its function.
    """
    return APIRouter(
        prefix=path,
        tags=[tag],
        route_class=StrictRoute if path else APIRoute,
        generate_unique_id_function=attrgetter("name"),
    )


def last_segment(scope: Scope) -> str | None:
    """What stands after the last slash of the path as it was sent, decoded; None if the server does not tell the path
    as it was sent."""
    sent: bytes | None = scope.get("raw_path")
    return None if sent is None else unquote(sent.partition(b"?")[0].rpartition(b"/")[2])


class Framework(Protocol):
    """The parts of a `TaskFramework` that the HTTP interface needs. It exists before it runs, and may run again."""

    settings: Settings

    @property
    def is_running(self) -> bool: ...

    @property
    def services(self) -> StoreServices: ...

    @property
    def process(self) -> ProcessServices: ...


def framework_of(request: Request) -> Framework:
    return cast(Framework, request.app.state.framework)


def broker_of(request: Request) -> Broker | None:
    """The broker of this process; None if the process only opened the store.

    Raises:
        NotRunningError: if the framework does not run.
    """
    process = _process_of(request)
    return None if process is None else process.broker


def refusal_of(request: Request) -> str | None:
    """Why this process could not give its last message to the broker; None if it could, or if it has no broker.

    Raises:
        NotRunningError: if the framework does not run.
    """
    process = _process_of(request)
    return None if process is None else process.producer.refusal


def _process_of(request: Request) -> ProcessServices | None:
    with suppress(StoreOnlyError):
        return framework_of(request).process
    return None


def checked_id(text: str) -> str:
    """Return an id that may exist; any other text is refused before a database sees it.

    Raises:
        TaskNotFoundError: as for an id that does not exist.
    """
    if not is_id(text):
        raise TaskNotFoundError(text)
    return text


def is_id(text: str) -> bool:
    """Return whether a task or dead letter may have this id."""
    return re.fullmatch(_ID, text) is not None


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer of plain JSON. It is known to be right, so no response model validates it again."""
    return Response(orjson.dumps(content), status, headers, media_type="application/json")


def page_response(page: Page[Entry], view: Callable[[Entry], Any]) -> Response:
    """A page of a list, each entry as its view shows it."""
    return json_response({"items": [view(entry) for entry in page.items], "next_cursor": page.next_cursor})


@contextmanager
def trace_of(request: Request, name: str) -> Iterator[None]:
    """Continue the caller's trace, so that the message and the execution belong to it. If a program mounts the
    interface, it may have continued the trace with its own span of this request.
    """
    traceparent = request.headers.get("traceparent") if current_trace_id() is None else None
    if is_tracing() or traceparent is None:
        with span(name, SpanKind.SERVER, traceparent, {"http.request.method": request.method}):
            yield
    else:  # this process records no spans, but the worker may
        token = context.attach(trace_named(traceparent))
        try:
            yield
        finally:
            context.detach(token)
