"""Batches over HTTP as the contract has them, in memory: what the client sends is kept, what it gets can be chosen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from taskframework.api.server import ApiServer
from taskframework.api.sockets import bind_sockets, resolve

_PAGE = 2
_NOW = "2026-11-20T09:30:00.000Z"


class StandIn:
    """An interface with batches; each item becomes one result."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.options: dict[str, dict[str, Any]] = {}
        #: By batch: the items that came, in order.
        self.items: dict[str, list[Any]] = {}
        #: Answers that come before any other, such as a refusal.
        self.first: list[Response] = []
        self.address = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[StandIn]:
        """Serve it at `address`."""
        below = "/api/v1/batches"
        routes = [
            Route(below, self._submit, methods=["POST"]),
            Route(below, self._list),
            Route(below + "/{id}", self._show),
            Route(below + "/{id}/results", self._results),
            Route(below + "/{id}/cancel", self._change, methods=["POST"]),
            Route(below + "/{id}/retry-failed", self._change, methods=["POST"]),
        ]
        server = ApiServer(
            Starlette(routes=routes),
            bind_sockets(await resolve("127.0.0.1", key=""), 0, key=""),
            root_path="",
            max_connections=None,
        )
        await server.start()
        self.address = server.url
        try:
            yield self
        finally:
            await server.stop()

    async def _submit(self, request: Request) -> Response:
        self.asked.append("submit")
        if self.first:
            return self.first.pop(0)
        if request.headers["content-type"] == "application/json":
            options = await request.json()
            items = options.pop("items")
        else:
            options, items = dict(request.query_params), []
            rest = b""
            async for piece in request.stream():
                *lines, rest = (rest + piece).split(b"\n")
                items += map(orjson.loads, lines)
                self.items["coming"] = items
            assert rest == b"", "every line has an end"
        batch_id = options.pop("idempotency_key")
        is_new = batch_id not in self.items
        self.items[batch_id], self.options[batch_id] = items, options
        return JSONResponse(self._view(batch_id), 202 if is_new else 200)

    async def _list(self, request: Request) -> Response:
        return self._page(request, [self._view(batch_id) for batch_id in self.options])

    async def _show(self, request: Request) -> Response:
        return self._about(request, lambda batch_id: JSONResponse(self._view(batch_id)))

    async def _change(self, request: Request) -> Response:
        self.asked.append(request.url.path.rpartition("/")[2])
        if self.first:
            return self.first.pop(0)
        return self._about(request, lambda batch_id: JSONResponse(self._view(batch_id), 202))

    async def _results(self, request: Request) -> Response:
        def results(batch_id: str) -> Response:
            rest = {"status": "COMPLETED", "error": None}
            items = enumerate(self.items[batch_id])
            return self._page(
                request, [{"index": n, "task_id": f"{batch_id}-{n}", "result": item, **rest} for n, item in items]
            )

        return self._about(request, results)

    def _about(self, request: Request, answer: Any) -> Response:
        batch_id = request.path_params["id"]
        if batch_id in self.items:
            told: Response = answer(batch_id)
            return told
        document = {"status": 404, "code": "task_not_found", "detail": f"There is no batch '{batch_id}'.", "hint": ""}
        return JSONResponse(document, 404)

    @staticmethod
    def _page(request: Request, entries: list[Any]) -> Response:
        start = int(request.query_params.get("cursor", "0"))
        rest = entries[start + _PAGE :]
        return JSONResponse(
            {"items": entries[start : start + _PAGE], "next_cursor": str(start + _PAGE) if rest else None}
        )

    def _view(self, batch_id: str) -> dict[str, Any]:
        total = len(self.items[batch_id])
        counted = {"total": total, "done": total, "succeeded": total, "failed": 0, "counts": {"COMPLETED": total}}
        options = {"policy": "all_must_succeed", "chunk_size": 1, "priority": "normal", "max_attempts": 5}
        times = {
            "not_before": _NOW,
            "deadline": None,
            "first_result_at": _NOW,
            "created_at": _NOW,
            "finished_at": _NOW,
            "estimated_end": None,
        }
        return {
            "batch_id": batch_id,
            "task_type": "mail",
            "user_id": "anonymous",
            "correlation_id": batch_id,
            "status": "COMPLETED",
            "is_sealed": True,
            "cancelled": 0,
            "percent": 100.0,
            "rate": None,
            "result": None,
            "error": None,
            **options,
            **counted,
            **times,
        }
