"""A batch and its items, followed over HTTP by clients that are cut and change the process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

# Read before a loop runs: an adapter is imported when it is first needed, and reading a module blocks.
import taskframework.brokers.rabbitmq.broker
import taskframework.stores.mongo.store  # noqa: F401
from taskframework import TaskFramework
from taskframework.api.items_follower import ItemsFollower
from taskframework.testing.eventually import eventually
from tests.acceptance.http_support import (
    BATCHES,
    Api,
    assert_told_of_all_items,
    read_with_cuts,
    serve,
    settings,
)
from tests.support.event_reader import Reader
from tests.support.kitchen_sink import ALL, Waits

ITEMS = 120
#: Each item has a retry half the time, so that they end in no order.
FLAKY = [{"succeed_at": 1 + n % 2, "delay": 0} for n in range(ITEMS)]


async def submit(api: Api, **changes: Any) -> str:
    body = {"task_type": "flaky", "items": FLAKY} | changes
    answer = await api.post(BATCHES, json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["batch_id"])


@pytest.mark.parametrize("max_open_tasks", [5, 1000])
async def test_a_reader_that_is_cut_twenty_times_gets_each_item_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_open_tasks: int
) -> None:
    monkeypatch.setattr(ItemsFollower, "max_open_tasks", max_open_tasks)
    async with serve(tmp_path) as api:
        batch_id, reader = await submit(api), Reader(begins_at=None)
        assert await read_with_cuts([api], f"{BATCHES}/{batch_id}/events?items=true", reader) > 20
        assert len(reader.items) == ITEMS
        await assert_told_of_all_items(api, batch_id, reader)


async def test_a_reader_that_changes_the_process_gets_each_item_once(
    tmp_path: Path, amqp_url: str, mongo_url: str
) -> None:
    servers: dict[str, Any] = {"broker": {"url": amqp_url}, "store": {"url": mongo_url}}
    worker = TaskFramework(settings(tmp_path, **servers))
    for executable in ALL:
        worker.register(executable)
    async with (
        serve(tmp_path, worker=False, **servers) as first,
        serve(tmp_path, worker=False, **servers) as second,
        worker.running(worker=True),
    ):
        batch_id, reader, own = await submit(first), Reader(begins_at=None), Reader(begins_at=None)
        path = f"{BATCHES}/{batch_id}/events"
        async with asyncio.TaskGroup() as group:
            items = group.create_task(read_with_cuts([first, second], f"{path}?items=true", reader))
            group.create_task(read_with_cuts([second, first], path, own))
        assert items.result() > 20
        assert len(reader.items) == ITEMS
        await assert_told_of_all_items(second, batch_id, reader)
        assert own.has == {batch_id: reader.has[batch_id]}
        await eventually(lambda: first.feed.watcher_count == second.feed.watcher_count == 0)


async def test_the_events_of_a_batch_alone_come_in_sequence_to_its_end(tmp_path: Path) -> None:
    async with serve(tmp_path) as api:
        batch_id, reader = await submit(api), Reader(begins_at=None)
        await read_with_cuts([api], f"{BATCHES}/{batch_id}/events", reader)
        assert reader.items == {}
        assert reader.snapshot["batch_id"] == batch_id
        assert reader.snapshot.keys() == (await api.get(f"{BATCHES}/{batch_id}")).json().keys()
        assert reader.newest["data"]["status"] == "COMPLETED"
        assert reader.newest["data"]["subtasks"]["done"] == ITEMS


async def test_the_items_of_a_batch_that_is_cancelled_end_with_it(tmp_path: Path) -> None:
    async with serve(tmp_path) as api:
        batch_id, reader = await submit(api, task_type="waits", items=[None] * 30), Reader(begins_at=None)
        await eventually(lambda: Waits.started == 30)
        path = f"{BATCHES}/{batch_id}/events?items=true"
        reading = asyncio.create_task(read_with_cuts([api], path, reader))
        await eventually(lambda: reader.last_id)
        await api.post(f"{BATCHES}/{batch_id}/cancel")
        await reading
        assert {item["status"] for item in reader.items.values()} == {"CANCELLED"}
        await assert_told_of_all_items(api, batch_id, reader)


async def test_items_of_an_upload_are_sent_while_it_is_under_way(tmp_path: Path) -> None:
    async with serve(tmp_path) as api:
        has_told = asyncio.Event()

        async def lines() -> Any:
            yield b'{"text": "a"}\n' * 1_000
            await has_told.wait()
            yield b'{"text": "b"}\n' * 10

        headers = {"Content-Type": "application/x-ndjson"}
        upload = asyncio.create_task(api.post(f"{BATCHES}?task_type=count-words", content=lines(), headers=headers))

        async def begun() -> Any:
            return (await api.get(BATCHES)).json()["items"]

        await eventually(begun)
        [batch] = await begun()
        reader = Reader(begins_at=None)
        path = f"{BATCHES}/{batch['batch_id']}/events?items=true"
        async with asyncio.timeout(60):
            while len(reader.items) < 10:
                await reader.connect(api, path, events=5)
            has_told.set()
            assert (await upload).status_code == 202
            while not reader.is_done:
                await reader.connect(api, path)
        assert sorted(reader.items) == list(range(1_010))


@pytest.mark.parametrize("query", ["", "?items=true"])
async def test_a_task_that_is_no_batch_is_not_followed_as_a_batch(tmp_path: Path, query: str) -> None:
    async with serve(tmp_path, worker=False) as api:
        task = await api.submit({"task_type": "waits"})
        answer = await api.get(f"{BATCHES}/{task['task_id']}/events{query}")
        assert (answer.status_code, answer.json()["code"]) == (404, "task_not_found")
        assert api.feed.watcher_count == 0
