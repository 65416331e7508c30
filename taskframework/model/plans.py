"""Plans of sub-tasks that are too large for the document of their task: records, each with a part of the plan.

They are written while the attempt runs, and count only once the attempt is settled. Their ids contain the fencing token
of the attempt, so a worker that lost its lease cannot change the plan of the next attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import orjson

from taskframework.model.records import Record, RecordKind
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task

#: Bytes of an item of a plan in addition to its parameters: the hash of the parameters, quotes, commas and brackets.
ITEM_BYTES = 24
#: Bytes as JSON of one part of a plan, unless a single item is larger.
MAX_PLAN_PART_BYTES = 512 * 1024
#: Most bytes as JSON of a plan that is kept in the task itself. The limit is low because every count of sub-tasks reads
#: and writes the whole task, and counts begin before the last sub-task is stored and the plan is removed.
MAX_INLINE_PLAN_BYTES = 32 * 1024
#: How long after a part was written, or last checked, the retention checks whether it is still needed.
PLAN_CHECK_INTERVAL = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class PlanPart:
    """Some of the sub-tasks that an attempt planned."""

    task_id: str
    #: The token of the attempt.
    fencing_token: int
    first_slot: int
    #: The groups as JSON text, because names in users' values may have a meaning in a store.
    text: str = field(repr=False)

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The groups, in the form of a plan that is kept in its task."""
        groups: list[dict[str, Any]] = orjson.loads(self.text)
        return groups


PLAN = RecordKind("plan", PlanPart)


def part_id(task_id: str, fencing_token: int, number: int) -> str:
    """The id of a part; parts are numbered from 0."""
    return PLAN.id_of(task_id, str(fencing_token), str(number))


def part_of(task: Task, number: int, first_slot: int, groups: list[dict[str, Any]], now: datetime) -> Record:
    """A part that is not stored yet, planned by the attempt under which the task runs."""
    content = PlanPart(task.task_id, task.fencing_token, first_slot, orjson.dumps(groups).decode())
    return PLAN.new(
        task.task_id, str(task.fencing_token), str(number), content=content, expires_at=now + PLAN_CHECK_INTERVAL
    )


def are_plan_parts_needed(parent: Task | None, fencing_token: int) -> bool:
    """Return whether the parts of an attempt are needed: it still runs, or its sub-tasks are not all stored yet."""
    if parent is None or parent.fencing_token != fencing_token:
        return False
    return parent.status is TaskStatus.RUNNING or (parent.status is TaskStatus.WAITING and parent.spawn_at is not None)
