"""Queue timeouts: ends tasks that no worker began in time.

A task that a limit or a pause holds back does not wait for a worker. When a single task is put off, its latest start
moves too. When a whole type is held back, its tasks stay in the queue, so this repair lets their time begin again; also
just after a pause, before `PauseRepair` has done so for all tasks of the type.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from taskframework.clock import to_timestamp
from taskframework.errors import TaskUnreadableError
from taskframework.limits.buckets import Buckets, LimiterUnavailableError
from taskframework.model.drivers import START
from taskframework.model.interventions import EndUnstarted
from taskframework.model.marks import RestartQueueTimeout
from taskframework.model.pauses import PAUSE, RESUMED
from taskframework.model.rate_limits import RATE
from taskframework.model.records import Record
from taskframework.model.scope import EVERYONE
from taskframework.model.slots import SLOTS, Slots
from taskframework.model.task import Task
from taskframework.moves import TaskMoves
from taskframework.recovery.loop import CHOICE_FACTOR, choose_due
from taskframework.stores.base import TaskStore
from taskframework.stores.replies import DueTask
from taskframework.submission.types import TaskTypes


class QueueTimeouts:
    """Looks for tasks that wait for too long."""

    def __init__(self, store: TaskStore, moves: TaskMoves, types: TaskTypes, buckets: Buckets, limit: int) -> None:
        """Prepare.

        Args:
            store: where the tasks are, and the pauses of their types.
            moves: ends the tasks.
            types: tells from which bucket a whole type takes its permits.
            buckets: tells how full these buckets are.
            limit: how many tasks one look takes.
        """
        self._store = store
        self._moves = moves
        self._types = types
        self._buckets = buckets
        self._limit = limit

    async def run_once(self) -> bool:
        """End one group of late tasks, except tasks that are held back.

        Returns:
            Whether there may be more.
        """
        due, has_more = await choose_due(self._store, START, self._limit)
        if not due:
            return False
        held_back = await self._find_held_back(due)
        late = {task.task_id for task in due}
        if held_back:
            await self._store.mark(*map(RestartQueueTimeout, held_back))
            # Still due are tasks with `counts_limits`, which the mark does not change, and tasks of other types.
            late &= {task.task_id for task in await self._store.due(START, CHOICE_FACTOR * self._limit)}
        await self._moves.repair_all(EndUnstarted(task_id) for task_id in sorted(late))
        return has_more

    async def _find_held_back(self, due: Sequence[DueTask]) -> list[str]:
        """Return the tasks, of those given, that a limit or a pause holds back, or a pause held back until now."""
        types = {task.task_type for task in due}
        held_back = await self._find_held_back_types(types)
        ends = await self._store.read_records([RESUMED.id_of(name) for name in types - held_back])
        resumed = [task.task_id for task in due if RESUMED.id_of(task.task_type) in ends]
        waited = await self._find_waited(resumed, ends) if resumed else set()
        return [task.task_id for task in due if task.task_type in held_back or task.task_id in waited]

    async def _find_waited(self, task_ids: Sequence[str], ends: Mapping[str, Record]) -> set[str]:
        """Return the tasks whose queue timeout began before the pause of their type ended: it begins again."""
        try:
            tasks = (await self._store.get_many(task_ids, EVERYONE)).values()
        except TaskUnreadableError:  # a newer release wrote the task, and its processes end it
            return set(task_ids)
        return {
            task.task_id
            for task in tasks
            if _waited_before(task, RESUMED.content(ends[RESUMED.id_of(task.task_type)]).at)
        }

    async def _find_held_back_types(self, task_types: Collection[str]) -> set[str]:
        """Return the types, of those given, of which no task may begin now."""
        ids = [kind.id_of(name) for kind in (PAUSE, SLOTS) for name in task_types]
        records = await self._store.read_records(ids)
        buckets = await self._types.buckets(task_types)
        used_buckets = {
            bucket for bucket in set(buckets.values()) if bucket is not None and await self._is_in_use(bucket)
        }
        full = {name for name in task_types if _is_full(records.get(SLOTS.id_of(name)))}
        return {
            name
            for name in task_types
            if PAUSE.id_of(name) in records or buckets.get(name) in used_buckets or name in full
        }

    async def _is_in_use(self, bucket: str) -> bool:
        """Return whether a bucket is not full. While tasks wait for a bucket, it never becomes full."""
        try:
            found = await self._buckets.read(RATE.id_of(bucket))
        except LimiterUnavailableError:
            return True
        return found is not None and found.full_at > to_timestamp(self._store.now())


def _waited_before(task: Task, time: datetime) -> bool:
    """Return whether the queue timeout of a task began before a time."""
    return task.start_by is not None and task.start_limit is not None and task.start_by - task.start_limit.time < time


def _is_full(record: Record | None) -> bool:
    """Return whether every slot of a type's concurrency limit is held, or kept for a task in the line."""
    slots = Slots() if record is None else SLOTS.content(record)
    # A slot that is given back long after its time makes a record that does not know how many slots there are.
    return slots.number > 0 and slots.free <= 0
