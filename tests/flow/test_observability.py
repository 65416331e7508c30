"""One trace from the submission to the attempt and the external event; log lines that name the task; metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import structlog
from blockbuster import BlockBuster
from httpx import ASGITransport, AsyncClient
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from taskframework import (
    EventSubscriber,
    ExternalEvent,
    Settings,
    SubmitRequest,
    TaskContext,
    TaskFramework,
    task,
    telemetry,
)
from taskframework.api.app import create_app
from taskframework.api.server import ApiServer
from taskframework.observability.loop_watch import LoopWatch
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from tests.flow.conftest import Run

_HERE = "http://localhost"


class Logs(BackgroundTaskExecutable[None, None]):
    """Writes a log line, and remembers what a line of its own would carry."""

    task_type = "logs"
    seen: dict[str, object] = {}  # noqa: RUF012 - shared with the test on purpose

    async def execute(self, context: TaskContext[None]) -> None:
        type(self).seen = dict(structlog.contextvars.get_contextvars())
        context.logger.info("working")


class BlocksTheLoop(BackgroundTaskExecutable[None, None]):
    """Sleeps where it should wait: 1.5 s, and on a crowded machine until it was seen."""

    task_type = "blocks-the-loop"
    was_seen: ClassVar[Callable[[], bool]]

    async def execute(self, context: TaskContext[None]) -> None:
        time.sleep(1.5)
        end = time.monotonic() + 20
        while not type(self).was_seen() and time.monotonic() < end:
            time.sleep(0.01)


@pytest.fixture
def _blocking_is_allowed(_blocking_calls: BlockBuster) -> None:
    _blocking_calls.functions["time.sleep"].can_block_in(__file__, "execute")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What is traced during the test. A program can set its provider only once, hence the private name."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(telemetry, "_tracer", provider.get_tracer("taskframework"))
    return exporter


async def test_one_trace_goes_from_the_submission_to_the_external_event(run: Run, spans: InMemorySpanExporter) -> None:
    heard: list[ExternalEvent] = []
    async with run() as framework, EventSubscriber(framework.process.broker) as subscriber:
        subscriber.on("completed")(heard.append)
        await subscriber.listening()
        with trace.get_tracer("test").start_as_current_span("request") as request:
            handle = await framework.submit("count-words", {"text": "a b"})
        await handle.finished(timeout=60)
        await eventually(lambda: heard)
    found: dict[str, ReadableSpan] = {span.name: span for span in spans.get_finished_spans()}
    publish, process = found["publish count-words"], found["process count-words"]
    root = request.get_span_context()
    assert publish.parent is not None
    assert publish.parent.span_id == root.span_id
    assert process.parent is not None
    assert process.parent.span_id == publish.context.span_id, "joined through the message header"
    assert {publish.context.trace_id, process.context.trace_id} == {root.trace_id}
    assert process.attributes is not None
    assert process.attributes["messaging.system"] == "rabbitmq"
    assert process.attributes["messaging.operation.type"] == "process"
    assert heard[0].traceparent is not None
    assert f"{root.trace_id:032x}" in heard[0].traceparent


async def test_a_submission_over_http_is_below_the_span_that_the_program_around_has_of_the_request(
    run: Run, spans: InMemorySpanExporter
) -> None:
    async with run() as framework, AsyncClient(transport=ASGITransport(create_app(framework)), base_url=_HERE) as http:
        with trace.get_tracer("test").start_as_current_span("request") as request:
            body = {"task_type": "count-words", "parameters": {"text": "a b"}}
            await http.post("/api/v1/tasks", json=body, headers={"traceparent": f"00-{1:032x}-{2:016x}-01"})
    [submit] = [span for span in spans.get_finished_spans() if span.name == "submit"]
    assert submit.parent is not None
    assert submit.parent.span_id == request.get_span_context().span_id


@task("fails-somewhere", max_attempts=1)
async def fails_somewhere(parameters: str) -> None:
    raise LookupError("no such account")


@task("fails-far-away", max_attempts=1, run_in="process")
def fails_far_away(parameters: str) -> None:
    raise LookupError("no such account")


async def test_a_failure_is_an_exception_of_its_span(run: Run, spans: InMemorySpanExporter) -> None:
    async with run(extra=[fails_somewhere, fails_far_away]) as framework:
        for kind in (fails_somewhere, fails_far_away):
            await (await framework.submit(kind, "a secret")).finished(timeout=60)
    failed = [span for span in spans.get_finished_spans() if span.name.startswith("process fails")]
    assert len(failed) == 2
    for span in failed:
        [event] = span.events
        assert (span.status.status_code, event.name) == (trace.StatusCode.ERROR, "exception")
        assert event.attributes is not None
        assert event.attributes["exception.type"] == "LookupError"
        assert event.attributes["exception.message"] == "no such account"
        assert "test_observability.py" in str(event.attributes["exception.stacktrace"])
        assert "a secret" not in str(event.attributes)


async def test_where_nobody_listens_a_task_makes_no_span_and_no_log_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[str] = []

    class Tracer(trace.NoOpTracer):
        def start_span(self, name: str, *args: Any, **options: Any) -> trace.Span:
            made.append(f"span {name}")
            return super().start_span(name, *args, **options)

    class Record(logging.LogRecord):
        def __init__(self, name: str, *args: Any, **options: Any) -> None:
            if name.startswith("taskframework"):
                made.append(f"line of {name}")
            super().__init__(name, *args, **options)

    monkeypatch.setattr(telemetry, "_tracer", Tracer())
    monkeypatch.setattr(logging, "_logRecordFactory", Record)
    caplog.set_level("WARNING", logger="taskframework")
    async with run(extra=[Logs]) as framework:
        await framework.submit_many([SubmitRequest(task_type="logs") for _ in range(20)])
        handle = await framework.submit("logs")
        await handle.finished(timeout=60)
    assert made == []


async def test_log_lines_of_a_task_name_it(run: Run, spans: InMemorySpanExporter) -> None:
    async with run(extra=[Logs]) as framework:
        handle = await framework.submit("logs", user_id="ada", correlation_id="order-7")
        await handle.finished(timeout=60)
    (process,) = [span for span in spans.get_finished_spans() if span.name == "process logs"]
    assert Logs.seen == {
        "task_id": handle.task_id,
        "task_type": "logs",
        "attempt": 1,
        "correlation_id": "order-7",
        "user_id": "ada",
        "trace_id": f"{process.context.trace_id:032x}",
    }


@pytest.mark.usefixtures("_blocking_is_allowed")
async def test_a_task_that_blocks_the_loop_is_named_in_the_log(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="taskframework.observability.loop_watch")

    def told(level: str) -> list[dict[str, Any]]:
        records = [vars(record) for record in caplog.records if record.levelname == level]
        return [record for record in records if record.get("task_type") == "blocks-the-loop"]

    BlocksTheLoop.was_seen = lambda: bool(told("WARNING"))
    async with run(extra=[BlocksTheLoop]) as framework:
        handle = await framework.submit("blocks-the-loop")
        await handle.finished(timeout=60)
        await eventually(lambda: told("INFO"))
        metrics = framework.process.metrics.exposition().decode()
    (warning,), (over,) = told("WARNING"), told("INFO")
    assert warning["task_id"] == over["task_id"] == handle.task_id
    assert f"{__file__}:" in warning["blocked_at"]
    assert warning["blocked_at"].endswith(" in BlocksTheLoop.execute")
    assert "set run_in='process'" in warning["message"]
    assert over["blocked_seconds"] >= warning["blocked_seconds"] >= 1
    assert 'tasks_loop_blocked_total{task_type="blocks-the-loop"} 1.0' in metrics


@pytest.mark.parametrize("urls", ["embedded"], indirect=True)
async def test_the_loop_watch_does_not_look_at_what_opening_takes(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*arguments: Any, **options: Any) -> Any:
            order.append(what)
            return call(*arguments, **options)

        return noting

    monkeypatch.setattr(f"{ApiServer.__module__}.create_app", noted("the API is made", create_app))
    monkeypatch.setattr(ApiServer, "start", noted("it is served", ApiServer.start))
    monkeypatch.setattr(LoopWatch, "start", noted("the watch looks", LoopWatch.start))
    async with TaskFramework(settings(api={"port": 0})).running(api=True):
        assert order == ["the API is made", "it is served", "the watch looks"]


async def test_an_undriven_task_shows_in_the_metrics(run: Run) -> None:
    async with run(worker=False) as framework:
        store = framework.services.store
        await insert_one(store, new_task(now=store.now(), next_dispatch_at=None))
        await framework.services.counter.refresh()
        assert "tasks_undriven 1.0" in framework.process.metrics.exposition().decode().splitlines()


async def test_the_contract_metrics_are_there_and_count(run: Run) -> None:
    async with run() as framework:
        for task_type, parameters in (
            ("count-words", {"text": "a"}),
            ("flaky", {"succeed_at": 2, "delay": 0}),
            ("broken", None),
        ):
            await (await framework.submit(task_type, parameters)).finished(timeout=60)
        await framework.process.bridge.drain()
        await framework.services.counter.refresh()
        lines = set(framework.process.metrics.exposition().decode().splitlines())
    for line in (
        'tasks_submitted_total{task_type="count-words"} 1.0',
        'tasks_execution_seconds_count{status="COMPLETED",task_type="count-words"} 1.0',
        'tasks_execution_seconds_count{status="RETRYING",task_type="flaky"} 1.0',
        'tasks_queue_wait_seconds_count{lane="normal",task_type="flaky"} 2.0',
        'tasks_retries_total{task_type="flaky"} 1.0',
        'tasks_dlq_entered_total{task_type="broken"} 1.0',
        'tasks_events_published_total{event_type="task.failed"} 1.0',
        'tasks_events_processed_total{event_type="AttemptFinished",listener="state_aggregator"} 4.0',
        'tasks_state_db_updates_total{operation="retrying"} 1.0',
        'tasks_by_status{status="COMPLETED"} 2.0',
        "tasks_undriven 0.0",
    ):
        assert line in lines
