"""The workers as an operator sees them: which workers exist, and which tasks each runs now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from taskframework.errors import TaskframeworkError
from taskframework.model.query import MAX_LIMIT, Page, TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.view import format_time
from taskframework.model.workers import PRESENCE, Presence, missing_workers
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_page, read_record

#: How many pages of running tasks one call looks through.
_MAX_PAGES = 10


class WorkerNotFoundError(TaskframeworkError):
    """There is no such worker."""

    code = "worker_not_found"
    hint = "List the workers to see their ids. A stopped worker disappears at once, a killed one after ten minutes."

    def __init__(self, worker_id: str) -> None:
        super().__init__(f"There is no worker {worker_id[:100]!r}.")


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker at one moment."""

    presence: Presence
    #: Whether its last sign of life is too old: the worker was killed, is frozen, or cannot reach the store.
    is_lost: bool

    def view(self) -> dict[str, Any]:
        """Return the worker as plain JSON."""
        presence = self.presence
        return {
            "worker_id": presence.worker_id,
            "host": presence.host,
            "pid": presence.pid,
            "release": presence.release,
            "task_types": list(presence.task_types),
            "concurrency": presence.concurrency,
            "in_flight": presence.in_flight,
            "started_at": format_time(presence.started_at),
            "seen_at": format_time(presence.seen_at),
            "is_lost": self.is_lost,
        }


class WorkerOperations:
    """Shows the workers."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store

    async def list_workers(self, *, limit: int, after: str | None = None) -> Page[WorkerState]:
        """Return workers in the order of their ids, from the first after `after`.

        A worker that stopped normally is not in the list. A killed worker is in it for ten minutes, and is lost.

        Raises:
            StoreUnavailableError: if the store does not answer.
        """
        page = await read_page(self._store, PRESENCE, limit=limit, after=after)
        now = self._store.now()
        return Page(tuple(WorkerState(presence, presence.is_lost(now)) for presence in page.items), page.next_cursor)

    async def count(self, task_types: Iterable[str]) -> tuple[dict[str, int], int]:
        """Return how many live workers run each of these types, and how many lost workers were not replaced.

        Raises:
            StoreUnavailableError: if the store does not answer.
        """
        now = self._store.now()
        found = PRESENCE.contents(await self._store.list_records(PRESENCE.name, limit=MAX_LIMIT)).values()
        live = [presence for presence in found if not presence.is_lost(now)]
        known_by = Counter(task_type for presence in live for task_type in presence.task_types)
        return {task_type: known_by[task_type] for task_type in task_types}, len(missing_workers(found, now))

    async def list_running(self, worker_id: str, *, limit: int, cursor: str | None = None) -> Page[Task]:
        """Return the tasks whose leases a worker holds, from the newest to the oldest.

        There is no index by worker: each call searches some pages of all running tasks. So a page may have fewer tasks
        than `limit`, or none, although further pages follow.

        Raises:
            WorkerNotFoundError: if there is no such worker.
            CursorInvalidError: if the cursor does not belong to this list.
            StoreUnavailableError: if the store does not answer.
        """
        if await read_record(self._store, PRESENCE.id_of(worker_id)) is None:
            raise WorkerNotFoundError(worker_id)
        running, found = TaskFilter(status=TaskStatus.RUNNING), list[Task]()
        for _ in range(_MAX_PAGES):
            page = await self._store.list_tasks(EVERYONE, running, limit=limit - len(found), cursor=cursor)
            found += [task for task in page.items if task.lease is not None and task.lease.worker_id == worker_id]
            cursor = page.next_cursor
            if cursor is None or len(found) == limit:
                break
        return Page(tuple(found), cursor)
