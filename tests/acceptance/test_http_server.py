"""The HTTP interface on a real socket: limits, start and stop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path

import httpx
import pytest

from taskframework import ConfigurationError, TaskFramework
from taskframework.api import server as server_module
from taskframework.api.app import create_health_app
from taskframework.api.server import serving, serving_health
from taskframework.model.keys import Role
from taskframework.model.task import Task
from taskframework.stores.replies import Inserted
from taskframework.testing.eventually import eventually
from tests.acceptance.http_support import BATCHES, COUNT_WORDS, TASKS, Api, independent_client, serve, settings


async def refuses_connections(api: Api) -> bool:
    try:
        _, writer = await asyncio.open_connection(api.base_url.host, api.base_url.port)
    except ConnectionError:
        return True
    writer.close()
    return False


async def test_a_body_without_end_is_refused_while_it_comes(tmp_path: Path) -> None:
    async with serve(tmp_path, worker=False, api={"max_body": "64KiB"}) as api:
        sent = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            while sent < 4_000_000:
                sent += 16_384
                yield b" " * 16_384

        answer = await api.post(TASKS, content=endless(), headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
        assert (await api.get("/healthz")).status_code == 200


async def test_a_request_under_way_is_answered_before_the_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()
    async with AsyncExitStack() as running:
        api = await running.enter_async_context(serve(tmp_path, worker=False))
        insert = api.framework.services.store.insert

        async def slowly(tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
            arrived.set()
            await go_on.wait()
            return await insert(tasks)

        monkeypatch.setattr(api.framework.services.store, "insert", slowly)
        async with independent_client(api) as client:
            answer = asyncio.create_task(client.post(TASKS, json=COUNT_WORDS))
            await arrived.wait()
            ending = asyncio.create_task(running.aclose())
            await eventually(lambda: refuses_connections(api))
            go_on.set()
            assert (await answer).status_code == 202
            await ending


async def test_a_request_that_does_not_end_is_answered_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "_GRACE_SECONDS", 0)
    arrived = asyncio.Event()

    async def never(_: Task) -> None:
        arrived.set()
        await asyncio.Event().wait()

    async with AsyncExitStack() as running:
        api = await running.enter_async_context(serve(tmp_path, worker=False))
        monkeypatch.setattr(api.framework.services.store, "insert", never)
        async with independent_client(api) as client:
            answer = asyncio.create_task(client.post(TASKS, json=COUNT_WORDS))
            await arrived.wait()
            await running.aclose()
            assert ((await answer).status_code, (await answer).json()["code"]) == (503, "stopping")
    assert "Traceback" not in caplog.text


async def test_an_upload_that_is_open_at_a_stop_is_answered_and_is_no_error_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest of its body may come for hours, or never."""
    monkeypatch.setattr(server_module, "_GRACE_SECONDS", 0)
    caplog.set_level(logging.INFO)
    head = f"POST {BATCHES}?task_type=waits HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
    async with AsyncExitStack() as running:
        api = await running.enter_async_context(serve(tmp_path, worker=False))
        reader, writer = await asyncio.open_connection(*api.server.address)
        writer.write(f"{head}Content-Type: application/x-ndjson\r\n\r\nnull\n".encode())

        async def is_stored() -> bool:
            return bool((await api.get(TASKS, params={"task_type": "waits"})).json()["items"])

        await eventually(is_stored)
        await running.aclose()
        answer = (await reader.read()).decode()
        writer.close()
    assert answer.startswith("HTTP/1.1 503 ")
    assert '"code":"stopping"' in answer
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
    assert "1 request not done in time" in caplog.text


async def test_the_server_logs_ready_once_with_its_address(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    framework = TaskFramework(settings(tmp_path))
    async with framework.running(worker=False, api=True):
        [ready] = [record for record in caplog.records if record.getMessage() == "ready"]
        found = vars(ready)
        assert (found["role"], found["host"]) == ("api", "127.0.0.1")
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            assert (await client.get(f"http://127.0.0.1:{found['port']}/healthz")).status_code == 200
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


async def test_a_port_in_use_is_an_error_that_names_the_port(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        framework = TaskFramework(settings(tmp_path, api={"port": port}))
        with pytest.raises(ConfigurationError, match=f"Port {port} .* in use"):
            async with framework.running(worker=False, api=True):
                pass
    async with framework.running(worker=False, api=True):
        pass  # everything was given back


async def test_unidentified_callers_are_not_let_in_from_elsewhere(tmp_path: Path) -> None:
    framework = TaskFramework(settings(tmp_path, api={"host": "0.0.0.0"}))
    with pytest.raises(ConfigurationError, match="not identified"):
        async with framework.running(worker=False, api=True):
            pass
    allowed = TaskFramework(settings(tmp_path, api={"host": "0.0.0.0", "allow_remote": True}))
    async with allowed.running(worker=False), serving(allowed) as server:
        assert server.address[0] == "0.0.0.0"


async def test_with_a_key_everybody_may_reach_the_port(tmp_path: Path) -> None:
    framework = TaskFramework(settings(tmp_path, api={"host": "0.0.0.0", "port": 0}))
    async with framework.store_only():
        _, key = await framework.services.keys.create("ada", [Role.READER], by="test")
    async with framework.running(worker=False), serving(framework) as server:
        address = f"http://127.0.0.1:{server.address[1]}{TASKS}"
        async with httpx.AsyncClient(trust_env=False, timeout=60, headers={"Host": "tasks.example.org"}) as client:
            assert (await client.get(address)).status_code == 401
            assert (await client.get(address, headers={"Authorization": f"Bearer {key}"})).status_code == 200


async def test_without_a_key_other_hosts_are_refused(tmp_path: Path) -> None:
    framework = TaskFramework(settings(tmp_path, api={"port": 0, "hosts": ["tasks.example.org"]}))
    async with (
        framework.running(worker=False),
        serving(framework) as server,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        for host, status in ((None, 200), ("tasks.example.org", 200), ("evil.example", 403)):
            answer = await client.get(f"{server.url}{TASKS}", headers={} if host is None else {"Host": host})
            assert answer.status_code == status


async def test_a_worker_serves_its_health(tmp_path: Path) -> None:
    framework = TaskFramework(settings(tmp_path, worker={"http_port": 0}))
    async with (
        framework.running(worker=True),
        serving_health(create_health_app(framework), framework.settings.worker) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as client,
    ):
        assert (await client.get("/readyz")).json()["status"] == "ready"
        assert (await client.get(TASKS)).status_code == 404


async def test_the_log_says_what_is_served_where(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", serving.__module__)
    framework = TaskFramework(settings(tmp_path))
    async with (
        framework.running(worker=True),
        serving(framework),
        serving_health(create_health_app(framework), framework.settings.worker),
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        records = [record for record in caplog.records if record.name == serving.__module__]
        for record in records:
            places = {name: value for name, value in vars(record).items() if str(value).startswith("http://")}
            assert {"health", "metrics"} <= places.keys(), record.getMessage()
            for name, url in places.items():
                answer = await client.get(f"{url}/tasks" if name == "interface" else url)
                assert answer.status_code == 200, name
    ready, health = records
    assert (vars(ready)["role"], health.getMessage()) == ("api", "serving health and metrics")
    assert "console" in vars(ready)
