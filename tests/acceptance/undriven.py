"""Tasks that nothing would ever move on: a defect that no code of ours makes, planted to see it found."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from taskframework.model.status import TaskStatus
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.factories import new_task
from tests.support.command import Folder


def plant_undriven(store: TaskStore) -> None:
    """Store one healthy task, and two that lost what drives them: `unsent` and `unleased`."""

    async def plant() -> None:
        await store.open()
        now = store.now()
        await insert_one(store, new_task(now=now, not_before=now + timedelta(hours=1), task_type="count-words"))
        await insert_one(store, new_task(task_id="unsent", now=now, next_dispatch_at=None, publish_at=None))
        await insert_one(store, new_task(task_id="unleased", now=now, status=TaskStatus.RUNNING, next_dispatch_at=None))
        await store.close()

    asyncio.run(plant())


def finding_of_undriven(folder: Folder, env: Mapping[str, str]) -> None:
    """`doctor` names them and what each of them lacks, says what to do. Else it finds only that no worker runs."""
    found = folder.json("doctor", "--app", "program", code=1, env=env)
    problems = {finding["part"]: finding["problems"] for finding in found["findings"] if finding["problems"]}
    assert problems.keys() == {"tasks", "workers"}, problems
    assert "no running worker handles this type" in "".join(problems["workers"])
    (problem,) = problems["tasks"]
    assert problem.startswith("2 unfinished tasks without a driver, so nothing will ever continue them: ")
    assert "unsent (QUEUED, without dispatch (next_dispatch_at) and outbox (publish_at))" in problem
    assert "unleased (RUNNING, without lease (lease.expires_at))" in problem
    assert "save their documents for a bug report, then cancel them and submit them again" in problem
    assert "No worker can end a RUNNING one after a cancel: delete its document" in problem
