"""Health, readiness and metrics; a worker serves nothing else over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import time

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from taskframework.api.context import framework_of, json_response, new_router
from taskframework.api.openapi import PROBLEM_CONTENT, problem_responses
from taskframework.api.views import HealthView, ReadinessView
from taskframework.errors import BrokerError, StoreError
from taskframework.model.drivers import OUTBOX
from taskframework.model.status import LANES
from taskframework.wiring.process_services import ProcessServices

router = new_router("", "health")

#: A scrape asks store and broker at most this often, and waits this long for them; after that it shows the last values.
_REFRESH_SECONDS = 5.0
_REFRESH_TIMEOUT_SECONDS = 2.0


# Probes and load balancers may ask with HEAD.
@router.head("/healthz", include_in_schema=False)
@router.get(
    "/healthz",
    summary="Whether the process is alive",
    responses={200: {"model": HealthView, "description": "It is alive"}, **problem_responses()},
)
async def get_health(request: Request) -> Response:
    """Answer 200 as long as the event loop runs. This says nothing about the store and the broker."""
    return json_response({"status": "ok"})


@router.head("/readyz", include_in_schema=False)
@router.get(
    "/readyz",
    summary="Whether the process can do its work",
    responses={
        200: {"model": ReadinessView, "description": "Ready"},
        503: {"model": ReadinessView, "description": "Not ready; `checks` says why", "content": dict(PROBLEM_CONTENT)},
        **problem_responses(),
    },
)
async def get_readiness(request: Request) -> Response:
    """Ready means that this process can read and write the store, and the queues are declared. It needs no broker."""
    readiness = await framework_of(request).process.health.readiness()
    return json_response(readiness.view(), 200 if readiness.ready else 503)


@router.head("/metrics", include_in_schema=False)
@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}}, "description": "Prometheus' text format"},
        **problem_responses("not_running"),
    },
)
async def get_metrics(request: Request) -> Response:
    """Return the metrics of this process, and numbers from the store and the broker."""
    process = framework_of(request).process
    if time.monotonic() - getattr(request.app.state, "metrics_refreshed", -_REFRESH_SECONDS) >= _REFRESH_SECONDS:
        request.app.state.metrics_refreshed = time.monotonic()
        await _refresh(process)
    process.metrics.broker_connected.set(process.broker.is_connected)
    process.metrics.store_available.set(not process.breaker.is_open)
    if process.worker is not None:
        process.metrics.in_flight.set(process.worker.in_flight)
        process.metrics.consuming.set(process.worker.is_live)
    return Response(process.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


async def _refresh(process: ProcessServices) -> None:
    """Refresh the values that can be read now: a scrape must not fail without the store or the broker.

    Depths that cannot be read are not shown. Other values stay as they are.
    """
    services, metrics = process.services, process.metrics
    depths: dict[tuple[str, str], int] = {}
    with contextlib.suppress(StoreError, BrokerError, TimeoutError):
        async with asyncio.timeout(_REFRESH_TIMEOUT_SECONDS):
            await services.counter.refresh()
            late = await services.store.due(OUTBOX, 1)
            metrics.events_lag.set((services.store.now() - late[0].due).total_seconds() if late else 0)
            declared = set(await services.types.names())
            task_types = sorted(declared | set(services.registry.task_types))
            metrics.show_workers(*await services.workers.count(task_types))
            for task_type in task_types:
                for lane in LANES:
                    depths[task_type, lane.value] = await process.broker.queue_depth(task_type, lane) or 0
    metrics.show_depths(depths)
