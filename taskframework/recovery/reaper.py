"""The reaper: ends attempts whose lease is over, and tasks past their deadline. It does not need the task's code."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from taskframework import failpoint
from taskframework.model.drivers import DEADLINE, LEASE
from taskframework.model.interventions import Expire, Reap
from taskframework.model.retry import RetryPolicy
from taskframework.moves import TaskMoves
from taskframework.recovery.loop import choose_due
from taskframework.stores.base import TaskStore
from taskframework.stores.replies import DueTask


class Reaper:
    """Ends attempts whose lease is over; the next state of the task is decided as after a failed attempt."""

    def __init__(
        self,
        store: TaskStore,
        moves: TaskMoves,
        policy: RetryPolicy,
        *,
        grace: timedelta,
        max_crashes: int,
        limit: int,
    ) -> None:
        """Prepare to reap.

        Args:
            store: where the leases are.
            moves: takes the tasks from their workers.
            policy: how long a task waits after a crash.
            grace: how long a lease must be over.
            max_crashes: how many crashes make a task a dead letter.
            limit: how many leases one look takes.
        """
        self._store = store
        self._moves = moves
        self._policy = policy
        self._grace = grace
        self._max_crashes = max_crashes
        self._limit = limit

    async def reap(self) -> bool:
        """Reap one group of tasks. Each write checks the lease again: the worker may have come back meanwhile.

        Returns:
            Whether there may be more.
        """
        expired, has_more = await choose_due(self._store, LEASE, self._limit, self._grace)
        await self._reap(expired, self._grace)
        return has_more

    async def expire(self) -> bool:
        """End, or ask to end, one group of tasks past their deadline; return whether there may be more."""
        overdue, has_more = await choose_due(self._store, DEADLINE, self._limit)
        await self._moves.repair_all(Expire(task.task_id) for task in overdue)
        return has_more

    async def reap_all(self) -> None:
        """Reap every running task, even if its lease is not over: for a caller who knows that all workers are dead."""
        previous: Sequence[DueTask] = ()
        while (running := await self._running()) and running != previous:  # tasks of a newer release stay
            await self._reap(running, None)
            previous = running

    async def _running(self) -> Sequence[DueTask]:
        return [*await self._store.due(LEASE, self._limit), *await self._store.upcoming(LEASE, self._limit)]

    async def _reap(self, tasks: Sequence[DueTask], grace: timedelta | None) -> None:
        if tasks:
            await failpoint.reached("reap.after_read")
            await self._moves.repair_all(self._reaping(task, grace) for task in tasks)

    def _reaping(self, task: DueTask, grace: timedelta | None) -> Reap:
        delay = self._policy.after_crash(task.crashes + 1)
        return Reap(task.task_id, task.fencing_token, grace, self._max_crashes, delay)
