"""Health and metrics of several worker processes together: each answers its parent, the parent answers requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

import httpx
import orjson
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from taskframework.api.app import create_health_app
from taskframework.api.context import json_response
from taskframework.cli.tether import Answer
from taskframework.observability.metrics import WORKER_RESTARTS
from taskframework.runtime import TaskFramework

#: Seconds to wait for the answer of a process, which waits two seconds for store and broker. Prometheus waits ten.
_ANSWER_TIMEOUT_SECONDS = 3.0


class Process(Protocol):
    """The parts of a worker process that the parent needs."""

    number: int
    is_ready: bool
    restarts: int

    @property
    def is_stopping(self) -> bool: ...

    async def ask(self, path: str, *, within: float) -> Answer | None: ...


def make_health_responder(framework: TaskFramework) -> Callable[[str], Awaitable[Answer]]:
    """Make the function with which a worker process answers its parent: the same answers as over HTTP."""
    transport = httpx.ASGITransport(create_health_app(framework))

    async def answer(path: str) -> Answer:
        # Not through an httpx client, which would log each request.
        response = await transport.handle_async_request(httpx.Request("GET", f"http://worker{path}"))
        return Answer(response.status_code, (await response.aread()).decode())

    return answer


def create_joint_health_app(processes: Sequence[Process]) -> Starlette:
    """The application of the parent: `/healthz`, `/readyz` and `/metrics` of all processes."""

    async def health(_: Request) -> Response:
        # Only a process that hangs makes this unhealthy: a process that died is started again by the parent, and one
        # that stops can be asked nothing, while its tasks may need the whole grace of the stop.
        serving = [process for process in processes if process.is_ready and not process.is_stopping]
        answers = await _ask_all(serving, "/healthz")
        silent_processes = [str(number) for number, answer in answers.items() if answer is None]
        status = f"no answer from process {', '.join(silent_processes)}" if silent_processes else "ok"
        return json_response({"status": status}, 503 if silent_processes else 200)

    async def readiness(_: Request) -> Response:
        answers = await _ask_all(processes, "/readyz")
        checks = {f"process {number}": _readiness_problem(answer) or "ok" for number, answer in answers.items()}
        ready = set(checks.values()) == {"ok"}
        views = {str(number): orjson.loads(answer.body) for number, answer in answers.items() if answer is not None}
        status = "ready" if ready else "not ready"
        return json_response({"status": status, "checks": checks, "processes": views}, 200 if ready else 503)

    async def metrics(_: Request) -> Response:
        answers = await _ask_all(processes, "/metrics")
        registry = CollectorRegistry()
        definition = WORKER_RESTARTS
        restarts = Counter(definition.name, definition.documentation, definition.labels, registry=registry)
        for process in processes:
            restarts.labels(str(process.number)).inc(process.restarts)
        metrics_texts = {
            str(number): answer.body for number, answer in answers.items() if answer and answer.status == 200
        }
        registry.register(_MergedMetrics(metrics_texts))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    pages = {"/healthz": health, "/readyz": readiness, "/metrics": metrics}
    return Starlette(routes=[Route(path, page) for path, page in pages.items()])


class _MergedMetrics(Collector):
    """The metrics of all processes, each sample with the number of its process.

    They are not summed: a sum falls when one process starts again, and a rate would count all other work again.
    """

    def __init__(self, metrics_texts: Mapping[str, str]) -> None:
        self._texts = metrics_texts

    def collect(self) -> Iterable[Metric]:
        merged: dict[str, Metric] = {}
        for process, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                merged_family = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                merged_family.samples += [
                    sample._replace(labels={"process": process, **sample.labels}) for sample in family.samples
                ]
        return merged.values()


async def _ask_all(processes: Sequence[Process], path: str) -> dict[int, Answer | None]:
    answers = await asyncio.gather(*(process.ask(path, within=_ANSWER_TIMEOUT_SECONDS) for process in processes))
    return dict(zip([process.number for process in processes], answers, strict=True))


def _readiness_problem(answer: Answer | None) -> str | None:
    if answer is None:
        return "no answer"
    return None if answer.status == 200 else "not ready"
