"""The results of a stream as server-sent events: once and in order, for readers that are cut or change the process."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import aconnect_sse

# Read before a loop runs: an adapter is imported when it is first needed, and reading a module blocks.
import taskframework.brokers.rabbitmq.broker
import taskframework.stores.mongo.store  # noqa: F401
from taskframework import TaskFramework
from taskframework.api import task_follower
from taskframework.testing.eventually import eventually
from tests.acceptance.http_support import TASKS, WAITS, Api, independent_client, serve, settings
from tests.support.kitchen_sink import ALL, Waits

RESULTS = "/api/v1/streams/o/results"
COUNT = 60
#: Three percent that do not answer as long as somebody reads.
SILENT = {13, 40}
#: A busy machine must end all that answer within this time of the first one.
GAPS: dict[str, Any] = {"streams": {"gap": "5s"}}


async def submit(api: Api) -> None:
    stream = {"key": "o", "mode": "ordered_results"}
    counts = [{"task_type": "count-words", "parameters": {"text": "word " * number}} for number in range(COUNT)]
    tasks = [{**(WAITS if number in SILENT else task), "stream": stream} for number, task in enumerate(counts)]
    answer = await api.post(f"{TASKS}/bulk", json={"tasks": tasks})
    assert {item["status"] for item in answer.json()["items"]} == {202}


async def read(apis: Sequence[Api], *, cuts: int = 0, first: int = 0) -> list[dict[str, Any]]:
    """All results, by so many connections that are cut and a last one."""
    found: list[dict[str, Any]] = []
    headers: dict[str, str] = {}
    async with asyncio.timeout(60):
        for connection in itertools.count():
            most = random.randint(1, 6) if connection < cuts else COUNT
            client, query = apis[connection % len(apis)], f"{RESULTS}?from_position={first}"
            async with aconnect_sse(client, "GET", query, headers=headers) as source:
                async for event in source.aiter_sse():
                    if not event.data:
                        continue
                    result = json.loads(event.data)
                    assert (event.event, event.id) == ("result", str(result["position"]))
                    headers = {"Last-Event-ID": event.id}
                    found.append(result)
                    most -= 1
                    if result["position"] == COUNT - 1:
                        return found
                    if not most:
                        break
    raise AssertionError("unreachable")


def shown(results: Sequence[dict[str, Any]]) -> list[tuple[int, str, Any]]:
    return [(result["position"], result["status"], result["result"]) for result in results]


EXPECTED = [
    (number, "SKIPPED", None) if number in SILENT else (number, "COMPLETED", {"words": number})
    for number in range(COUNT)
]


async def test_readers_that_are_cut_get_every_result_once_and_in_order(tmp_path: Path) -> None:
    async with serve(tmp_path, **GAPS) as api:
        await submit(api)
        readers = [read([api], cuts=20), read([api]), read([api], first=30)]
        cut, whole, late = await asyncio.gather(*readers)
        assert (shown(cut), shown(whole), shown(late)) == (EXPECTED, EXPECTED, EXPECTED[30:])
        Waits.gate.set()
        assert shown(await read([api])) == EXPECTED


async def test_readers_that_change_the_process_get_every_result_once_and_in_order(
    tmp_path: Path, amqp_url: str, mongo_url: str
) -> None:
    servers: dict[str, Any] = {"broker": {"url": amqp_url}, "store": {"url": mongo_url}, **GAPS}
    worker = TaskFramework(settings(tmp_path, **servers))
    for executable in ALL:
        worker.register(executable)
    async with (
        serve(tmp_path, worker=False, **servers) as first,
        serve(tmp_path, worker=False, **servers) as second,
        worker.running(worker=True),
    ):
        await submit(first)
        results = await asyncio.gather(read([first, second], cuts=20), read([second, first], cuts=20))
        assert [shown(found) for found in results] == [EXPECTED] * 2
        Waits.gate.set()


async def test_a_silent_stream_sends_heartbeats_and_ends_with_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_follower, "HEARTBEAT_SECONDS", 0.05)
    async with serve(tmp_path, worker=False) as api:
        await api.submit({**WAITS, "stream": {"key": "o", "mode": "ordered_results"}})
        client, heard = independent_client(api), list[str]()

        async def listen() -> None:
            async with client.stream("GET", RESULTS, headers={"Accept": "text/event-stream"}) as answer:
                async for line in answer.aiter_lines():
                    heard.append(line)

        listening = asyncio.create_task(listen())
        await eventually(lambda: heard.count(": heartbeat") > 3, timeout=20)
        assert api.feed.watcher_count == 1
    try:
        await asyncio.wait_for(listening, 20)
    except httpx.TransportError:
        pass
    finally:
        await client.aclose()
    assert [line for line in heard if line and line != ": heartbeat"] == []
