"""Health and metrics of several worker processes as one."""

from __future__ import annotations

import httpx
import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from taskframework.cli.joint_health import Process, create_joint_health_app
from taskframework.cli.supervision import WorkerProcess
from taskframework.cli.tether import Answer


class FakeProcess:
    """Answers what it was given; what is missing is not answered."""

    is_stopping = False

    def __init__(self, number: int, answers: dict[str, Answer], *, is_ready: bool = True, restarts: int = 0) -> None:
        self.number = number
        self.answers = answers
        self.is_ready = is_ready
        self.restarts = restarts

    async def ask(self, path: str, *, within: float) -> Answer | None:
        return self.answers.get(path)


async def get(path: str, *processes: Process) -> httpx.Response:
    transport = httpx.ASGITransport(create_joint_health_app(processes))
    async with httpx.AsyncClient(transport=transport, base_url="http://parent") as client:
        return await client.get(path)


def exposition(done: int, in_flight: int) -> Answer:
    registry = CollectorRegistry()
    Counter("tasks_retries", "Repeated", ["task_type"], registry=registry).labels('a "b"').inc(done)
    Gauge("tasks_in_flight", "Running", registry=registry).set(in_flight)
    Histogram("tasks_execution_seconds", "Time", ["task_type"], registry=registry).labels("a").observe(0.3)
    return Answer(200, generate_latest(registry).decode())


def samples(text: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def _order(sample: Sample) -> tuple[str, list[tuple[str, str]]]:
    return sample.name, sorted(sample.labels.items())


async def test_every_sample_tells_its_process_and_none_is_lost() -> None:
    first, second = exposition(3, 1), exposition(4, 2)
    answer = await get(
        "/metrics",
        FakeProcess(1, {"/metrics": first}),
        FakeProcess(2, {"/metrics": second}, restarts=5),
        FakeProcess(3, {"/metrics": Answer(500, "broken")}),
        FakeProcess(4, {}),
    )
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.count("# TYPE tasks_retries_total counter") == 1
    found = samples(answer.text)
    restarts = {sample.labels["process"]: sample.value for sample in found if sample.name.endswith("_restarts_total")}
    assert restarts == {"1": 0, "2": 5, "3": 0, "4": 0}
    merged = [sample for sample in found if "_restarts_" not in sample.name]
    own = [
        sample._replace(labels={"process": number, **sample.labels})
        for number, text in (("1", first.body), ("2", second.body))
        for sample in samples(text)
    ]
    assert sorted(merged, key=_order) == sorted(own, key=_order)


async def test_all_processes_must_be_ready_and_those_that_are_not_are_named() -> None:
    def process(number: int, status: int | None) -> FakeProcess:
        view = Answer(status or 0, orjson.dumps({"status": "ready" if status == 200 else "not ready"}).decode())
        return FakeProcess(number, {} if status is None else {"/readyz": view})

    answer = await get("/readyz", process(1, 200), process(2, 200))
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    answer = await get("/readyz", process(1, 200), process(2, 503), process(3, None))
    assert (answer.status_code, answer.json()["status"]) == (503, "not ready")
    assert answer.json()["checks"] == {"process 1": "ok", "process 2": "not ready", "process 3": "no answer"}
    assert answer.json()["processes"] == {"1": {"status": "ready"}, "2": {"status": "not ready"}}


async def test_a_hanging_process_is_unhealthy_and_a_starting_process_is_not() -> None:
    well = FakeProcess(1, {"/healthz": Answer(200, "{}")})
    starting = FakeProcess(2, {}, is_ready=False)
    assert (await get("/healthz", well, starting)).status_code == 200
    answer = await get("/healthz", well, starting, FakeProcess(3, {}))
    assert (answer.status_code, answer.json()) == (503, {"status": "no answer from process 3"})


async def test_a_process_that_was_asked_to_stop_is_no_illness() -> None:
    stopping = WorkerProcess(1, ["no command"], on_ready=lambda: None)
    stopping.is_ready = True
    stopping.request_stop()
    assert (await get("/healthz", stopping)).status_code == 200
    assert (await get("/readyz", stopping)).status_code == 503
