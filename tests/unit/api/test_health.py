"""Health, readiness and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from taskframework.api import health
from taskframework.api.app import create_health_app
from taskframework.brokers.embedded import EmbeddedBroker
from taskframework.errors import BrokerUnavailableError, StoreMisconfiguredError, StoreUnavailableError
from taskframework.model.drivers import DEADLINE, Driver
from taskframework.model.workers import PRESENCE, Presence
from taskframework.observability import counting
from taskframework.operations import health as operations_health
from taskframework.recovery.loop import RepairLoop
from taskframework.stores.replies import DueTask
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from taskframework.worker.worker import Worker
from tests.support.kitchen_sink import Waits
from tests.unit.api.conftest import TASKS, Api, OpenApi, problem_of


async def away(*_: object, **__: object) -> None:
    raise StoreUnavailableError("away")


def values(exposition: str) -> dict[str, float]:
    lines = [line for line in exposition.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


async def test_a_process_that_can_work_is_ready(api: Api) -> None:
    assert (await api.get("/healthz")).json() == {"status": "ok"}
    answer = await api.get("/readyz")
    assert (answer.status_code, answer.json()["status"], answer.json()["checks"]["store"]) == (200, "ready", "ok")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/docs", "/"])
async def test_probes_may_ask_with_head(api: Api, path: str) -> None:
    head, whole = await api.request("HEAD", path), await api.get(path)
    assert (head.status_code, head.headers["content-type"]) == (200, whole.headers["content-type"])
    assert "head" not in (await api.get("/openapi.json")).json()["paths"].get(path, {})
    refused = await api.post(path)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
    assert problem_of(refused, 405, "method_not_allowed")["hint"] == "Use GET, HEAD."


async def test_a_process_without_the_store_is_healthy_but_not_ready(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.framework.services.store, "ping", away)
    answer = await api.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "not ready")
    assert answer.json()["checks"]["store"] != "ok"
    assert (await api.get("/healthz")).status_code == 200


@pytest.mark.parametrize("right", ["read_records", "delete_records"])
async def test_a_process_that_may_not_read_or_write_the_store_is_not_ready(
    api: Api, monkeypatch: pytest.MonkeyPatch, right: str
) -> None:
    async def refuse(*_: object) -> None:
        raise StoreMisconfiguredError("MongoDB refused access.")

    monkeypatch.setattr(api.framework.services.store, right, refuse)
    answer = await api.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["store"]) == (503, "MongoDB refused access.")


async def test_a_process_whose_store_writes_slowly_is_ready(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(operations_health, "_WRITE_SECONDS", 0)
    monkeypatch.setattr(api.framework.services.store, "delete_records", wait)
    assert (await api.get("/readyz")).status_code == 200


async def test_a_process_without_the_broker_is_ready_and_accepts_tasks(api: Api) -> None:
    broker = api.framework.process.broker
    assert isinstance(broker, EmbeddedBroker)
    broker.interrupt()
    answer = await api.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["checks"]["broker"] != "ok"
    await api.submit()


async def test_readiness_tells_when_each_repair_looked(api: Api) -> None:
    async def all_looked() -> dict[str, dict[str, Any]] | None:
        repairs: dict[str, dict[str, Any]] = (await api.get("/readyz")).json()["repairs"]
        return repairs if all(repair["last_run"] for repair in repairs.values()) else None

    repairs = await eventually(all_looked)
    # Nothing is swept by a process that dies with its broker and executes nothing.
    background = {
        "parents",
        "pauses",
        "reap",
        "relay",
        "replays",
        "retention",
        "schedules",
        "slots",
        "streams",
        "topology",
        "unstarted",
    }
    assert repairs.keys() == {"batches", "expire", *background}
    for repair in repairs.values():
        at = datetime.fromisoformat(repair["last_run"])
        assert repair["last_run"] == at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        assert abs((datetime.now(UTC) - at).total_seconds() - repair["seconds_ago"]) < 5


async def test_without_the_broker_the_repairs_that_need_it_looked_too(open_api: OpenApi) -> None:
    async with open_api(worker=True) as api:
        broker = api.framework.process.broker
        assert isinstance(broker, EmbeddedBroker)
        broker.interrupt()
        waiting = [loop for loop in api.framework.process.repairs if loop.name in ("sweep", "relay")]
        assert len(waiting) == 2
        before = {loop.name: loop.looks for loop in waiting}
        await eventually(lambda: all(loop.looks > before[loop.name] for loop in waiting))
        assert (await api.get("/readyz")).status_code == 200


async def test_a_repair_that_fails_goes_on_and_is_counted(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    (loop,) = [loop for loop in api.framework.process.repairs if loop.name == "expire"]
    due, failed = api.framework.services.store.due, asyncio.Event()

    async def fail_once(driver: Driver, *limits: Any) -> Sequence[DueTask]:
        if driver is not DEADLINE or failed.is_set():
            return await due(driver, *limits)
        failed.set()
        raise KeyError("a bug")

    monkeypatch.setattr(api.framework.services.store, "due", fail_once)
    await failed.wait()
    looks = loop.looks
    await eventually(lambda: loop.looks > looks)
    assert values((await api.get("/metrics")).text)['tasks_repairs_failed_total{repair="expire"}'] == 1
    assert (await api.get("/readyz")).status_code == 200


@pytest.mark.parametrize(
    "name", ["sweep", "expire", "reap", "relay", "unstarted", "parents", "retention", "topology", "pauses", "presence"]
)
async def test_a_repair_that_ended_makes_a_process_unready_if_promises_need_it(open_api: OpenApi, name: str) -> None:
    async with open_api(worker=True) as api:
        (loop,) = [loop for loop in api.framework.process.repairs if loop.name == name]
        await loop.stop()
        answer = await api.get("/readyz")
    if name in ("sweep", "expire", "reap", "relay", "unstarted", "parents"):
        assert answer.status_code == 503
        assert answer.json()["checks"][name].startswith("ended")
    else:
        assert answer.status_code == 200


@pytest.mark.parametrize(("seconds", "status"), [(14, 200), (16, 200), (39, 200), (41, 503)])
async def test_a_repair_that_stands_still_is_shown_before_the_process_is_unready(
    api: Api, monkeypatch: pytest.MonkeyPatch, seconds: int, status: int
) -> None:
    monkeypatch.setattr(RepairLoop, "seconds_since_success", seconds)
    answer = await api.get("/readyz")
    check, repair = answer.json()["checks"]["expire"], answer.json()["repairs"]["expire"]
    assert (answer.status_code, repair["every_seconds"]) == (status, 1)
    assert check == ("ok" if seconds < 15 else f"last succeeded {seconds} s ago")


async def test_consumers_are_not_well_without_a_broker(open_api: OpenApi, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_api(worker=True) as api:
        # As of RabbitMQ that is frozen: the consumers miss it only at their next heartbeat.
        monkeypatch.setattr(Worker, "problem", None)
        assert (await api.get("/readyz")).json()["checks"]["consumers"] == "ok"
        monkeypatch.setattr(EmbeddedBroker, "is_connected", False)
        answer = await api.get("/readyz")
    told = answer.json()["checks"]["consumers"]
    assert (answer.status_code, told) == (200, "not consuming: the broker does not answer")


async def test_an_undriven_task_is_shown(api: Api) -> None:
    store = api.framework.services.store
    await insert_one(store, new_task(now=store.now(), next_dispatch_at=None))
    assert values((await api.get("/metrics")).text)["tasks_undriven"] == 1


async def test_a_stopping_process_is_not_ready(api: Api) -> None:
    api.framework.process.health.stopping = True
    assert (await api.get("/readyz")).status_code == 503


async def test_metrics_show_what_store_broker_and_worker_hold(open_api: OpenApi) -> None:
    async with open_api(worker=True) as api:
        task = await api.submit(task_type="waits", parameters=None)
        await eventually(lambda: Waits.started)
        found = values((await api.get("/metrics")).text)
        Waits.gate.set()
        await api.finished(task)
    assert found['tasks_submitted_total{task_type="waits"}'] == 1
    assert found['tasks_by_status{status="RUNNING"}'] == 1
    assert (found["tasks_in_flight"], found["tasks_consuming"]) == (1, 1)
    assert found['tasks_queue_depth{lane="normal",task_type="waits"}'] == 0


async def test_metrics_show_which_workers_exist(open_api: OpenApi) -> None:
    async with open_api(worker=True) as api:
        await eventually(lambda: api.framework.services.store.list_records(PRESENCE.name, limit=1))
        store = api.framework.services.store
        seen_at = store.now() - timedelta(minutes=1)
        ghost = Presence("ghost", "h", 1, "1", ("counts",), 1, 0, seen_at, seen_at)
        await store.write_records([PRESENCE.new("ghost", content=ghost)])
        found = values((await api.get("/metrics")).text)
    assert (found['tasks_workers{task_type="counts"}'], found["tasks_workers_lost"]) == (1, 1)
    assert (found["tasks_broker_connected"], found["tasks_store_available"]) == (1, 1)


async def test_without_a_worker_types_that_were_declared_are_shown_with_none(
    open_api: OpenApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_api(worker=True) as api:
        declared = {known.task_type for known in await api.framework.services.types.list_known()}
    assert "counts" in declared
    async with open_api() as api:
        monkeypatch.setattr(type(api.framework.services.registry), "task_types", ())
        found = values((await api.get("/metrics")).text)
    assert found['tasks_workers{task_type="counts"}'] == 0
    assert found['tasks_queue_depth{lane="low",task_type="counts"}'] == 0


async def test_metrics_tell_what_is_away_and_how_late_events_are(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = api.framework.process.broker
    assert isinstance(broker, EmbeddedBroker)
    broker.interrupt()

    async def is_told() -> bool:
        """On a crowded machine the relay may have looked in between, and put the event off."""
        late = api.framework.services.store.now() - timedelta(minutes=3)
        await insert_one(api.framework.services.store, new_task(now=late, publish_at=late))
        found = values((await api.get("/metrics")).text)
        assert (found["tasks_broker_connected"], found["tasks_store_available"]) == (0, 1)
        return 180 <= found["tasks_events_lag_seconds"] < 240

    await eventually(is_told)
    monkeypatch.setattr(api.framework.services.store, "ping", away)
    api.framework.process.breaker.open(StoreUnavailableError("away"))
    assert values((await api.get("/metrics")).text)["tasks_store_available"] == 0


async def test_answers_are_counted_by_status_but_not_those_of_readiness(api: Api) -> None:
    await api.submit()
    await api.get(f"{TASKS}/unknown")
    api.framework.process.health.stopping = True
    assert (await api.get("/readyz")).status_code == 503
    api.framework.process.health.stopping = False
    found = values((await api.get("/metrics")).text)
    answers = {name: value for name, value in found.items() if name.startswith("tasks_http_responses_total")}
    assert answers == {'tasks_http_responses_total{status="202"}': 1, 'tasks_http_responses_total{status="404"}': 1}


async def test_a_scrape_does_not_ask_the_store_each_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_MIN_USE", timedelta(0))
    monkeypatch.setattr(counting, "_USE_PER_COST", 0)
    queued, depth = 'tasks_by_status{status="QUEUED"}', 'tasks_queue_depth{lane="normal",task_type="counts"}'
    before = values((await api.get("/metrics")).text)
    assert (before[queued], before[depth]) == (0, 0)

    await api.submit()
    broker = api.framework.process.broker
    assert isinstance(broker, EmbeddedBroker)
    broker.publish_raw("counts", b"{}")
    again = values((await api.get("/metrics")).text)
    assert (again[queued], again[depth]) == (0, 0)

    monkeypatch.setattr(health, "_REFRESH_SECONDS", 0)
    later = values((await api.get("/metrics")).text)
    assert (later[queued], later[depth]) == (1, 1)


async def test_a_depth_that_cannot_be_read_is_not_shown(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> int:
        raise BrokerUnavailableError("gone")

    monkeypatch.setattr(health, "_REFRESH_SECONDS", 0)
    assert "tasks_queue_depth{" in (await api.get("/metrics")).text
    with monkeypatch.context() as patch:
        patch.setattr(api.framework.process.broker, "queue_depth", away)
        assert "tasks_queue_depth{" not in (await api.get("/metrics")).text
    assert "tasks_queue_depth{" in (await api.get("/metrics")).text


@pytest.mark.parametrize("answer", [away, asyncio.Event().wait], ids=["away", "hangs"])
async def test_metrics_do_without_the_store(api: Api, monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    monkeypatch.setattr(health, "_REFRESH_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(api.framework.services.store, "count_by_status", answer)
    await api.submit()
    found = await api.get("/metrics")
    assert found.status_code == 200
    assert found.headers["content-type"].startswith("text/plain; version=")
    assert values(found.text)['tasks_submitted_total{task_type="count-words"}'] == 1


async def test_a_worker_serves_health_and_nothing_else(api: Api) -> None:
    transport = httpx.ASGITransport(create_health_app(api.framework))
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as worker:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await worker.get(path)).status_code == 200
        problem_of(await worker.get(TASKS), 404, "not_found")
        problem_of(await worker.post(TASKS, json={}), 404, "not_found")
