"""Inserts of tasks with idempotency keys: for each key of a user there is one task.

There are two writes: first the record of the key, which names a task id, and then the task with that id. A request that
finds the record continues with the id in it. So if a process died between the two writes, the next request with the key
inserts the task. If two requests insert the task, one finds the task of the other.

A request that has read a record may insert the task after the retention has deleted the task of this id, and before or
after the retention deletes the record. So it writes the record again after the insert.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from taskframework import failpoint
from taskframework.errors import IdempotencyConflictError, StoreError, StoreUnavailableError
from taskframework.model.idempotency import IDEMPOTENCY, NO_REQUEST, IdempotencyKey, key_id, key_record, with_task_id
from taskframework.model.interventions import Cancel
from taskframework.model.records import Record
from taskframework.model.scope import EVERYONE
from taskframework.model.task import Task
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.stores.replies import Inserted
from taskframework.submission.refusals import was_refused

#: The most rounds of writing and reading: a record that existed at the write may be deleted before it is read.
_MAX_ROUNDS = 5
#: `cancel.by` and `cancel.reason` of a task whose key another request took at the same time.
_BY_OTHER_REQUEST = "duplicate"
_OTHER_REQUEST_REASON = "another task was stored for its idempotency key at the same time"


class TaskInserts(Protocol):
    """Stores tasks in the same way as `TaskStore.insert`."""

    async def insert(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]: ...


class IdempotentInserts:
    """Stores tasks; of the tasks of one user with the same key it stores only the first."""

    def __init__(self, store: TaskStore, moves: TaskMoves, kept: timedelta, inserts: TaskInserts | None = None) -> None:
        """Prepare to store. A key is kept for `kept` after the end of its task. Without `inserts` the store inserts."""
        self._store = store
        self._moves = moves
        self._inserts = inserts or store
        self._kept = kept

    async def insert(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        """Store tasks, or find the tasks for which their keys stand.

        Returns:
            For each task, in the order given, the stored task or an error: `IdempotencyConflictError` if the key stands
            for another type or other parameters, `StoreUnavailableError` if it is not known whether the task is stored.
        """
        if all(task.idempotency_key is None for task in tasks):
            return await self._inserts.insert(tasks)
        keys = await self._read_or_write_keys(tasks)
        identified = [_with_key_id(task, keys) for task in tasks]
        wanted: dict[str, Task] = {}
        for task in identified:
            if isinstance(task, Task):
                wanted.setdefault(task.task_id, task)
        stored = dict(zip(wanted, await self._inserts.insert(list(wanted.values())), strict=True))
        records = [key for key in keys.values() if isinstance(key, Record)]
        await self._correct_records(records, stored)
        written = {task.task_id for task in tasks}
        found = [record for record in records if IDEMPOTENCY.content(record).task_id not in written]
        await self._write_found_again(found, wanted, stored)
        return [
            _reply(task, stored[task.task_id], is_first=wanted[task.task_id] is task)
            if isinstance(task, Task)
            else task
            for task in identified
        ]

    async def _read_or_write_keys(self, tasks: Iterable[Task]) -> Mapping[str, Record | StoreError]:
        """Return the records of the keys of these tasks, by id; a new record names the first task with its key."""
        new: dict[str, Record] = {}
        for task in tasks:
            if task.idempotency_key is not None:
                record = key_record(task, self._kept)
                new.setdefault(record.id, record)
        try:
            keys = await self._find_or_write(new)
        except StoreError as error:
            return dict.fromkeys(new, error)
        await failpoint.reached("submit.after_key")
        return keys

    async def _find_or_write(self, new: Mapping[str, Record]) -> Mapping[str, Record]:
        keys: dict[str, Record] = {}
        for _ in range(_MAX_ROUNDS):
            missing = [record for record in new.values() if record.id not in keys]
            written = await self._store.write_records(missing)
            keys |= {record.id: record for record in written if record is not None}
            if len(keys) < len(new):
                keys |= await self._store.read_records(new.keys() - keys.keys())
            if len(keys) == len(new):
                return keys
        raise StoreUnavailableError("The idempotency key was deleted by another process at the same time.")

    async def _correct_records(self, keys: Iterable[Record], stored: Mapping[str, Inserted | Exception]) -> None:
        """Correct records whose request has stored nothing.

        Either the request was refused, and its key becomes free, or the store found another task with the key, which an
        earlier release without records inserted. If this write fails, the next request with the key corrects the
        record, or is refused if it asks for something else.
        """
        changed = []
        for record in keys:
            key = IDEMPOTENCY.content(record)
            reply = stored.get(key.task_id)
            present = key
            if was_refused(reply):
                present = replace(key, request_hash=NO_REQUEST)
            elif isinstance(reply, Inserted) and reply.task.task_id != key.task_id:
                present = IdempotencyKey(reply.task.task_id, reply.task.parameters_hash)
            if present != key:
                changed.append(IDEMPOTENCY.changed(record, present, expires_at=record.expires_at))
        if changed:
            with contextlib.suppress(StoreError):
                await self._store.write_records(changed)

    async def _write_found_again(
        self, found: Iterable[Record], wanted: Mapping[str, Task], stored: dict[str, Inserted | Exception]
    ) -> None:
        """Write the records again that existed already, and whose tasks were stored only now: the retention has deleted
        such a record, or is about to, if it has deleted an earlier task of this id. It deletes no record that was
        written since it read it.
        """
        again: dict[str, Record] = {}
        for record in found:
            reply = stored.get(IDEMPOTENCY.content(record).task_id)
            if isinstance(reply, Inserted) and reply.is_new:
                key = key_record(reply.task, self._kept)
                again[reply.task.task_id] = IDEMPOTENCY.changed(
                    record, IDEMPOTENCY.content(key), expires_at=key.expires_at
                )
        if not again:
            return
        try:
            written = await self._store.write_records(list(again.values()))
            for task_id in [task_id for task_id, record in zip(again, written, strict=True) if record is None]:
                stored[task_id] = await self._take_key(wanted[task_id], stored[task_id])
        except StoreError as error:
            stored |= dict.fromkeys(again, error)

    async def _take_key(self, task: Task, stored: Inserted | Exception) -> Inserted | Exception:
        """Write the deleted record of a stored task again. If another request was faster, its task counts."""
        new = key_record(task, self._kept)
        keys = await self._find_or_write({new.id: new})
        if IDEMPOTENCY.content(keys[new.id]).task_id == task.task_id:
            return stored
        await self._moves.make(Cancel(task.task_id, EVERYONE, _BY_OTHER_REQUEST, _OTHER_REQUEST_REASON))
        [reply] = await self.insert([task])
        return reply


def _with_key_id(task: Task, keys: Mapping[str, Record | StoreError]) -> Task | Exception:
    """Return the task with the id that the record of its key names."""
    if task.idempotency_key is None:
        return task
    key = keys[key_id(task.user_id, task.idempotency_key)]
    if isinstance(key, StoreError):
        return key
    content = IDEMPOTENCY.content(key)
    if not content.is_for(task):
        return IdempotencyConflictError(task.idempotency_key, content.task_id)
    return with_task_id(task, content.task_id)


def _reply(task: Task, stored: Inserted | Exception, *, is_first: bool) -> Inserted | Exception:
    """Return the answer to one of several requests for a task; only the first request made the task."""
    if isinstance(stored, Exception):
        return stored
    # Throttled submissions have no key, and share a task whatever their parameters are.
    if task.idempotency_key is not None and stored.task.parameters_hash != task.parameters_hash:
        return IdempotencyConflictError(task.idempotency_key, stored.task.task_id)
    return Inserted(stored.task, stored.is_new and is_first)
