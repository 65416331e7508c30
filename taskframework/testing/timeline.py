"""What of a store is due, and when something will be: by this virtual time knows how far it may jump."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from taskframework.model.drivers import CHECK, DRIVERS, OUTBOX, UNBLOCK
from taskframework.model.records import Record
from taskframework.model.schedules import SCHEDULE, Schedule
from taskframework.model.status import CLAIMABLE, LIVE, TaskStatus
from taskframework.model.task import Task
from taskframework.stores.sqlite.connection import Database
from taskframework.stores.sqlite.pages import tasks_of
from taskframework.stores.sqlite.rows import TaskRow

#: Drivers that only look once more, to be safe: nothing happens at their times that would not have happened before.
_ONLY_LOOKS = frozenset({CHECK, UNBLOCK, OUTBOX})
#: One statement, so that no task is missed while it moves from one status to another.
_LIVE_TASKS = (
    f"SELECT {', '.join(TaskRow._fields)} FROM tasks t JOIN task_parameters p USING (number) "
    f"WHERE t.status IN {tuple(str(status) for status in sorted(LIVE))}"
)


@dataclass(frozen=True, slots=True)
class Timeline:
    """What is not over in a store, as it is at one moment."""

    now: datetime
    tasks: tuple[Task, ...]
    schedules: tuple[Schedule, ...]

    @classmethod
    async def of(cls, database: Database, now: datetime, schedules: Sequence[Record]) -> Timeline:
        """Read the tasks. The schedules were read before: the task of one that has moved on is among them then."""
        tasks = tasks_of(await database.fetch(_LIVE_TASKS))
        return cls(now, tuple(tasks), tuple(map(SCHEDULE.content, schedules)))

    def is_running(self, worker_id: str) -> bool:
        """Whether this worker executes something."""
        return any(task.lease is not None and task.lease.worker_id == worker_id for task in self.tasks)

    @property
    def is_due(self) -> bool:
        """Whether something should be happening now."""
        if any(schedule.is_due(self.now) for schedule in self.schedules) or any(map(self._is_due, self.tasks)):
            return True
        parents = {task.parent.task_id for task in self.tasks if task.parent is not None}
        waiting = [task for task in self.tasks if task.status is TaskStatus.WAITING and task.waits_for is None]
        return any(task.task_id not in parents for task in waiting)  # it is about to hear of its last sub-task

    @property
    def state(self) -> object:
        """Equal as long as nothing has happened."""
        tasks = {task.task_id: (task.revision, task.next_dispatch_at) for task in self.tasks}
        return tasks, [each.next_at for each in self.schedules]

    def next_due(self) -> datetime | None:
        """When the next thing happens by itself; None if nothing will."""
        times = [each.due_at for each in self.schedules if not each.is_paused]
        times += [time for task in self.tasks for time in _times_of(task)]
        return min((time for time in times if time > self.now), default=None)

    def _is_due(self, task: Task) -> bool:
        is_claimable = task.status in CLAIMABLE and task.not_before <= self.now
        return is_claimable or any(driver.is_due(task, self.now) for driver in DRIVERS if driver is not OUTBOX)


def _times_of(task: Task) -> Iterator[datetime]:
    if task.status in CLAIMABLE:
        yield task.not_before
    if task.waits_for is not None and task.waits_for.until is not None:
        yield task.waits_for.until
    for driver in DRIVERS:
        if driver not in _ONLY_LOOKS and (time := driver.time_of(task)) is not None:
            yield time
