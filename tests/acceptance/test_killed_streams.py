"""Streams of a process that dies by kill -9: their readers go on at another one and are told of each event once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from taskframework.testing.eventually import eventually
from tests.acceptance.http_support import BATCHES, TASKS, assert_told_of_all_items
from tests.support.command import Folder, Started
from tests.support.event_reader import Reader

ITEMS, TREES, LEAVES = 40, 3, 8

PROGRAM = f"""
import asyncio
from pathlib import Path

from taskframework import BackgroundTaskExecutable, TaskContext


class Gated(BackgroundTaskExecutable[int, int]):
    '''An odd one waits for the test.'''

    task_type = "gated"

    async def execute(self, context: TaskContext[int]) -> int:
        await context.update_progress("begun")
        while context.parameters % 2 and not Path("open").exists():
            await asyncio.sleep(0.02)
        return context.parameters


class Tree(BackgroundTaskExecutable[int, None]):
    '''Has as many levels below it as its parameters say.'''

    task_type = "tree"

    async def execute(self, context: TaskContext[int]) -> None:
        if context.parameters == 2:
            await context.submit_subtasks("tree", [1] * {TREES})
        else:
            await context.submit_subtasks("gated", range({LEAVES}))
"""


#: A process that will be killed, and what gives the one at which readers go on.
Apis = tuple[Started, Callable[[], Started]]


@pytest.fixture
def program(folder: Folder) -> Folder:
    (folder.path / "program.py").write_text(PROGRAM)
    return folder


@pytest.fixture
def on_servers(program: Folder, amqp_url: str, mongo_url: str) -> Apis:
    """Two API processes and a worker."""
    env = {"TASKFRAMEWORK_BROKER__URL": amqp_url, "TASKFRAMEWORK_STORE__URL": mongo_url}
    first, second = (program.start("api", "--app", "program", "--port", "0", env=env) for _ in range(2))
    program.start("worker", "--app", "program", env=env).event("ready")
    return first, lambda: second


@pytest.fixture
def embedded(program: Folder) -> Apis:
    """One process, and another one after it, which takes over what the first was doing."""
    dev = ("dev", "--app", "program", "--port", "0")
    return program.start(*dev), lambda: program.start(*dev)


def client_of(process: Started) -> httpx.AsyncClient:
    url = f"http://127.0.0.1:{process.event('ready')['port']}"
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=30)


@pytest.mark.parametrize("deployment", ["on_servers", "embedded"])
async def test_readers_go_on_at_another_process(
    program: Folder, deployment: str, request: pytest.FixtureRequest
) -> None:
    killed, other = request.getfixturevalue(deployment)
    async with client_of(killed) as client:
        batch_id = await accepted(client, BATCHES, {"task_type": "gated", "items": list(range(ITEMS))}, "batch_id")
        tree = await accepted(client, TASKS, {"task_type": "tree", "parameters": 2}, "task_id")
        events = f"{BATCHES}/{batch_id}/events"
        paths = [f"{TASKS}/{tree}/events", f"{TASKS}/{tree}/events?tree=true", events, f"{events}?items=true"]
        of_tree, of_items = Reader(), Reader(begins_at=None)
        readers = [Reader(), of_tree, Reader(begins_at=None), of_items]
        async with asyncio.TaskGroup() as group:
            for reader, path in zip(readers, paths, strict=True):
                group.create_task(read_until_cut(client, path, reader))
            await eventually(
                lambda: is_half(of_items, of_tree) and all(reader.last_id for reader in readers), timeout=40
            )
            killed.send(signal.SIGKILL)
    (program.path / "open").touch()
    async with client_of(other()) as client, asyncio.timeout(60):
        await asyncio.gather(*(read_to_end(client, path, reader) for path, reader in zip(paths, readers, strict=True)))
        await assert_told_of_all_items(client, batch_id, of_items)
        assert readers[2].has == {batch_id: of_items.has[batch_id]}
        assert readers[2].newest["data"]["status"] == "COMPLETED"
        tasks = [(await client.get(f"{TASKS}/{task_id}")).json() for task_id in of_tree.has]
    assert {task["task_id"]: task["history"][-1]["sequence"] for task in tasks} == {
        task_id: sequence for task_id, (sequence, _) in of_tree.has.items()
    }
    assert {task["status"] for task in tasks} == {"COMPLETED"}
    assert readers[0].has == {tree: of_tree.has[tree]}
    assert [reader.resyncs for reader in readers] == [0] * len(readers)


def is_half(of_items: Reader, of_tree: Reader) -> bool:
    """Whether each item is told that does not wait, and each task of the tree, of which as many have ended."""
    return len(of_items.items) == ITEMS // 2 and len(of_tree.has) == 1 + TREES * (1 + LEAVES)


async def accepted(client: httpx.AsyncClient, path: str, body: dict[str, Any], name: str) -> str:
    answer = await client.post(path, json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()[name])


async def read_until_cut(client: httpx.AsyncClient, path: str, reader: Reader) -> None:
    with pytest.raises(httpx.TransportError):
        await reader.connect(client, path)


async def read_to_end(client: httpx.AsyncClient, path: str, reader: Reader) -> None:
    while not reader.is_done:
        await reader.connect(client, path)
