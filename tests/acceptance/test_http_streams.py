"""Server-sent events on a real socket."""

from __future__ import annotations

import asyncio
import itertools
import sys
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest
from httpx_sse import aconnect_sse

from taskframework.api import feed, sockets, task_follower
from taskframework.api import server as server_module
from taskframework.testing.eventually import eventually
from tests.acceptance.http_support import (
    BATCHES,
    COUNT_WORDS,
    TASKS,
    WAITS,
    Api,
    independent_client,
    names_until_end,
    one,
    serve,
    stuck_reader,
    tell_much,
    tell_progress,
)
from tests.support.kitchen_sink import Waits


async def test_a_task_is_followed_from_its_snapshot_to_its_end(tmp_path: Path) -> None:
    async with serve(tmp_path) as api:
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
            assert [event async for event in events if event.data] == [], "the stream ends with the task"
        cloud_event = last.json()
        assert (last.event, last.id) == ("task.completed", f"{task['task_id']}-3")
        assert (cloud_event["specversion"], cloud_event["subject"]) == ("1.0", task["task_id"])
        assert cloud_event["data"]["result"] == "done"


async def test_a_reader_that_connects_again_gets_the_events_since_its_last_one(tmp_path: Path) -> None:
    async with serve(tmp_path) as api:
        task = await api.submit(COUNT_WORDS)
        await api.framework.handle(task["task_id"]).finished(timeout=60)
        async with api.events_of(task, **{"Last-Event-ID": f"{task['task_id']}-1"}) as source:
            assert await names_until_end(source) == ["task.started", "task.completed"]
        async with api.events_of(task, **{"Last-Event-ID": f"{task['task_id']}-2-p1"}) as source:
            assert await names_until_end(source) == ["task.completed"]
        known = await api.get(f"{TASKS}/{task['task_id']}/events", headers={"Last-Event-ID": f"{task['task_id']}-3"})
        assert known.status_code == 204, "a browser does not connect again"


@pytest.mark.parametrize(
    "given", ["3", "x-3", "{id}-", "{id}-x", "{id}-3x", "{id}-9999999999", "{id}--1", "{id}-\u00b2"]
)
async def test_another_last_event_id_is_refused(tmp_path: Path, given: str) -> None:
    async with serve(tmp_path, worker=False) as api:
        task = await api.submit(COUNT_WORDS)
        header = given.replace("{id}", task["task_id"]).encode("latin-1")
        answer = await api.get(f"{TASKS}/{task['task_id']}/events", headers=[(b"Last-Event-ID", header)])
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


async def test_an_empty_last_event_id_is_as_none(tmp_path: Path) -> None:
    async with serve(tmp_path, worker=False) as api:
        task = await api.submit(COUNT_WORDS)
        headers = {"Last-Event-ID": ""}
        async with api.events_of(task, **headers) as source:
            assert (await one(source.aiter_sse())).event == "snapshot"
        async with api.stream("GET", "/api/v1/events", headers=headers) as answer:
            assert await anext(answer.aiter_lines()) == ": heartbeat"


async def test_events_of_all_tasks_are_followed_from_the_answer_on(tmp_path: Path) -> None:
    async with serve(tmp_path) as api, aconnect_sse(api, "GET", "/api/v1/events") as source:
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


async def test_a_reader_of_all_tasks_that_was_away_gets_resync(tmp_path: Path) -> None:
    async with (
        serve(tmp_path) as api,
        aconnect_sse(api, "GET", "/api/v1/events", headers={"Last-Event-ID": "x-1"}) as source,
    ):
        assert (await one(source.aiter_sse())).event == "resync"


async def test_a_silent_stream_sends_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_follower, "HEARTBEAT_SECONDS", 0.01)
    async with serve(tmp_path, worker=False) as api:
        task = await api.submit(COUNT_WORDS)
        for path in (f"{TASKS}/{task['task_id']}/events", "/api/v1/events"):
            async with api.stream("GET", path) as answer:
                async with asyncio.timeout(20):
                    beats = 0
                    async for line in answer.aiter_lines():
                        beats += line.startswith(":")
                        if beats == 3:
                            break


async def test_streams_whose_readers_leave_are_forgotten(tmp_path: Path) -> None:
    async with serve(tmp_path, worker=False) as api:
        task = await api.submit(COUNT_WORDS)
        state = api.feed
        async with AsyncExitStack() as stack:
            for _ in range(5):
                await stack.enter_async_context(api.events_of(task))
                await stack.enter_async_context(aconnect_sse(api, "GET", "/api/v1/events"))
            assert state.watcher_count == 10
        await eventually(lambda: state.watcher_count == 0)


STREAMS = {
    "all": "/api/v1/events",
    "task": "/api/v1/tasks/{task}/events",
    "tree": "/api/v1/tasks/{task}/events?tree=true",
    "batch": "/api/v1/batches/{batch}/events",
    "items": "/api/v1/batches/{batch}/events?items=true",
}


async def streams_of(api: Api) -> dict[str, tuple[str, str]]:
    """The path of each stream, and a task of which it tells: one that runs, or a batch that waits."""
    task = await api.submit(WAITS)
    batch = (await api.post(BATCHES, json={"task_type": "waits", "items": [None]})).json()
    ids = {"task": task["task_id"], "batch": batch["batch_id"]}
    return {
        name: (path.format_map(ids), ids["batch" if "{batch}" in path else "task"]) for name, path in STREAMS.items()
    }


@pytest.mark.parametrize("name", STREAMS)
async def test_a_reader_that_stops_reading_is_cut_off_with_resync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(feed, "MAX_WAITING_BYTES", 50_000)
    async with serve(tmp_path) as api:
        loop, state = asyncio.get_running_loop(), api.feed
        path, task_id = (await streams_of(api))[name]
        await eventually(lambda: Waits.started == 2)
        with closing(await stuck_reader(api, path)) as reader:
            [[watcher]] = state._watchers.values()
            for revision in itertools.count(1_000):
                if watcher.has_missed_events:
                    break
                await tell_progress(api, task_id, revision)
            received = bytearray()
            async with asyncio.timeout(20):
                while data := await loop.sock_recv(reader, 65536):
                    received += data
        assert b"event: resync\n" in received.rpartition(b"event: task.")[2]
        await eventually(lambda: state.watcher_count == 0)


async def test_stopping_ends_open_streams_and_waits_for_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_GRACE_SECONDS", 600)  # who waits for it to pass, fails by timeout
    async with AsyncExitStack() as running, AsyncExitStack() as stack:
        api = await running.enter_async_context(serve(tmp_path, worker=False))
        client = await stack.enter_async_context(independent_client(api))
        streams = [
            await stack.enter_async_context(client.stream("GET", path))
            for path, _ in (await streams_of(api)).values()
            for _ in range(12)
        ]
        ending = asyncio.create_task(running.aclose())
        for answer in streams:
            text = (await answer.aread()).decode()
            assert text.endswith("\n\n"), "the answer is whole"
            assert "resync" not in text
        await ending


async def test_a_reader_that_stopped_reading_does_not_hold_up_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_GRACE_SECONDS", 1)
    async with AsyncExitStack() as running:
        api = await running.enter_async_context(serve(tmp_path, worker=False))
        with closing(await stuck_reader(api)):
            [watcher] = api.feed._watchers[None]
            while not watcher.has_missed_events:
                await tell_much(api)
            await running.aclose()
            await eventually(lambda: not api.server.server_state.connections, what="the connection is given up")
            assert api.feed.watcher_count == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets the kernel drop a connection that is stuck")
async def test_a_reader_that_never_reads_again_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_STALLED_MILLISECONDS", 300)
    async with serve(tmp_path, worker=False) as api:
        with closing(await stuck_reader(api)):
            [watcher] = api.feed._watchers[None]
            while not watcher.has_missed_events:
                await tell_much(api)
            await eventually(lambda: api.feed.watcher_count == 0, timeout=30)
            assert not api.server.server_state.connections
