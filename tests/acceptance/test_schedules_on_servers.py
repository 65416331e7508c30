"""Two workers with one schedule, and one of them is killed between submitting a run and moving the schedule on."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from typing import Any

from taskframework.model.query import TaskFilter
from taskframework.model.schedules import run_key
from taskframework.model.scope import EVERYONE
from taskframework.model.task import Task
from taskframework.stores.mongo.store import MongoStore
from tests.support.command import Folder
from tests.support.process import wait_until

SECOND = timedelta(seconds=1)
TICK = {"task_type": "count-words", "parameters": {"text": "one two"}, "every": "1s", "missed": "all"}


def runs(mongo_url: str) -> list[Task]:
    """What was submitted, the oldest first."""

    async def read() -> list[Task]:
        store = MongoStore(mongo_url)
        await store.open()
        try:
            found = await store.list_tasks(EVERYONE, TaskFilter(), limit=500)
        finally:
            await store.close()
        return sorted(found.items, key=lambda task: task.idempotency_key or "")

    return asyncio.run(read())


def test_each_time_of_a_schedule_runs_once_although_a_worker_dies(
    folder: Folder, amqp_url: str, mongo_url: str
) -> None:
    servers: dict[str, Any] = {
        "TASKFRAMEWORK_BROKER__URL": amqp_url,
        "TASKFRAMEWORK_STORE__URL": mongo_url,
        "TASKFRAMEWORK_SCHEDULES__TICK": json.dumps(TICK),
    }
    dying = {**servers, "TASKFRAMEWORK_FAILPOINTS": "schedule.after_submit@2=kill"}
    first = folder.start("worker", "--app", "program", env=dying)
    second = folder.start("worker", "--app", "program", env=servers)
    second.event("ready")
    assert first.wait(timeout=120) == -9
    there = len(runs(mongo_url))
    wait_until(lambda: len(runs(mongo_url)) >= there + 3, "the other worker goes on", timeout=120)
    assert second.end() == 0

    keys = [task.idempotency_key or "" for task in runs(mongo_url)]
    start = datetime.fromisoformat(keys[0].rpartition("/")[2])
    assert keys == [run_key("tick", start + n * SECOND) for n in range(len(keys))], "each time, and each one once"
