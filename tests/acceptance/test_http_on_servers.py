"""The HTTP interface in front of RabbitMQ and MongoDB, with workers elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from httpx_sse import aconnect_sse

# Read before a loop runs: an adapter is imported when it is first needed, and reading a module blocks.
import taskframework.brokers.rabbitmq.broker
import taskframework.stores.mongo.store  # noqa: F401
from taskframework import Settings, TaskFramework
from tests.acceptance.http_support import COUNT_WORDS, TASKS, names_until_end, serve
from tests.support.kitchen_sink import ALL


async def test_a_task_is_submitted_here_and_followed_while_it_is_done_elsewhere(
    tmp_path: Path, amqp_url: str, mongo_url: str
) -> None:
    servers: dict[str, Any] = {"broker": {"url": amqp_url}, "store": {"url": mongo_url}}
    worker = TaskFramework(Settings.model_validate(servers))
    for executable in ALL:
        worker.register(executable)
    async with (
        serve(tmp_path, worker=False, **servers) as api,
        aconnect_sse(api, "GET", "/api/v1/events") as everything,
        worker.running(worker=True),
    ):
        task = await api.submit(COUNT_WORDS)
        async with asyncio.timeout(40), api.events_of(task) as source:
            names = await names_until_end(source)
        # Where the worker was faster than the reader, the snapshot tells of the end.
        assert names == ["snapshot"] or (names[0], names[-1]) == ("snapshot", "task.completed")
        assert (await api.get(f"{TASKS}/{task['task_id']}")).json()["result"] == {"words": 3}

        heard = []
        async with asyncio.timeout(40):
            async for event in everything.aiter_sse():
                heard.append(event.event)
                if event.event == "task.completed":
                    break
        assert [name for name in heard if name != "task.progress"] == [
            "task.submitted", "task.started", "task.completed",
        ]  # fmt: skip
        assert (await api.get("/readyz")).status_code == 200
        metrics = (await api.get("/metrics")).text
        assert 'tasks_queue_depth{lane="normal",task_type="count-words"} 0.0' in metrics
