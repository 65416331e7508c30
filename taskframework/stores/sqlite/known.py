"""Tasks as they were last written, so that they need not be read again while nobody else writes to the file.

Whoever asks holds the write lock. SQLite tells then whether another connection has committed anything since, and how
many rows this one has changed: where both are as they were after the last commit of a group, the file holds exactly
what is remembered. Anything else (another process, a purge, a commit whose outcome is not known) makes all of it void.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from typing import NamedTuple

from taskframework.model.status import CLAIMABLE
from taskframework.stores.sqlite.rows import Stored

#: Characters of the longest task that is remembered: a result alone may have a megabyte.
_LONGEST = 10_000


class FileState(NamedTuple):
    """What changes whenever anybody writes to the file."""

    connection: sqlite3.Connection
    #: Another number after any commit of another connection, of this process or another one.
    data_version: int
    #: Rows that this connection has changed, also those of transactions that were rolled back.
    changes: int

    @classmethod
    def now(cls, connection: sqlite3.Connection) -> FileState:
        """The state while the write lock is held."""
        [(version,)] = connection.execute("PRAGMA data_version")
        return cls(connection, version, connection.total_changes)

    def after(self, connection: sqlite3.Connection) -> FileState:
        """The state once this transaction is committed, which began in this one."""
        return self._replace(changes=connection.total_changes)


class KnownTasks:
    """The last tasks that were written, without the values of users that somebody could have changed in place."""

    def __init__(self, most: int) -> None:
        """Start with none; remember so many at most. With 0 every task is read from the file."""
        self._most = most
        self._tasks: OrderedDict[str, Stored] = OrderedDict()
        #: The file after the last commit that is known to have been made.
        self._as_of: FileState | None = None

    def check(self, connection: sqlite3.Connection) -> FileState:
        """Forget everything if somebody has written to the file since; called while the write lock is held."""
        state = FileState.now(connection)
        if state != self._as_of:
            self._tasks.clear()
        return state

    def committed(self, state: FileState) -> None:
        """The transaction that kept tasks here was committed, and left the file like this."""
        self._as_of = state

    def read(self, task_id: str, *, whole: bool) -> Stored | None:
        """A task, with the values of its user only if it is to be whole; None if it has to be read from the file."""
        known = self._tasks.get(task_id)
        return known.whole() if known is not None and whole else known

    def keep(self, row: Stored, length: int) -> None:
        """Remember what a transaction wrote: `length` characters of document."""
        task = row.task
        is_new = self._tasks.pop(task.task_id, None) is None
        is_over = task.status.is_final and task.publish_at is None
        # These hold a user's values too, one level deeper.
        holds_more = task.steps or task.subtasks or task.signals or task.woken_by
        if is_over or holds_more or length + len(row.parameters) > _LONGEST:
            return
        if is_new and task.status in CLAIMABLE and len(self._tasks) >= self._most:
            return  # of a backlog the oldest are needed first
        self._tasks[task.task_id] = row.bare()
        if len(self._tasks) > self._most:
            self._tasks.popitem(last=False)
