"""Look at tasks, cancel them, queue them anew."""

from __future__ import annotations

from datetime import timedelta

from taskframework.errors import TaskNotFoundError, TransitionRefusedError
from taskframework.model.interventions import Cancel, Replay
from taskframework.model.query import Page, TaskFilter
from taskframework.model.scope import Scope
from taskframework.model.status import LIVE, REACHABLE, REPLAYABLE, TaskStatus
from taskframework.model.task import Task
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore


class TaskOperations:
    """Operations on the tasks of somebody's scope; what is outside of it is not there."""

    def __init__(self, store: TaskStore, moves: TaskMoves, dispatch_after: timedelta) -> None:
        """Prepare; `dispatch_after` as in the submission service."""
        self._store = store
        self._moves = moves
        self._dispatch_after = dispatch_after

    async def get(self, task_id: str, scope: Scope) -> Task:
        """Read a task.

        Raises:
            TaskNotFoundError: if there is none, or it is somebody else's.
        """
        task = await self._store.get(task_id, scope)
        if task is None:
            raise TaskNotFoundError(task_id)
        return task

    async def list_tasks(
        self, scope: Scope, filter: TaskFilter, *, limit: int, cursor: str | None = None
    ) -> Page[Task]:
        """Tasks from the newest to the oldest."""
        return await self._store.list_tasks(scope, filter, limit=limit, cursor=cursor)

    async def cancel(self, task_id: str, scope: Scope, *, by: str, reason: str | None = None) -> Task:
        """Cancel a task. At rest it is CANCELLED at once; a running one is asked to stop and decides by its end.

        Asking again while a running task is still stopping is no error.

        Raises:
            TaskNotFoundError: if there is none.
            TransitionRefusedError: if it is final.
        """
        if (cancelled := await self._moves.make(Cancel(task_id, scope, by, reason))) is not None:
            return cancelled
        task = await self.get(task_id, scope)
        if task.status.is_final:
            raise TransitionRefusedError(task_id, "cancelled", task.status, _names(LIVE))
        return task

    async def retry(self, task_id: str, scope: Scope, *, by: str) -> Task:
        """Queue a failed, dead or cancelled task anew, as a new generation with its whole budget.

        Raises:
            TaskNotFoundError: if there is none.
            TransitionRefusedError: if it is not one of those.
        """
        task = await self.get(task_id, scope)
        replayed = await self._moves.make(Replay(task_id, scope, by, self._dispatch_after, task.revision))
        if replayed is None:
            task = await self.get(task_id, scope)
            raise TransitionRefusedError(task_id, "retried", task.status, _names(REPLAYABLE))
        return replayed


def _names(statuses: frozenset[TaskStatus]) -> tuple[str, ...]:
    return tuple(status for status in REACHABLE if status in statuses)
