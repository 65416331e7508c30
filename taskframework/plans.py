"""Reads and deletes the plan of a parent's sub-tasks; a large plan is in records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from taskframework.errors import StoreError
from taskframework.model.plans import PLAN, part_id
from taskframework.model.records import Record
from taskframework.model.task import Task
from taskframework.stores.base import Records
from taskframework.stores.reading import read_record

#: The slot of the first sub-task, and the groups.
Part = tuple[int, list[dict[str, Any]]]


async def read_plan(store: Records, parent: Task) -> AsyncIterator[Part]:
    """Yield the plan of a waiting task in slot order, from the task or from records; a large plan part by part.

    Args:
        store: where the records are.
        parent: the waiting task.

    Raises:
        StoreError: if a part is missing.
    """
    subtasks = parent.subtasks
    if subtasks is None:
        return
    if subtasks.plan is not None:
        yield 0, subtasks.plan
    for number in range(subtasks.plan_records):
        if (record := await _part(store, parent, number)) is None:
            raise StoreError(f"Part {number} of the plan of task {parent.task_id} is missing.")
        part = PLAN.content(record)
        yield part.first_slot, part.groups


async def delete_plan(store: Records, parent: Task) -> None:
    """Delete the parts of a plan whose sub-tasks are stored. If this fails, the retention deletes the parts later."""
    for number in range(parent.subtasks.plan_records if parent.subtasks else 0):
        if (record := await _part(store, parent, number)) is not None:
            await store.delete_records([record])


async def _part(store: Records, parent: Task, number: int) -> Record | None:
    """Read one part; only one at a time, because each may be large."""
    return await read_record(store, part_id(parent.task_id, parent.fencing_token, number))
