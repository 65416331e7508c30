"""The application inside another one, under a server that is not ours."""

from __future__ import annotations

import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from taskframework import TaskFramework
from taskframework.api.app import create_app
from taskframework.api.server import ApiServer
from taskframework.api.sockets import bind_sockets
from tests.acceptance.http_support import TASKS, settings
from tests.support.command import Started, environment_with, start_program
from tests.support.pages import steps_of

PREFIX = "/background"
BELOW = f"{PREFIX}{TASKS}"
_PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"


@pytest.fixture
def outer(tmp_path: Path) -> Iterator[tuple[Started, httpx.Client]]:
    """uvicorn with the program of docs/embedding.md as it stands, and a client of it."""
    [program] = [step.text for step in steps_of(_PAGE.read_text()) if step.name == "shop.py"]
    (tmp_path / "shop.py").write_text(program)
    command = [sys.executable, "-m", "uvicorn", "shop:app", "--port", "0"]
    server = start_program(command, tmp_path, environment_with({}))
    try:
        [url] = re.findall(r"http://\S+", server.line("running on"))
        with httpx.Client(base_url=url, trust_env=False, timeout=20) as client:
            yield server, client
    finally:
        server.kill()


def test_every_path_honours_the_prefix(outer: tuple[Started, httpx.Client]) -> None:
    _, client = outer
    accepted = client.post(BELOW, json={"task_type": "count-words", "parameters": "one two"})
    assert accepted.status_code == 202
    assert accepted.headers["location"].startswith(f"{BELOW}/")
    assert client.get(accepted.headers["location"]).json()["task_id"] == accepted.json()["task_id"]
    console = client.get(f"{PREFIX}/").text
    parts = re.findall(r'(?:href|src)="([^"]+)"', console)
    assert {client.get(f"{PREFIX}/{part}").status_code for part in parts} == {200}
    page = client.get(f"{PREFIX}/docs").text
    assert f'href="{PREFIX}/openapi.json"' in page
    assert f"POST {BELOW}</code>" in page
    assert client.get(f"{PREFIX}/openapi.json").json()["servers"] == [{"url": PREFIX}]
    refused = client.put(BELOW)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, POST")
    assert refused.json()["type"] == f"{PREFIX}/docs#method_not_allowed"
    assert refused.json()["instance"] == BELOW
    bulk = client.post(f"{BELOW}/bulk", json={"tasks": [{"task_type": "nope"}]}).json()
    assert bulk["items"][0]["error"]["type"] == f"{PREFIX}/docs#unknown_task_type"
    assert f"{BELOW}/{{task_id}}" in client.get("/openapi.json").json()["paths"]
    own = client.post("/texts", params={"text": "one two three"})
    assert client.get(own.json()["task"]).json()["task_type"] == "count-words"


def test_open_streams_do_not_hold_up_the_stop(outer: tuple[Started, httpx.Client]) -> None:
    server, client = outer
    with client.stream("GET", f"{PREFIX}/api/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": heartbeat"
        server.send(signal.SIGTERM)
        assert list(lines) == [""], "the stream ended as a whole"
        assert server.wait() in (0, -signal.SIGTERM)
        assert "the shop closes\n" in server.out, "the application's own lifespan came to its end"


async def test_streams_end_with_the_framework_and_begin_again_with_it(tmp_path: Path) -> None:
    framework = TaskFramework(settings(tmp_path))
    server = ApiServer(create_app(framework), bind_sockets([(socket.AF_INET, "127.0.0.1")], 0, key=""))
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=20) as client:
            for _ in range(2):
                async with AsyncExitStack() as running:
                    await running.enter_async_context(framework.running(worker=True))
                    async with client.stream("GET", "/api/v1/events") as stream:
                        lines = stream.aiter_lines()
                        assert await anext(lines) == ": heartbeat"
                        await running.aclose()
                        assert [line async for line in lines] == [""]
                for path in (TASKS, "/readyz", "/metrics", "/api/v1/events"):
                    answer = await client.get(path)
                    assert (answer.status_code, answer.json()["status"]) == (503, 503), path
                    assert answer.headers["retry-after"]
    finally:
        await server.stop()
