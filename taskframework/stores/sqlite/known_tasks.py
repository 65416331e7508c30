"""Tasks as they were last written, so that they need not be read again while no other connection writes to the file.

Under the write lock SQLite tells whether another connection has committed a change, and how many rows this connection
has changed. If both are as they were after the last commit of a group, the file contains exactly the remembered tasks.
If not, all remembered tasks are forgotten: after a write of another process, a purge, a commit with unknown outcome,
and each write that is not part of a group, such as a change of a limit's or a stream's record.
Measured in docs/decisions/0012: without this a task costs a fifth to a quarter more of the process's time.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from typing import NamedTuple

from taskframework.model.status import CLAIMABLE
from taskframework.stores.sqlite.rows import StoredTask

#: Most characters of a task that is remembered; longer tasks are rare, and a single result may have a megabyte.
_MAX_REMEMBERED_CHARACTERS = 10_000


class FileState(NamedTuple):
    """The numbers that change after any write to the file."""

    connection: sqlite3.Connection
    #: A number that changes with each commit of another connection, in this process or in another process.
    data_version: int
    #: How many rows this connection has changed, also in transactions that were rolled back.
    changes: int

    @classmethod
    def now(cls, connection: sqlite3.Connection) -> FileState:
        """The current state; called while the write lock is held."""
        [(version,)] = connection.execute("PRAGMA data_version")
        return cls(connection, version, connection.total_changes)

    def after(self, connection: sqlite3.Connection) -> FileState:
        """The state after the commit of the current transaction, which began in this state."""
        return self._replace(changes=connection.total_changes)


class KnownTasks:
    """The tasks that were written last, without users' values, which other code might change in place."""

    def __init__(self, most: int) -> None:
        """Start without tasks; remember at most `most`. With 0 every task is read from the file."""
        self._max_tasks = most
        self._tasks: OrderedDict[str, StoredTask] = OrderedDict()
        #: The state after the last commit that was certainly made.
        self._as_of: FileState | None = None

    def check(self, connection: sqlite3.Connection) -> FileState:
        """Forget all tasks if the file was written since the last commit; called while the write lock is held."""
        state = FileState.now(connection)
        if state != self._as_of:
            self._tasks.clear()
        return state

    def committed(self, state: FileState) -> None:
        """Note that the transaction that kept tasks here was committed, and left the file in this state."""
        self._as_of = state

    def read(self, task_id: str, *, whole: bool) -> StoredTask | None:
        """A task, with users' values if `whole`, otherwise without; None if it has to be read from the file."""
        known = self._tasks.get(task_id)
        return known.with_user_values() if known is not None and whole else known

    def keep(self, row: StoredTask, length: int) -> None:
        """Remember a task that a transaction wrote; its document has `length` characters."""
        task = row.task
        is_new = self._tasks.pop(task.task_id, None) is None
        is_over = task.status.is_final and task.publish_at is None
        # These fields contain users' values too, one level deeper.
        holds_more = task.steps or task.subtasks or task.signals or task.woken_by
        if is_over or holds_more or length + len(row.parameters) > _MAX_REMEMBERED_CHARACTERS:
            return
        if is_new and task.status in CLAIMABLE and len(self._tasks) >= self._max_tasks:
            return  # the oldest tasks of a backlog are needed first, so newer tasks do not replace them
        self._tasks[task.task_id] = row.without_user_values()
        if len(self._tasks) > self._max_tasks:
            self._tasks.popitem(last=False)
