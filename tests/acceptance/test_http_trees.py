"""A task and everything below it, followed over HTTP by clients that are cut, change the process, or never return."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from httpx_sse import aconnect_sse

# Read before a loop runs: an adapter is imported when it is first needed, and reading a module blocks.
import taskframework.brokers.rabbitmq.broker
import taskframework.stores.mongo.store  # noqa: F401
from taskframework import BackgroundTaskExecutable, RetryableError, SubtaskSummary, TaskContext, TaskFramework
from taskframework.api import feed
from taskframework.api.tree_follower import TreeFollower
from taskframework.testing.eventually import eventually
from tests.acceptance.http_support import BATCHES, TASKS, Api, independent_client, one, read_with_cuts, serve, settings
from tests.support.event_reader import Reader


class Grows(BackgroundTaskExecutable[dict[str, Any], Any]):
    """Has as many sub-tasks below it, level by level, as its parameters say, and then a second round of one."""

    task_type = "grows"

    async def execute(self, context: TaskContext[dict[str, Any]]) -> Any:
        await context.update_progress("grows")
        if not (levels := context.parameters["levels"]):
            if context.attempt == 1 and random.random() < 0.2:
                raise RetryableError("not yet", delay=0)
            return "a leaf"
        await context.submit_subtasks("grows", [{"levels": levels[1:]}] * levels[0])
        return None

    async def on_subtasks_finished(self, context: TaskContext[dict[str, Any]], summary: SubtaskSummary) -> Any:
        if summary.total > 1:
            await context.submit_subtask("grows", {"levels": []})
        return summary.succeeded


class Gate(BackgroundTaskExecutable[None, None]):
    """A parent of one task that waits for the test."""

    task_type = "gate"

    async def execute(self, context: TaskContext[None]) -> None:
        await context.submit_subtask("waits", None)


LEVELS = [6, 4]
MODULES_OF_STREAMS = {
    f"taskframework.api.{name}"
    for name in ("event_streams", "feed", "tree_follower", "items_follower", "task_follower", "places")
}


def tree_of(task: dict[str, Any]) -> str:
    return f"{TASKS}/{task['task_id']}/events?tree=true"


async def assert_told_of_everything(api: Api, task: dict[str, Any], reader: Reader) -> None:
    tasks = [(await api.get(f"{TASKS}/{task_id}")).json() for task_id in reader.has]
    assert {one["task_id"]: one["status"] for one in tasks} == dict.fromkeys(reader.has, "COMPLETED")
    assert {one["task_id"]: one["history"][-1]["sequence"] for one in tasks} == {
        task_id: sequence for task_id, (sequence, _) in reader.has.items()
    }
    assert len(tasks) == 1 + 1 + 6 * (1 + 4 + 1), "a parent has a second round of one"


@pytest.mark.parametrize("max_open_tasks", [3, 256])
async def test_a_reader_that_is_cut_twenty_times_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_open_tasks: int
) -> None:
    monkeypatch.setattr(TreeFollower, "max_open_tasks", max_open_tasks)
    async with serve(tmp_path, extra=[Grows]) as api:
        task, reader = await api.submit({"task_type": "grows", "parameters": {"levels": LEVELS}}), Reader()
        assert await read_with_cuts([api], tree_of(task), reader) > 20
        assert reader.resyncs == 0
        await assert_told_of_everything(api, task, reader)
        again = await api.get(tree_of(task), headers={"Last-Event-ID": str(reader.last_id)})
        assert again.status_code == 204, "a browser does not connect again"


async def test_a_reader_that_changes_the_process_misses_nothing(tmp_path: Path, amqp_url: str, mongo_url: str) -> None:
    servers: dict[str, Any] = {"broker": {"url": amqp_url}, "store": {"url": mongo_url}}
    worker = TaskFramework(settings(tmp_path, **servers))
    worker.register(Grows)
    async with (
        serve(tmp_path, worker=False, extra=[Grows], **servers) as first,
        serve(tmp_path, worker=False, extra=[Grows], **servers) as second,
        worker.running(worker=True),
    ):
        task, reader = await first.submit({"task_type": "grows", "parameters": {"levels": LEVELS}}), Reader()
        assert await read_with_cuts([first, second], tree_of(task), reader) > 20
        await assert_told_of_everything(second, task, reader)
        await eventually(lambda: first.feed.watcher_count == second.feed.watcher_count == 0)


async def test_a_tree_is_followed_from_any_task_in_it(tmp_path: Path) -> None:
    async with serve(tmp_path, extra=[Grows]) as api:
        task = await api.submit({"task_type": "grows", "parameters": {"levels": LEVELS}})
        await api.framework.handle(task["task_id"]).result(timeout=60)
        below = (await api.get(f"{TASKS}/{task['task_id']}/subtasks", params={"round": 1})).json()["items"][2]
        reader = Reader(above=below["parent_task_id"])
        assert await reader.connect(api, tree_of(below))
        assert len(reader.has) == 1 + 4 + 1


@pytest.mark.parametrize(
    "given", ["{id}-3", "{id}-tree-", "{id}-tree-x", "x-tree-eJwzBgAANAA0", "{id}-items-eJwzBgAANAA0"]
)
async def test_another_last_event_id_is_refused(tmp_path: Path, given: str) -> None:
    async with serve(tmp_path, worker=False, extra=[Gate]) as api:
        task = await api.submit({"task_type": "gate"})
        answer = await api.get(tree_of(task), headers={"Last-Event-ID": given.replace("{id}", task["task_id"])})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert api.feed.watcher_count == 0


async def test_an_unknown_parameter_is_refused(tmp_path: Path) -> None:
    async with serve(tmp_path, worker=False, extra=[Gate]) as api:
        task = await api.submit({"task_type": "gate"})
        answer = await api.get(f"{TASKS}/{task['task_id']}/events?trees=true")
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


async def test_a_thousand_clients_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    async with serve(tmp_path, extra=[Gate]) as api:
        task = await api.submit({"task_type": "gate"})
        batch = await api.post(BATCHES, json={"task_type": "waits", "items": [None] * 3})
        of_batch = f"{BATCHES}/{batch.json()['batch_id']}/events"
        paths = [tree_of(task), f"{TASKS}/{task['task_id']}/events", of_batch, f"{of_batch}?items=true"]
        paths += ["/api/v1/events", "/api/v1/events?task_type=waits"]
        async with api.stream("GET", paths[0]):  # what the first connection makes stays
            pass
        await eventually(lambda: not api.server.server_state.connections)
        before, kept = len(asyncio.all_tasks()), objects_of_streams()
        for _ in range(5):
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(independent_client(api)) for _ in range(4)]
                together = [client.stream("GET", path) for client in clients for path in paths for _ in range(9)]
                answers = await asyncio.gather(*map(stack.enter_async_context, together))
                assert {answer.status_code for answer in answers} == {200}
                assert api.feed.watcher_count == len(answers)
        await eventually(lambda: api.feed.watcher_count == 0)
        assert not api.feed._watchers
        assert not api.feed._parent_watchers
        assert api.feed._subscriber is None
        await eventually(lambda: not api.server.server_state.connections and len(asyncio.all_tasks()) <= before)
        await eventually(lambda: objects_of_streams() <= kept)


def objects_of_streams() -> Counter[str]:
    """What is in memory of what streams are made of: how many objects, by the module of their class."""
    gc.collect()
    return Counter(name for one in gc.get_objects() if (name := type(one).__module__) in MODULES_OF_STREAMS)


async def test_a_slow_reader_goes_on_where_it_was_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MAX_WAITING_BYTES", 1)  # one event at a time
    async with serve(tmp_path, extra=[Grows]) as api:
        task, reader = await api.submit({"task_type": "grows", "parameters": {"levels": LEVELS}}), Reader()
        async with asyncio.timeout(60):
            while not reader.is_done:
                await reader.connect(api, tree_of(task))
        assert reader.resyncs > 0
        await assert_told_of_everything(api, task, reader)


async def test_a_reader_of_one_task_type_gets_only_its_events(tmp_path: Path) -> None:
    async with (
        serve(tmp_path, extra=[Gate]) as api,
        aconnect_sse(api, "GET", "/api/v1/events?task_type=gate") as source,
    ):
        await api.submit({"task_type": "count-words", "parameters": {"text": "x"}})
        task = await api.submit({"task_type": "gate"})
        events = source.aiter_sse()
        assert [(await one(events)).json()["subject"] for _ in range(3)] == [task["task_id"]] * 3
