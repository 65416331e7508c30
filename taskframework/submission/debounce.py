"""Inserts of debounced tasks: first the record of the key, then the task that it names, or newer parameters for it.

`model/debounce.py` says what is promised.
"""

from __future__ import annotations

from datetime import timedelta

from taskframework import failpoint
from taskframework.errors import StoreUnavailableError
from taskframework.model.debounce import WINDOWS, ReplaceParameters, may_be_stored_late, window_id, window_of
from taskframework.model.idempotency import with_task_id
from taskframework.model.options import Debounce
from taskframework.model.records import Record
from taskframework.model.task import Task, new_task_id
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_record
from taskframework.stores.replies import Inserted

#: The most rounds of reading and writing. In each lost round another submission of the key, or a worker, was faster.
_MAX_ROUNDS = 50


class DebouncedInserts:
    """Stores debounced tasks, or replaces the parameters of the waiting task."""

    def __init__(self, store: TaskStore, moves: TaskMoves, kept: timedelta) -> None:
        """Prepare to store; the record of a key is kept for `kept` after the end of its task."""
        self._store = store
        self._moves = moves
        self._kept = kept

    async def insert(self, task: Task, debounce: Debounce) -> Inserted:
        """Store a task as the first task of its window, or give its parameters to the waiting task of the window.

        Raises:
            StoreUnavailableError: if it is not known whether the task was stored. Submit it again.
        """
        for _ in range(_MAX_ROUNDS):
            record = await read_record(self._store, window_id(task, debounce.key))
            accepted = None if record is None else await self._replace_parameters(record, task, debounce)
            accepted = accepted or await self._open_window(record, task, debounce)
            if accepted is not None:
                return accepted
            # The next window needs a new id: another submission may have stored a task with this id, and it has begun.
            task = with_task_id(task, new_task_id())
        raise StoreUnavailableError(f"The key {debounce.key!r} is being changed by too many submissions at once.")

    async def _replace_parameters(self, record: Record, task: Task, debounce: Debounce) -> Inserted | None:
        """Give the parameters to the task of a window; None if the task has begun or was deleted."""
        window = WINDOWS.content(record)
        replace = ReplaceParameters(window.task_id, task.parameters, task.parameters_hash, debounce.wait)
        if (replaced := await self._moves.make(replace)) is not None:
            return Inserted(replaced, is_new=False)
        if not may_be_stored_late(window, self._store.now()):
            return None
        return await self._store_task(with_task_id(task, window.task_id), replace)

    async def _open_window(self, record: Record | None, task: Task, debounce: Debounce) -> Inserted | None:
        """Open the next window; return None if another submission has opened it."""
        [written] = await self._store.write_records([window_of(task, debounce.key, record, self._kept)])
        await failpoint.reached("debounce.after_record")
        if written is None:
            return None
        replace = ReplaceParameters(task.task_id, task.parameters, task.parameters_hash, debounce.wait)
        return await self._store_task(task, replace)

    async def _store_task(self, task: Task, replace: ReplaceParameters) -> Inserted | None:
        """Store the task of a window; return None if another process had stored the task and it has begun since."""
        [stored] = await self._store.insert([task])
        if isinstance(stored, Exception):
            raise stored
        if stored.is_new:
            return stored
        replaced = await self._moves.make(replace)
        return None if replaced is None else Inserted(replaced, is_new=False)
