"""Tasks that nothing would ever move on: a defect that no code of ours makes, planted to see it found."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from taskframework.model.status import TaskStatus
from taskframework.stores.base import TaskStore
from taskframework.testing.factories import new_task
from tests.support.command import Folder


def plant_undriven(store: TaskStore) -> None:
    """Store one healthy task, and two that lost what drives them."""

    async def plant() -> None:
        await store.open()
        later = store.now() + timedelta(hours=1)
        await store.insert(new_task(now=store.now(), not_before=later, task_type="count-words"))
        await store.insert(new_task(now=store.now(), next_dispatch_at=None, task_type="count-words"))
        await store.insert(new_task(now=store.now(), status=TaskStatus.RUNNING, next_dispatch_at=None))
        await store.close()

    asyncio.run(plant())


def finding_of_undriven(folder: Folder, env: Mapping[str, str]) -> None:
    """`doctor` counts them, says what to do, and finds nothing else."""
    found = folder.json("doctor", "--app", "program", code=1, env=env)
    problems = {finding["part"]: finding["problems"] for finding in found["findings"] if finding["problems"]}
    assert problems.keys() == {"tasks"}, problems
    (problem,) = problems["tasks"]
    assert problem.startswith("2 live tasks have no due time, lease or children")
    assert "keep their documents for a report, then cancel them and submit them again" in problem
    assert "A RUNNING one has no worker that could end it after a cancel: delete its document" in problem
