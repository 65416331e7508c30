"""The HTTP interface on a real socket: streams, limits, start and stop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import EventSource, ServerSentEvent, aconnect_sse

# Read before a loop runs: an adapter is imported when it is first needed, and reading a module blocks.
import taskframework.brokers.embedded
import taskframework.stores.sqlite  # noqa: F401
from taskframework import ConfigurationError, Settings, TaskFramework
from taskframework.api import feed, following
from taskframework.api import server as server_module
from taskframework.api.server import ApiServer, serving, serving_health
from taskframework.model.task import Task
from taskframework.stores.base import Inserted
from tests.support.eventually import eventually
from tests.support.kitchen_sink import ALL, Waits

TASKS = "/api/v1/tasks"
COUNT_WORDS = {"task_type": "count-words", "parameters": {"text": "one two three"}}
WAITS = {"task_type": "waits"}
#: Its events are large: the correlation id is in each.
LARGE = {"task_type": "counts", "correlation_id": "x" * 200}

Serve = Callable[..., AbstractAsyncContextManager["Api"]]


class Api(httpx.AsyncClient):
    """A client of a server in this process."""

    def __init__(self, framework: TaskFramework, server: ApiServer) -> None:
        super().__init__(base_url=server.url, trust_env=False, timeout=20)
        self.framework = framework
        self.server = server
        app: Any = server.config.app
        self.feed: feed.Feed = app.state.feed

    async def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self.post(TASKS, json=body)
        assert answer.status_code == 202, answer.text
        task: dict[str, Any] = answer.json()
        return task

    def events_of(self, task: dict[str, Any], **headers: str) -> AbstractAsyncContextManager[EventSource]:
        return aconnect_sse(self, "GET", f"{TASKS}/{task['task_id']}/events", headers=headers)


def settings(tmp_path: Path, **sections: dict[str, Any]) -> Settings:
    return Settings.model_validate(
        {
            "store": {"url": f"sqlite:///{tmp_path / 'tasks.db'}"},
            "shutdown": {"await_termination_timeout": "200ms"},
            "api": {"port": 0} | sections.pop("api", {}),
            **sections,
        }
    )


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Run a framework with a worker and serve it on a free port: `async with serve() as api`."""

    @asynccontextmanager
    async def served(*, worker: bool = True, **sections: dict[str, Any]) -> AsyncIterator[Api]:
        Waits.gate, Waits.started = asyncio.Event(), 0
        framework = TaskFramework(settings(tmp_path, **sections))
        for executable in ALL:
            framework.register(executable)
        async with (
            framework.running(worker=worker),
            serving(framework) as server,
            Api(framework, server) as api,
        ):
            yield api

    return served


def independent_client(api: Api) -> httpx.AsyncClient:
    """A client that outlives the server."""
    return httpx.AsyncClient(base_url=api.base_url, trust_env=False, timeout=20)


async def stuck_reader(api: Api) -> socket.socket:
    """A client that follows all events and reads none."""
    reader, loop = socket.socket(), asyncio.get_running_loop()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.setblocking(False)
    await loop.sock_connect(reader, (api.base_url.host, api.base_url.port))
    await loop.sock_sendall(reader, b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await eventually(lambda: api.feed.watchers)
    return reader


async def refuses_connections(api: Api) -> bool:
    try:
        _, writer = await asyncio.open_connection(api.base_url.host, api.base_url.port)
    except ConnectionError:
        return True
    writer.close()
    return False


async def names_until_end(source: EventSource) -> list[str]:
    return [event.event async for event in source.aiter_sse()]


async def one(source: AsyncIterator[ServerSentEvent]) -> ServerSentEvent:
    async with asyncio.timeout(20):
        return await anext(source)


async def test_a_task_is_followed_from_its_snapshot_to_its_end(serve: Serve) -> None:
    async with serve() as api:
        task = await api.submit(WAITS)
        await eventually(lambda: Waits.started)
        async with api.events_of(task) as source:
            assert source.response.headers["content-type"].startswith("text/event-stream")
            assert source.response.headers["x-content-type-options"] == "nosniff"
            events = source.aiter_sse()
            snapshot = await one(events)
            assert (snapshot.event, snapshot.json()["status"]) == ("snapshot", "RUNNING")
            assert snapshot.id == f"{task['task_id']}-2"
            Waits.gate.set()
            last = await one(events)
            assert [event async for event in events] == [], "the stream ends with the task"
        cloud_event = last.json()
        assert (last.event, last.id) == ("task.completed", f"{task['task_id']}-3")
        assert (cloud_event["specversion"], cloud_event["subject"]) == ("1.0", task["task_id"])
        assert cloud_event["data"]["result"] == "done"


async def test_who_connects_again_gets_what_happened_meanwhile(serve: Serve) -> None:
    async with serve() as api:
        task = await api.submit(COUNT_WORDS)
        await api.framework.handle(task["task_id"]).finished(timeout=20)
        async with api.events_of(task, **{"Last-Event-ID": f"{task['task_id']}-1"}) as source:
            assert await names_until_end(source) == ["task.started", "task.completed"]
        async with api.events_of(task, **{"Last-Event-ID": f"{task['task_id']}-2-p1"}) as source:
            assert await names_until_end(source) == ["task.completed"]
        known = await api.get(f"{TASKS}/{task['task_id']}/events", headers={"Last-Event-ID": f"{task['task_id']}-3"})
        assert known.status_code == 204, "a browser does not connect again"


@pytest.mark.parametrize(
    "given", ["", "3", "x-3", "{id}-", "{id}-x", "{id}-3x", "{id}-9999999999", "{id}--1", "{id}-\u00b2"]
)
async def test_another_last_event_id_is_refused(serve: Serve, given: str) -> None:
    async with serve(worker=False) as api:
        task = await api.submit(COUNT_WORDS)
        header = given.replace("{id}", task["task_id"]).encode("latin-1")
        answer = await api.get(f"{TASKS}/{task['task_id']}/events", headers=[(b"Last-Event-ID", header)])
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


async def test_all_events_are_followed_from_the_moment_of_the_answer(serve: Serve) -> None:
    async with serve() as api, aconnect_sse(api, "GET", "/api/v1/events") as source:
        tasks = [await api.submit(COUNT_WORDS) for _ in range(3)]
        seen: dict[str, list[str]] = {task["task_id"]: [] for task in tasks}
        async with asyncio.timeout(20):
            async for event in source.aiter_sse():
                seen[event.json()["subject"]].append(event.event)
                if all(names[-1:] == ["task.completed"] for names in seen.values()):
                    break
        for names in seen.values():
            assert [name for name in names if name != "task.progress"] == [
                "task.submitted", "task.started", "task.completed",
            ]  # fmt: skip


async def test_who_was_away_is_told_that_events_of_all_tasks_are_not_repeated(serve: Serve) -> None:
    async with serve() as api, aconnect_sse(api, "GET", "/api/v1/events", headers={"Last-Event-ID": "x-1"}) as source:
        assert (await one(source.aiter_sse())).event == "resync"


async def test_a_silent_stream_sends_heartbeats(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "HEARTBEAT_SECONDS", 0.01)
    async with serve(worker=False) as api:
        task = await api.submit(COUNT_WORDS)
        for path in (f"{TASKS}/{task['task_id']}/events", "/api/v1/events"):
            async with api.stream("GET", path) as answer:
                async with asyncio.timeout(20):
                    beats = 0
                    async for line in answer.aiter_lines():
                        beats += line.startswith(":")
                        if beats == 3:
                            break


async def test_streams_whose_readers_leave_are_forgotten(serve: Serve) -> None:
    async with serve(worker=False) as api:
        task = await api.submit(COUNT_WORDS)
        state = api.feed
        async with AsyncExitStack() as stack:
            for _ in range(5):
                await stack.enter_async_context(api.events_of(task))
                await stack.enter_async_context(aconnect_sse(api, "GET", "/api/v1/events"))
            assert state.watchers == 10
        await eventually(lambda: state.watchers == 0)


async def test_a_reader_that_stops_reading_is_cut_off_with_resync(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MAX_WAITING_BYTES", 50_000)
    async with serve() as api:
        loop, state = asyncio.get_running_loop(), api.feed
        with closing(await stuck_reader(api)) as reader:
            [watcher] = state._watchers[None]
            while not watcher.is_behind:
                await api.post(
                    f"{TASKS}/bulk", json={"tasks": [{"task_type": "returns", "parameters": "x" * 5000}] * 50}
                )
            received = bytearray()
            async with asyncio.timeout(20):
                while data := await loop.sock_recv(reader, 65536):
                    received += data
        assert b"event: resync\n" in received.rpartition(b"event: task.")[2]
        assert state.watchers == 0


async def test_a_body_without_end_is_refused_while_it_comes(serve: Serve) -> None:
    async with serve(worker=False, api={"max_body": "64KiB"}) as api:
        sent = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            while sent < 4_000_000:
                sent += 16_384
                yield b" " * 16_384

        answer = await api.post(TASKS, content=endless(), headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
        assert (await api.get("/healthz")).status_code == 200


async def test_a_head_that_is_no_http_is_refused(serve: Serve) -> None:
    async with serve(worker=False) as api:
        for head in [
            b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: a\rb\r\n\r\n",
            b"\x16\x03\x01\x02\x00 garbage\r\n\r\n",
            b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n",
        ]:
            reader, writer = await asyncio.open_connection(api.base_url.host, api.base_url.port)
            with closing(writer):
                writer.write(head)
                assert (await reader.read(12)) == b"HTTP/1.1 400"


async def test_stopping_ends_open_streams_and_waits_for_no_reader(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_GRACE_SECONDS", 600)  # who waits for it to pass, fails by timeout
    async with AsyncExitStack() as running, AsyncExitStack() as stack:
        api = await running.enter_async_context(serve(worker=False))
        task = await api.submit(COUNT_WORDS)
        client = await stack.enter_async_context(independent_client(api))
        streams = [
            await stack.enter_async_context(client.stream("GET", path))
            for path in [f"{TASKS}/{task['task_id']}/events", "/api/v1/events"] * 25
        ]
        ending = asyncio.create_task(running.aclose())
        for answer in streams:
            text = (await answer.aread()).decode()
            assert text.endswith("\n\n"), "the answer is whole"
            assert "resync" not in text
        await ending


async def test_a_reader_that_stopped_reading_does_not_hold_up_the_stop(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_GRACE_SECONDS", 1)
    async with AsyncExitStack() as running:
        api = await running.enter_async_context(serve())
        with closing(await stuck_reader(api)):
            [watcher] = api.feed._watchers[None]
            # Only what does not fit into the buffers of both sides is left waiting.
            while not watcher._heard:
                await api.post(f"{TASKS}/bulk", json={"tasks": [LARGE] * 50})
            await running.aclose()
            await eventually(lambda: not api.server.server_state.connections, what="the connection is given up")
            assert api.feed.watchers == 0


async def test_a_request_under_way_is_answered_before_the_stop(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()
    async with AsyncExitStack() as running:
        api = await running.enter_async_context(serve(worker=False))
        insert = api.framework.desk.store.insert

        async def slowly(task: Task) -> Inserted:
            arrived.set()
            await go_on.wait()
            return await insert(task)

        monkeypatch.setattr(api.framework.desk.store, "insert", slowly)
        async with independent_client(api) as client:
            answer = asyncio.create_task(client.post(TASKS, json=COUNT_WORDS))
            await arrived.wait()
            ending = asyncio.create_task(running.aclose())
            await eventually(lambda: refuses_connections(api))
            go_on.set()
            assert (await answer).status_code == 202
            await ending


async def test_a_request_that_does_not_end_is_answered_all_the_same(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "_GRACE_SECONDS", 0)
    arrived = asyncio.Event()

    async def never(_: Task) -> None:
        arrived.set()
        await asyncio.Event().wait()

    async with AsyncExitStack() as running:
        api = await running.enter_async_context(serve(worker=False))
        monkeypatch.setattr(api.framework.desk.store, "insert", never)
        async with independent_client(api) as client:
            answer = asyncio.create_task(client.post(TASKS, json=COUNT_WORDS))
            await arrived.wait()
            await running.aclose()
            assert ((await answer).status_code, (await answer).json()["code"]) == (503, "stopping")
    assert "Traceback" not in caplog.text


async def test_it_says_ready_once_with_its_address(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    framework = TaskFramework(settings(tmp_path))
    async with framework.running(worker=False, api=True):
        [ready] = [record for record in caplog.records if record.getMessage() == "ready"]
        found = vars(ready)
        assert (found["role"], found["host"]) == ("api", "127.0.0.1")
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"http://127.0.0.1:{found['port']}/healthz")).status_code == 200
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


async def test_a_port_in_use_is_an_error_that_says_so(tmp_path: Path) -> None:
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


async def test_a_worker_serves_its_health(tmp_path: Path) -> None:
    framework = TaskFramework(settings(tmp_path, worker={"http_port": 0}))
    async with (
        framework.running(worker=True),
        serving_health(framework) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False) as client,
    ):
        assert (await client.get("/readyz")).json()["status"] == "ready"
        assert (await client.get(TASKS)).status_code == 404
