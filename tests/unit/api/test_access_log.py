"""The access log: who asked for what, what came of it, and nothing that is nobody's business."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

# Read before a loop runs: an adapter is imported when it is first needed, and reading a module blocks.
import taskframework.stores.sqlite  # noqa: F401
from taskframework import Caller, Role, Settings, TaskFramework
from taskframework.api.app import create_app

LOGGER = "taskframework.api.access_log"


def framework_in(path: Path, *, access_log: bool) -> TaskFramework:
    sections = {"store": {"url": f"sqlite:///{path / 'tasks.db'}"}, "api": {"access_log": access_log}}
    return TaskFramework(Settings.model_validate(sections))


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    framework, outer = framework_in(tmp_path, access_log=True), Starlette()
    outer.mount("/jobs", create_app(framework, caller=lambda request: Caller("ann", (Role.READER,))))
    async with (
        framework.store_only(),
        httpx.AsyncClient(transport=httpx.ASGITransport(outer), base_url="http://shop") as client,
    ):
        yield client


async def test_each_request_has_one_log_line(client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    listed = await client.get("/jobs/api/v1/tasks", params={"user_id": "ann", "search": "a secret"})
    await client.post("/jobs/api/v1/tasks", json={"task_type": "a secret"})
    first, second = [record for record in caplog.records if record.name == LOGGER]
    assert first.getMessage().startswith(f"GET '/jobs/api/v1/tasks' answered with {listed.status_code} after ")
    told = vars(first)
    assert (told["method"], told["path"], told["status"]) == ("GET", "/jobs/api/v1/tasks", listed.status_code)
    assert (told["bytes"], told["client"], told["caller"]) == (len(listed.content), "127.0.0.1", "ann")
    assert told["duration"] > 0
    assert (vars(second)["method"], vars(second)["status"]) == ("POST", 403)
    assert "a secret" not in str([vars(record) for record in caplog.records])


async def test_an_api_key_in_the_path_is_cut_in_the_log(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    await client.delete("/jobs/api/v1/admin/keys/tf_0123456789_zebra-1_A")
    [line] = [record for record in caplog.records if record.name == LOGGER]
    assert vars(line)["path"] == "/jobs/api/v1/admin/keys/tf_0123456789"
    assert "zebra" not in str(vars(line))


async def test_probes_are_logged_only_when_they_fail(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    assert (await client.get("/jobs/healthz")).status_code == 200
    assert (await client.get("/jobs/metrics")).status_code == 503
    assert [vars(record)["path"] for record in caplog.records if record.name == LOGGER] == ["/jobs/metrics"]


async def test_no_access_log_is_written_unless_it_is_switched_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    framework = framework_in(tmp_path, access_log=False)
    transport = httpx.ASGITransport(create_app(framework))
    async with framework.store_only(), httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        assert (await client.get("/api/v1/tasks")).status_code == 200
    assert [record for record in caplog.records if record.name == LOGGER] == []
