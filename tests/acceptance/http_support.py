"""A server on a real socket in this process, its client, and the ways to read an event stream."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import EventSource, ServerSentEvent, aconnect_sse

# Read before a loop runs: an adapter is imported when it is first needed, and reading a module blocks.
import taskframework.brokers.embedded
import taskframework.stores.sqlite  # noqa: F401
from taskframework import BackgroundTaskExecutable, Settings, TaskFramework
from taskframework.api import feed
from taskframework.api.server import ApiServer, serving
from taskframework.events.external import lifecycle_events, progress_event, to_message
from taskframework.model.scope import EVERYONE
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from tests.support.event_reader import Reader
from tests.support.kitchen_sink import ALL, Waits

TASKS = "/api/v1/tasks"
BATCHES = "/api/v1/batches"
COUNT_WORDS = {"task_type": "count-words", "parameters": {"text": "one two three"}}
WAITS = {"task_type": "waits"}


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


@asynccontextmanager
async def serve(
    folder: Path,
    *,
    worker: bool = True,
    extra: Sequence[type[BackgroundTaskExecutable[Any, Any]]] = (),
    **sections: dict[str, Any],
) -> AsyncIterator[Api]:
    """Run a framework with the test tasks and its store in the folder, and serve it on a free port."""
    Waits.gate, Waits.started = asyncio.Event(), 0
    framework = TaskFramework(settings(folder, **sections))
    for executable in [*ALL, *extra]:
        framework.register(executable)
    async with (
        framework.running(worker=worker, api=not worker),  # else it would only open the store
        serving(framework) as server,
        Api(framework, server) as api,
    ):
        yield api


def independent_client(api: Api) -> httpx.AsyncClient:
    """A client that outlives the server."""
    return httpx.AsyncClient(base_url=api.base_url, trust_env=False, timeout=20)


async def stuck_reader(api: Api, path: str = "/api/v1/events") -> socket.socket:
    """A client that follows events, all if nothing else is said, and reads none."""
    reader, loop = socket.socket(), asyncio.get_running_loop()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.setblocking(False)
    await loop.sock_connect(reader, (api.base_url.host, api.base_url.port))
    await loop.sock_sendall(reader, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    await eventually(lambda: api.feed.watcher_count)
    return reader


async def tell_much(api: Api) -> None:
    """Publish an event that fills the buffers of a connection soon."""
    task = new_task(result="x" * 500_000)
    message = to_message(lifecycle_events(task, 0, "here"))
    await api.framework.process.broker.publish_event(message)
    await asyncio.sleep(0)


async def tell_progress(api: Api, task_id: str, revision: int) -> None:
    """Publish an event of a task's progress that fills the buffers of a connection soon."""
    task = await api.framework.services.tasks.get(task_id, EVERYONE)
    event = progress_event(task.evolve(progress="x" * 500_000, progress_revision=revision), "here")
    await api.framework.process.broker.publish_event(to_message([event]))


async def read_with_cuts(apis: Sequence[Api], path: str, reader: Reader) -> int:
    """Read a stream to its end, cut twenty times, each time from another process; how many connections that took."""
    connections = 0
    async with asyncio.timeout(60):
        while not reader.is_done:
            client = apis[connections % len(apis)]
            connections += 1
            await reader.connect(client, path, events=random.randint(1, 6) if connections <= 20 else None)
    return connections


async def assert_told_of_all_items(client: httpx.AsyncClient, batch_id: str, reader: Reader) -> None:
    """What a reader was told of a batch and its items is what became of them."""
    results = (await client.get(f"{BATCHES}/{batch_id}/results", params={"limit": 500})).json()["items"]
    assert [reader.items[index] for index in sorted(reader.items)] == results
    task = (await client.get(f"{TASKS}/{batch_id}")).json()
    assert reader.has[batch_id] == (task["history"][-1]["sequence"], 0)
    assert reader.resyncs == 0


async def names_until_end(source: EventSource) -> list[str]:
    return [event.event async for event in source.aiter_sse() if event.data]


async def one(source: AsyncIterator[ServerSentEvent]) -> ServerSentEvent:
    """The next event; a heartbeat, which httpx-sse takes for an event without data, is none."""
    async with asyncio.timeout(20):
        while not (event := await anext(source)).data:
            pass
        return event
