"""Group commit: the writes of concurrent callers as one transaction of a few statements.

A group reads all its tasks, runs the rules of the model in the order of the calls, each on the result of the rule
before, and writes all tasks. It holds the write lock of the file during this time, so the result is the same as that of
single writes.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TypeVar

from taskframework.clock import Clock
from taskframework.errors import StoreError, TaskUnreadableError
from taskframework.leaving_out import leave_out
from taskframework.model.marks import Mark
from taskframework.model.records import Record
from taskframework.model.task import Task
from taskframework.stores.replies import Inserted
from taskframework.stores.sqlite import queries
from taskframework.stores.sqlite.connection import Database
from taskframework.stores.sqlite.known_tasks import FileState, KnownTasks
from taskframework.stores.sqlite.records import WriteRecords, write
from taskframework.stores.sqlite.rows import StoredTask, TaskRow, Value, new_row, read_row, to_json


@dataclass(frozen=True, slots=True)
class Insert:
    """Store a task, or find the stored task with its id."""

    row: StoredTask
    columns: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Inserts:
    """Store tasks; the reply has an entry for each. They are encoded before, so that no task can make a group fail."""

    inserts: Sequence[Insert | Exception]

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> Inserts:
        return cls([_encoded(task) for task in tasks])


@dataclass(frozen=True, slots=True)
class Change:
    """Run a rule on a task; the reply is the task after the rule, or None if the rule refused."""

    rule: Mark
    wants_reply: bool = True

    @classmethod
    def of(cls, rule: Mark) -> Change:
        to_json(rule.task_id)  # an id that cannot be encoded would make the read of the whole group fail
        return cls(rule)


@dataclass(frozen=True, slots=True)
class Marks:
    """Run many rules whose results nobody reads."""

    changes: tuple[Change, ...]

    @classmethod
    def of(cls, marks: Sequence[Mark]) -> Marks:
        to_json([mark.task_id for mark in marks])
        return cls(tuple([Change(mark, wants_reply=False) for mark in marks]))


Request = Inserts | Change | Marks | WriteRecords
Reply = Inserted | list[Inserted | Exception] | Task | list[Record | None] | None
Found = StoredTask | Exception
T = TypeVar("T")
K = TypeVar("K")


class GroupWriter:
    """Writes one group of requests and answers each of them."""

    def __init__(self, database: Database, clock: Clock, remembered: int) -> None:
        """Prepare without writing; `remembered` says how many tasks are remembered as they were last written."""
        self._database = database
        self._clock = clock
        self._known = KnownTasks(remembered)

    async def __call__(self, requests: Sequence[Request]) -> Sequence[Reply | Exception]:
        replies, state = await self._database.write(partial(self._write, requests), map(_reply_point, requests))
        self._known.committed(state)
        return replies

    def _write(
        self, requests: Sequence[Request], connection: sqlite3.Connection
    ) -> tuple[Sequence[Reply | Exception], FileState]:
        state = self._known.check(connection)
        group = _Group(self._clock.now())
        self._load(connection, requests, group)
        group.revisions = write(connection, [request for request in requests if isinstance(request, WriteRecords)])
        replies = [group.answer(request) for request in requests]
        _save(connection, group)
        group.remember(self._known)
        return replies, state.after(connection)

    def _load(self, connection: sqlite3.Connection, requests: Sequence[Request], group: _Group) -> None:
        inserts = chain.from_iterable(request.inserts for request in requests if isinstance(request, Inserts))
        tasks = [insert.row.task for insert in inserts if isinstance(insert, Insert)]
        changes = [change for request in requests for change in _changes(request)]
        answered_ids = {task.task_id for task in tasks} | {
            change.rule.task_id for change in changes if change.wants_reply
        }
        ids = answered_ids | {change.rule.task_id for change in changes}
        for task_id in ids:
            if (known := self._known.read(task_id, whole=task_id in answered_ids)) is not None:
                group.by_id[task_id] = known
        if unknown := ids - group.by_id.keys():
            for row in map(TaskRow._make, connection.execute(queries.TASKS_BY_ID, [to_json(sorted(unknown))])):
                group.by_id[row.task_id] = _read(row, whole=row.task_id in answered_ids)


def _encoded(task: Task) -> Insert | Exception:
    try:
        row = new_row(task)
        return Insert(row, row.inserted())
    except Exception as error:
        return error


def _read(row: TaskRow, *, whole: bool) -> Found:
    try:
        return read_row(row, with_parameters=whole)
    except StoreError as error:
        return error


def _changes(request: Request) -> tuple[Change, ...]:
    if isinstance(request, Marks):
        return request.changes
    return (request,) if isinstance(request, Change) else ()


def _reply_point(request: Request) -> str:
    if isinstance(request, Inserts):
        return "submit.reply"
    if isinstance(request, Marks):
        return "mark.reply"
    if isinstance(request, WriteRecords):
        return "record.reply"
    return request.rule.reply_failpoint


class _Group:
    """The tasks of a group in memory, and the changes to be written."""

    def __init__(self, now: datetime) -> None:
        self.by_id: dict[str, Found] = {}
        #: The revisions that the records of the group have in the file after their writes, applied or not.
        self.revisions: set[str] = set()
        self.inserted: list[Insert] = []
        self.updated: dict[str, tuple[StoredTask, tuple[Value, ...]]] = {}
        #: The updated tasks whose status or time of the end differs from the file.
        self.moved: set[str] = set()
        #: The updated tasks that have a value in one of the columns `UNUSUAL_MOVING`, now or in the file.
        self.unusual: set[str] = set()
        #: Changed parameters, by task id.
        self.replaced: dict[str, str] = {}
        self._now = now

    def answer(self, request: Request) -> Reply | Exception:
        """Answer one request; an error is the answer to its caller only."""
        try:
            if isinstance(request, Inserts):
                return [self._insert(insert) for insert in request.inserts]
            if isinstance(request, Marks):
                return self._mark(request)
            if isinstance(request, WriteRecords):
                return request.replies_for(self.revisions)
            return self._change(request)
        except Exception as error:
            return error

    def _mark(self, request: Marks) -> Exception | None:
        """Make all marks; return the last error, or None if all marks were made or left out."""
        errors = [error for change in request.changes if isinstance(error := self.answer(change), Exception)]
        refused = [error for error in errors if not isinstance(error, TaskUnreadableError)]
        for error in errors:
            if isinstance(error, TaskUnreadableError):
                leave_out(error)
        return refused[-1] if refused else None

    def remember(self, known: KnownTasks) -> None:
        """Remember the tasks in the state that the file has after the commit."""
        for request in self.inserted:
            if request.row.task.task_id not in self.updated:
                known.keep(request.row, len(str(request.columns[-1])))
        for row, columns in self.updated.values():
            known.keep(row, len(str(columns[-1])))

    def kind_of_update(self, task_id: str) -> tuple[bool, bool]:
        """Return whether the task keeps its status, and whether its unusual columns are written too."""
        return task_id not in self.moved, task_id in self.unusual

    def _insert(self, request: Insert | Exception) -> Inserted | Exception:
        if isinstance(request, Exception):
            return request
        task = request.row.task
        if (existing := self.by_id.get(task.task_id)) is not None:
            return existing if isinstance(existing, Exception) else Inserted(existing.task, is_new=False)
        self.inserted.append(request)
        self.by_id[task.task_id] = request.row
        return Inserted(task, is_new=True)

    def _change(self, request: Change) -> Task | None:
        task_id = request.rule.task_id
        if (existing := self.by_id.get(task_id)) is None:
            return None
        if isinstance(existing, Exception):
            raise existing
        if (task := request.rule.apply(existing.task, self._now)) is None:
            return None
        before, row = existing.task, existing.changed_to(task)
        self.updated[task_id] = row, row.moving()
        if row.task.status is not before.status or row.task.finished_at != before.finished_at:
            self.moved.add(task_id)
        if not (row.has_usual_moving_columns and existing.has_usual_moving_columns):
            self.unusual.add(task_id)
        if row.parameters is not existing.parameters:
            self.replaced[task_id] = row.parameters
        self.by_id[task_id] = row
        return row.task if request.wants_reply else None


def _save(connection: sqlite3.Connection, group: _Group) -> None:
    for whole, inserts in _split_by_kind(group.inserted, lambda insert: not insert.row.is_usual):
        connection.execute(*queries.insert_tasks([insert.columns for insert in inserts], whole=whole))
        parameters = [(insert.row.task.task_id, insert.row.parameters) for insert in inserts]
        connection.execute(*queries.insert_parameters(parameters))
    for (keeps_status, whole), ids in _split_by_kind(group.updated, group.kind_of_update):
        updates = [(task_id, *group.updated[task_id]) for task_id in ids]
        rows = [(task_id, *(row.unusual_moving() if whole else ()), *columns) for task_id, row, columns in updates]
        connection.execute(*queries.update_tasks(rows, keeps_status=keeps_status, whole=whole))
    for task_id, newer in group.replaced.items():
        connection.execute(queries.REPLACE_PARAMETERS, (newer, task_id))


def _split_by_kind(rows: Iterable[T], kind: Callable[[T], K]) -> Iterator[tuple[K, Sequence[T]]]:
    """The rows by kind, in parts that fit into one statement."""
    alike: defaultdict[K, list[T]] = defaultdict(list)
    for row in rows:
        alike[kind(row)].append(row)
    for name, same in alike.items():
        for at in range(0, len(same), queries.MAX_ROWS):
            yield name, same[at : at + queries.MAX_ROWS]
