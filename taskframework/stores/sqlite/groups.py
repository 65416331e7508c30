"""Group commit: the writes of concurrent callers as one transaction of a few statements.

The rules of the model run between one read and one write of all tasks of the group, in the order of the calls, each
on what the one before it left. The write lock of the file is held meanwhile, so the meaning is that of single writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import aiosqlite

from taskframework.clock import Clock
from taskframework.errors import StoreError
from taskframework.model.marks import Mark
from taskframework.model.task import Task
from taskframework.model.transitions import Fence
from taskframework.stores.base import Inserted
from taskframework.stores.replies import reply_point
from taskframework.stores.sqlite import queries
from taskframework.stores.sqlite.connection import Database
from taskframework.stores.sqlite.known import KnownTasks
from taskframework.stores.sqlite.rows import Key, Stored, TaskRow, Value, key_of, new_row, to_json


@dataclass(frozen=True, slots=True)
class Insert:
    """Put a task there, or say which one is. Encoded beforehand: what cannot be stored never reaches a group."""

    row: Stored
    columns: tuple[Value, ...]

    @classmethod
    def of(cls, task: Task) -> Insert:
        row = new_row(task)
        return cls(row, (*row.fixed(), *row.moving()))


@dataclass(frozen=True, slots=True)
class Change:
    """Run a rule on a task; the reply is the task after it, or None where the rule refused."""

    rule: Mark
    wants_reply: bool = True

    def __post_init__(self) -> None:
        to_json(self.rule.task_id)  # an id that is no text would fail the read of the whole group


@dataclass(frozen=True, slots=True)
class Renew:
    """A held lease goes on. No lifecycle event; even a late renewal is safe as long as nobody has reaped."""

    fence: Fence
    worker_id: str
    lease: timedelta

    @property
    def task_id(self) -> str:
        return self.fence.task_id

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.lease is None or not self.fence.holds(task) or task.lease.worker_id != self.worker_id:
            return None
        return task.evolve(lease=replace(task.lease, expires_at=now + self.lease))


@dataclass(frozen=True, slots=True)
class Marks:
    """Run many rules that nobody waits to read the outcome of."""

    changes: tuple[Change, ...]

    @classmethod
    def of(cls, marks: Sequence[Mark]) -> Marks:
        return cls(tuple([Change(mark, wants_reply=False) for mark in marks]))


Request = Insert | Change | Marks
Reply = Inserted | Task | None
Found = Stored | Exception


class GroupWriter:
    """Writes one group of requests and answers each of them."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known = KnownTasks()

    async def __call__(self, requests: Sequence[Request]) -> Sequence[Reply | Exception]:
        async with self._database.transaction(map(_reply_point, requests)) as connection:
            group = _Group(self._clock.now())
            await self._load(connection, requests, group)
            replies = [group.answer(request) for request in requests]
            await _save(connection, group)
        group.remember(self._known)
        return replies

    async def _load(self, connection: aiosqlite.Connection, requests: Sequence[Request], group: _Group) -> None:
        tasks = [request.row.task for request in requests if isinstance(request, Insert)]
        changes = [change for request in requests for change in _changes(request)]
        told = {task.task_id for task in tasks} | {change.rule.task_id for change in changes if change.wants_reply}
        ids = told | {change.rule.task_id for change in changes}
        if keys := {key for task in tasks if (key := key_of(task)) is not None}:
            for row in map(TaskRow._make, await connection.execute_fetchall(*queries.tasks_by_key(keys))):
                group.found(row, self._read(row))
        rows = await connection.execute_fetchall(queries.TASKS_BY_ID, [to_json(sorted(ids))])
        for row in map(TaskRow._make, rows):
            if row.task_id not in group.by_id:
                group.found(row, self._read(row, with_parameters=row.task_id in told))

    def _read(self, row: TaskRow, *, with_parameters: bool = True) -> Found:
        try:
            return self._known.read(row, with_parameters=with_parameters)
        except StoreError as error:
            return error


def _changes(request: Request) -> tuple[Change, ...]:
    if isinstance(request, Marks):
        return request.changes
    return (request,) if isinstance(request, Change) else ()


def _reply_point(request: Request) -> str:
    if isinstance(request, Insert):
        return "submit.reply"
    if isinstance(request, Marks):
        return "mark.reply"
    return "renew.reply" if isinstance(request.rule, Renew) else reply_point(request.rule)


class _Group:
    """The tasks of a group in memory, and what becomes of them."""

    def __init__(self, now: datetime) -> None:
        self.by_id: dict[str, Found] = {}
        self.by_key: dict[Key, Found] = {}
        self.inserted: list[Insert] = []
        self.updated: dict[str, tuple[Task, tuple[Value, ...]]] = {}
        self._now = now

    def found(self, row: TaskRow, found: Found) -> None:
        """Take in what the file holds."""
        self.by_id[row.task_id] = found
        if row.idempotency_key is not None:
            self.by_key[row.user_id, row.idempotency_key] = found

    def answer(self, request: Request) -> Reply | Exception:
        """Answer one request; what goes wrong with it is the answer to its own caller alone."""
        try:
            if isinstance(request, Marks):
                return self._mark(request)
            return self._insert(request) if isinstance(request, Insert) else self._change(request)
        except Exception as error:
            return error

    def _mark(self, request: Marks) -> Exception | None:
        """Make all marks; the last error, if one cannot be made."""
        errors = [error for change in request.changes if isinstance(error := self.answer(change), Exception)]
        return errors[-1] if errors else None

    def remember(self, known: KnownTasks) -> None:
        """Once it is committed, what the file holds."""
        for request in self.inserted:
            known.keep(request.row.task, str(request.columns[-1]))
        for task, columns in self.updated.values():
            known.keep(task, str(columns[-1]))

    def _insert(self, request: Insert) -> Inserted:
        task = request.row.task
        there = self.by_id.get(task.task_id)
        if there is None and (key := key_of(task)) is not None:
            there = self.by_key.get(key)
        if there is not None:
            return Inserted(_readable(there).task, is_new=False)
        self.inserted.append(request)
        self._keep(request.row)
        return Inserted(task, is_new=True)

    def _change(self, request: Change) -> Task | None:
        task_id = request.rule.task_id
        if (there := self.by_id.get(task_id)) is None:
            return None
        row = _readable(there)
        if (task := request.rule.apply(row.task, self._now)) is None:
            return None
        row = row.changed_to(task)
        self.updated[task_id] = row.task, row.moving()
        self._keep(row)
        return row.task if request.wants_reply else None

    def _keep(self, row: Stored) -> None:
        self.by_id[row.task.task_id] = row
        if (key := key_of(row.task)) is not None:
            self.by_key[key] = row


def _readable(found: Found) -> Stored:
    if isinstance(found, Exception):
        raise found
    return found


async def _save(connection: aiosqlite.Connection, group: _Group) -> None:
    if group.inserted:
        await connection.executemany(queries.INSERT_TASK, [request.columns for request in group.inserted])
        parameters = [(request.row.parameters, request.row.task.task_id) for request in group.inserted]
        await connection.executemany(queries.INSERT_PARAMETERS, parameters)
    if group.updated:
        await connection.executemany(
            queries.UPDATE_TASK, [(*columns, task_id) for task_id, (_, columns) in group.updated.items()]
        )
