"""What attempts with sub-tasks need of a process, in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from taskframework import BackgroundTaskExecutable, TaskContext
from taskframework.clock import SystemClock
from taskframework.errors import StoreUnavailableError
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.records import Record, new_revision
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.submission.subtasks import SubtaskKinds
from taskframework.submission.types import TaskTypes
from taskframework.tasks.registry import TaskRegistry
from taskframework.worker.family import FamilyServices

CLOCK = SystemClock()
#: For attempts without sub-tasks.
NO_FAMILIES = FamilyServices(cast(TaskStore, None), cast(SubtaskKinds, None), CLOCK)


class Child(BackgroundTaskExecutable[int, int]):
    """A type of sub-tasks."""

    task_type = "child"

    async def execute(self, context: TaskContext[int]) -> int:
        return context.parameters


class FamilyStore:
    """Records and the sub-tasks of one task; away for a number of calls if told so."""

    def __init__(self, subtasks: Sequence[Task] = ()) -> None:
        self.records: dict[str, Record] = {}
        self.subtasks = subtasks
        self.pages: list[int] = []
        self.failures = 0

    def now(self) -> datetime:
        return CLOCK.now()

    async def read_records(self, ids: Collection[str]) -> dict[str, Record]:
        self._fail()
        return {name: record for name, record in self.records.items() if name in ids}

    async def write_records(self, records: Sequence[Record]) -> list[Record | None]:
        self._fail()
        new = [None if record.id in self.records else replace(record, revision=new_revision()) for record in records]
        self.records |= {record.id: record for record in new if record is not None}
        return new

    async def delete_records(self, records: Sequence[Record]) -> int:
        return sum(self.records.pop(record.id, None) is not None for record in records)

    async def list_records(self, kind: str, *, limit: int, after: str = "") -> list[Record]:
        return []

    async def list_subtasks(self, round: RoundOfSubtasks, *, limit: int, after_slot: int = -1) -> Sequence[Task]:
        self._fail()
        self.pages.append(after_slot)
        own = [task for task in self.subtasks if task.parent is not None and task.parent.round == round.round]
        return [task for task in own if task.parent is not None and task.parent.slot > after_slot][:limit]

    def services(self, *executables: type[BackgroundTaskExecutable[Any, Any]]) -> FamilyServices:
        """The services around this store, for the sub-tasks of these types."""
        registry = TaskRegistry()
        for executable in executables or (Child,):
            registry.register(executable)
        store = cast(TaskStore, self)
        return FamilyServices(store, SubtaskKinds(TaskTypes(registry, store), self.now, 4), CLOCK)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError
