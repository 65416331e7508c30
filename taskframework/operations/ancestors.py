"""The tasks above a sub-task that is replayed: they count it again, and wait again if they have ended."""

from __future__ import annotations

from itertools import takewhile

from taskframework.model.marks import CascadeAgain, CountAgain
from taskframework.model.scope import Scope
from taskframework.model.task import Task
from taskframework.model.waiting import Reopen
from taskframework.moves import TaskMoves
from taskframework.operations.refusals import hint_if_never_reopened, parent_finished_error
from taskframework.stores.base import TaskStore


class Ancestors:
    """Finds the parents above a sub-task, lets them count it again, and reopens them."""

    def __init__(self, store: TaskStore, moves: TaskMoves) -> None:
        self._store = store
        self._moves = moves

    async def count_again(self, subtask: Task, scope: Scope, *, by: str, reopen: bool) -> None:
        """Let the parents of a sub-task that was replayed count it again. A count that began before may end them, or
        may have ended them already.

        Raises:
            ParentFinishedError: if its parent has ended and is not to be reopened; then the parent cancels it.
        """
        if (link := subtask.parent) is None:
            return
        await self._store.mark(*(CountAgain(parent.task_id) for parent in await self._above(subtask, scope)))
        if reopen:
            await self.reopen(subtask, scope, by)
        elif finished := await self.finished(subtask, scope):
            await self._store.mark(CascadeAgain(link.task_id, link.generation, link.round))
            raise parent_finished_error(subtask, finished[0])

    async def finished(self, task: Task, scope: Scope) -> list[Task]:
        """Return the ended parents above a sub-task, up to the first parent that has not ended."""
        return list(takewhile(lambda parent: parent.status.is_final, await self._above(task, scope)))

    async def reopen(self, task: Task, scope: Scope, by: str) -> None:
        """Let the ended parents above a sub-task wait again; the highest first, so that none ends early."""
        for parent in reversed(await self.finished(task, scope)):
            # Refused if another caller was faster, or if the plan of the parent was never stored completely.
            if await self._moves.make(Reopen(parent.task_id, scope, by)) is None:
                present = await self._store.get(parent.task_id, scope)
                if present is not None and present.status.is_final:
                    raise parent_finished_error(task, present, hint_if_never_reopened(present))

    async def _above(self, task: Task, scope: Scope) -> list[Task]:
        """Return the parents above a sub-task, the nearest first."""
        found: list[Task] = []
        link = task.parent
        while link is not None:
            parent = await self._store.get(link.task_id, scope)
            # A parent that was replayed does not wait for the sub-tasks of its earlier generations.
            if parent is None or parent.generation != link.generation:
                break
            found.append(parent)
            link = parent.parent
        return found
