"""Reads which work in a store is due, and when more will be due: this says how far virtual time may jump."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from taskframework.model.drivers import CHECK, DRIVERS, OUTBOX, UNBLOCK
from taskframework.model.schedules import SCHEDULE, Schedule
from taskframework.model.status import CLAIMABLE, LIVE, TaskStatus
from taskframework.model.streams import STREAMS, StreamKey, stream_of
from taskframework.model.task import Task
from taskframework.schedules import all_schedules
from taskframework.stores.base import TaskStore
from taskframework.stores.sqlite.connection import Database
from taskframework.stores.sqlite.pages import tasks_of
from taskframework.stores.sqlite.rows import TaskRow

#: Drivers of checks that are made only for safety: they find nothing that events have not caused before.
_PRECAUTIONARY_DRIVERS = frozenset({CHECK, UNBLOCK, OUTBOX})
#: One statement, so that no task is missed while it moves from one status to another.
_LIVE_TASKS = (
    f"SELECT {', '.join(TaskRow._fields)} FROM tasks t JOIN task_parameters p USING (number) "
    f"WHERE t.status IN {tuple(str(status) for status in sorted(LIVE))}"
)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The tasks that are not final and the schedules of a store, as they are at one moment."""

    now: datetime
    tasks: tuple[Task, ...]
    schedules: tuple[Schedule, ...]
    #: The streams of `streams_between_tasks` whose turn is about to move.
    moving_streams: frozenset[StreamKey] = frozenset()

    @classmethod
    async def of(cls, store: TaskStore, database: Database, now: datetime) -> Timeline:
        """Read all of it; `database` is that of the store."""
        # The schedules first: so the task of a schedule that moved on is among the tasks.
        schedules = await all_schedules(store)
        tasks = tasks_of(await database.fetch(_LIVE_TASKS))
        timeline = cls(now, tuple(tasks), tuple(map(SCHEDULE.content, schedules)))
        if not (streams := timeline.streams_between_tasks):
            return timeline
        records = await store.read_records([stream.record_id for stream in streams])
        halted = {name for name, record in records.items() if STREAMS.content(record).is_halted}
        moving = frozenset(stream for stream in streams if stream.record_id not in halted)
        return replace(timeline, moving_streams=moving)

    def is_running(self, worker_id: str) -> bool:
        """Return whether this worker executes a task."""
        return any(task.lease is not None and task.lease.worker_id == worker_id for task in self.tasks)

    @property
    def streams_between_tasks(self) -> frozenset[StreamKey]:
        """The streams in which tasks wait for the turn and no task has it: it moves on, unless the stream is halted."""
        blocked: set[StreamKey] = set()
        others: set[StreamKey] = set()
        for task in self.tasks:
            if (stream := stream_of(task)) is not None:
                (blocked if task.status is TaskStatus.BLOCKED else others).add(stream)
        return frozenset(blocked - others)

    @property
    def is_due(self) -> bool:
        """Whether something should happen now."""
        if (
            self.moving_streams
            or any(schedule.is_due(self.now) for schedule in self.schedules)
            or any(map(self._is_due, self.tasks))
        ):
            return True
        parents = {task.parent.task_id for task in self.tasks if task.parent is not None}
        waiting = [task for task in self.tasks if task.status is TaskStatus.WAITING and task.waits_for is None]
        # A waiting task without a live sub-task will soon continue.
        return any(task.task_id not in parents for task in waiting)

    @property
    def state(self) -> object:
        """A value that stays equal until something happens."""
        tasks = {task.task_id: (task.revision, task.next_dispatch_at) for task in self.tasks}
        return tasks, [schedule.next_at for schedule in self.schedules]

    def next_due(self) -> datetime | None:
        """When the next thing happens by itself; None if nothing will happen."""
        times = [schedule.due_at for schedule in self.schedules if not schedule.is_paused]
        times += [time for task in self.tasks for time in _due_times_of(task)]
        return min((time for time in times if time > self.now), default=None)

    def _is_due(self, task: Task) -> bool:
        is_claimable = task.status in CLAIMABLE and task.not_before <= self.now
        return is_claimable or any(driver.is_due(task, self.now) for driver in DRIVERS if driver is not OUTBOX)


def _due_times_of(task: Task) -> Iterator[datetime]:
    if task.status in CLAIMABLE:
        yield task.not_before
    if task.waits_for is not None and task.waits_for.until is not None:
        yield task.waits_for.until
    for driver in DRIVERS:
        if driver not in _PRECAUTIONARY_DRIVERS and (time := driver.time_of(task)) is not None:
            yield time
