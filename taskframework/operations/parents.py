"""Finds problems of parents: due work that is not done, and wrong counts.

This repairs nothing, because every api and worker process does that. It finds what they should have repaired long ago.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from taskframework.clock import Clock
from taskframework.errors import TaskUnreadableError
from taskframework.model.drivers import CASCADE, CHECK, RETRY, SEAL, SPAWN, UNBLOCK, Driver
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import Counts, count_deleted
from taskframework.model.task import Task
from taskframework.model.waiting import CountSubtasks
from taskframework.stores.base import TaskStore

#: The drivers of parents and of other waiting tasks.
_DRIVERS = (SPAWN, CHECK, CASCADE, SEAL, RETRY, UNBLOCK)
#: Only work that is later than this is a problem: repairs look about once a second, and for half a minute they leave
#: alone the tasks that another process has taken.
OVERDUE_AFTER = timedelta(minutes=1)
#: A count may be this late after the end of a sub-task: if the counting process died, a relay takes over after 5 s and
#: needs a moment. A difference that lasts longer is an error.
COUNTED_WITHIN = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Overdue:
    """A task with due work that should have been done long ago."""

    task_id: str
    driver: Driver
    since: datetime


@dataclass(frozen=True, slots=True)
class Miscounted:
    """A parent whose document and sub-tasks disagree."""

    parent: Task
    by_status: Mapping[TaskStatus, int]

    @property
    def counts(self) -> Counts:
        """The counts of its sub-tasks as they really are."""
        return Counts.of(self.by_status)

    @property
    def is_decided(self) -> bool:
        """Whether these counts decide its policy, so that the parent should not wait any more."""
        return CountSubtasks.of(self.parent, self.counts).verdict is not None

    @property
    def missing(self) -> int:
        """How many sub-tasks should exist, but do not, although no process is about to store them."""
        subtasks = self.parent.subtasks
        if subtasks is None or subtasks.planned is None or (subtasks.is_being_stored and self.parent.spawn_at):
            return 0
        return subtasks.planned - sum(self.by_status.values())


async def count_deleted_subtasks(store: TaskStore, parent: Task) -> int:
    """Return how many sub-tasks of the newest round of a parent are not stored any more."""
    if (subtasks := parent.subtasks) is None:
        return 0
    round = RoundOfSubtasks(parent.task_id, parent.generation, subtasks.round)
    return count_deleted(subtasks, await store.count_subtasks(round))


async def find_overdue(store: TaskStore, limit: int) -> list[Overdue]:
    """Return the tasks that have been due for a minute or more, the longest first; at most `limit` of each driver."""
    return [
        Overdue(found.task_id, driver, found.due)
        for driver in _DRIVERS
        for found in await store.due(driver, limit, OVERDUE_AFTER)
    ]


async def find_miscounted(store: TaskStore, clock: Clock, limit: int) -> tuple[list[Miscounted], int]:
    """Find parents whose counts are wrong for longer than a report takes.

    Args:
        store: where the parents are.
        clock: for the pause before the second look, which follows only if the first look has found a parent.
        limit: how many waiting tasks are looked at: those whose last look is longest ago.

    Returns:
        These parents, and how many waiting tasks were looked at.
    """
    waiting = [*await store.due(CHECK, limit), *await store.upcoming(CHECK, limit)][:limit]
    suspects = await _check_parents(store, [found.task_id for found in waiting])
    if not suspects:
        return [], len(waiting)
    await clock.sleep(COUNTED_WITHIN.total_seconds())
    before = {suspect.parent.task_id: suspect.parent.subtasks for suspect in suspects}
    again = await _check_parents(store, list(before))
    # A count that was written meanwhile has raised its serial number.
    return [suspect for suspect in again if suspect.parent.subtasks == before[suspect.parent.task_id]], len(waiting)


async def _check_parents(store: TaskStore, task_ids: Sequence[str]) -> list[Miscounted]:
    checked = [await _check_parent(store, task_id) for task_id in task_ids]
    return [found for found in checked if found is not None]


async def _check_parent(store: TaskStore, task_id: str) -> Miscounted | None:
    try:
        parent = await store.get(task_id, EVERYONE)
    except TaskUnreadableError:
        return None
    if parent is None or parent.status is not TaskStatus.WAITING or parent.retry_at is not None:
        return None
    if (subtasks := parent.subtasks) is None or not subtasks.is_awaited:
        return None
    round = RoundOfSubtasks(task_id, parent.generation, subtasks.round)
    found = Miscounted(parent, await store.count_subtasks(round))
    stored = Counts(subtasks.succeeded, subtasks.failed, subtasks.cancelled)
    return found if stored != found.counts or found.is_decided or found.missing else None
