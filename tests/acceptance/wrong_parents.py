"""Parents that something is wrong with, planted to see them found."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import ParentLink, Subtasks
from taskframework.stores.base import TaskStore
from taskframework.testing.factories import new_task
from tests.support.command import Folder

MINUTE = timedelta(minutes=1)


def plant_wrong_parents(store: TaskStore) -> None:
    """Store a healthy parent of three, of which two have succeeded; one whose document says that none has, one that
    lacks a sub-task, and one whose sub-tasks nobody cancels.
    """

    async def plant() -> None:
        await store.open()
        right = Subtasks(3, None, done=2, succeeded=2)
        for name, subtasks in {"right": right, "off": Subtasks(3, None), "lacking": Subtasks(4, None)}.items():
            await store.insert(_family(store, name, subtasks))
        ended: dict[str, Any] = {
            "status": TaskStatus.CANCELLED,
            "cascade_at": store.now() - 5 * MINUTE,
            "next_dispatch_at": None,
        }
        await store.insert([new_task(task_id="left", now=store.now(), subtasks=right, **ended)])
        await store.close()

    asyncio.run(plant())


def _family(store: TaskStore, name: str, subtasks: Subtasks) -> list[Task]:
    now = store.now()
    waits: dict[str, Any] = {"status": TaskStatus.WAITING, "next_dispatch_at": None, "check_at": now + 20 * MINUTE}
    below = [
        new_task(
            now=now, parent=ParentLink(name, 0, slot), status=status, publish_at=None, published_sequence=1,
            not_before=now + 60 * MINUTE, finished_at=now if status.is_final else None,
        )
        for slot, status in enumerate([TaskStatus.COMPLETED, TaskStatus.COMPLETED, TaskStatus.QUEUED])
    ]  # fmt: skip
    return [new_task(task_id=name, now=now, subtasks=subtasks, **waits), *below]


def finding_of_wrong_parents(folder: Folder, env: Mapping[str, str]) -> None:
    """`doctor` names them, says what is true and what to do, and finds nothing else."""
    found = folder.json("doctor", "--app", "program", code=1, env=env)
    problems = {finding["part"]: finding["problems"] for finding in found["findings"] if finding["problems"]}
    assert problems.keys() == {"parents"}, problems
    late, *wrong = problems["parents"]
    assert late.startswith("1 repair of parents and batches more than a minute overdue: left (cascade ")
    assert "Every api and worker process makes repairs, on a SQLite file `dev`: start one." in late
    off, lacking = sorted(wrong, key=lambda problem: "wait forever" in problem)
    truth = "its document says 0 succeeded, 0 failed and 0 were cancelled; the true numbers are 2, 0 and 0."
    assert off.startswith(
        f"off waits, but its counts of sub-tasks are wrong: {truth} An api or worker process counts them again"
    )
    assert lacking.startswith(
        f"lacking waits, but its counts of sub-tasks are wrong: {truth} 1 of 4 are not in the store"
    )
    assert "Cancel it and submit it again." in lacking
