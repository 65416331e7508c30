"""Spans arrive where a collector listens, in its protocol: HTTP with protobuf, at the path of the examples."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.command import Folder


class Receiver(ThreadingHTTPServer):
    """Takes spans as a collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.taken: list[tuple[str, ExportTraceServiceRequest]] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"


class _Taking(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.taken.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def test_the_spans_of_a_task_are_one_trace_at_the_collector_and_the_only_ones(
    folder: Folder, receiver: Receiver
) -> None:
    settings = {"TASKFRAMEWORK_OBSERVABILITY__OTLP_ENDPOINT": receiver.endpoint, "TASKFRAMEWORK_APP__SOURCE": "shop"}
    dev = folder.start("dev", "--app", "program", "--port", "0", env=settings)
    ready = dev.event("ready")
    address = f"http://{ready['host']}:{ready['port']}"
    folder.run("submit", "count-words", '{"text": "one two"}', "--wait", "--api", address)
    for path in ("/healthz", "/readyz", "/metrics", "/api/v1/tasks?error=bank"):
        assert httpx.get(f"{address}{path}").status_code == 200
    assert dev.end() == 0, "what is left is sent at the end"
    assert {path for path, _ in receiver.taken} == {"/v1/traces"}
    resources = [resource for _, request in receiver.taken for resource in request.resource_spans]
    names = {it.value.string_value for one in resources for it in one.resource.attributes if it.key == "service.name"}
    assert names == {"shop"}
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    assert sorted(span.name for span in spans) == ["process count-words", "publish count-words", "submit"]
    assert len({span.trace_id for span in spans}) == 1
