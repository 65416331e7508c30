"""Inserts of tasks that are versions of a key: the task first, then the record that names it.

`model/versions.py` says what is promised. A version lower than the newest is refused. For the same version the stored
task is returned, or the submission is refused if it is of another type; if this task failed or was deleted, the version
is stored again, as its next run. A higher version supersedes older tasks that have not begun, of whatever type.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from taskframework import failpoint
from taskframework.errors import NewerVersionError
from taskframework.limits.versions import become_newest, read_newest, supersede_before
from taskframework.model.idempotency import with_task_id
from taskframework.model.interventions import Supersede
from taskframework.model.options import Unique
from taskframework.model.scope import EVERYONE
from taskframework.model.task import Task
from taskframework.model.versions import Newest, answers_resubmission, versioned_id
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.stores.replies import Inserted
from taskframework.submission.idempotency import TaskInserts
from taskframework.submission.refusals import VersionConflictError


class VersionedInserts:
    """Stores versions of keys, and supersedes older versions."""

    def __init__(self, store: TaskStore, moves: TaskMoves, kept: timedelta, inserts: TaskInserts | None = None) -> None:
        """Prepare to store; the record of a key is kept for `kept` after the end of its newest task. Without `inserts`
        the store inserts.
        """
        self._store = store
        self._inserts = inserts or store
        self._moves = moves
        self._kept = kept

    async def insert(self, task: Task, unique: Unique) -> Inserted:
        """Store a task as this version of its key, or find the task that is stored already.

        Raises:
            NewerVersionError: if a higher version was accepted before.
            VersionConflictError: if this version is a task of another type.
            StoreUnavailableError: if it is not known whether the task was stored. Submit it again.
        """
        newest, version = await read_newest(self._store, task.user_id, unique.key), unique
        if newest is not None and newest.version > unique.version:
            # An earlier try of this submission may have stored the task and died. End the task now; otherwise a worker
            # would end it only when it is due.
            await self._moves.make(Supersede(versioned_id(task.user_id, unique), newest.version))
            raise _newer_version_error(unique, newest)
        if newest is not None and newest.version == unique.version:
            present = await self._store.get(newest.task_id, EVERYONE)
            if present is not None and answers_resubmission(present):
                _require_type(present, task, unique)
                await supersede_before(self._moves, newest)
                return Inserted(present, is_new=False)
            version = replace(unique, run=newest.run + 1)
        stored, version = await self._insert_run(task, version)
        await failpoint.reached("version.after_insert")
        newer = await become_newest(self._store, self._moves, stored.task, version, self._kept)
        if newer is not None:
            raise _newer_version_error(version, newer)
        _require_type(stored.task, task, unique)  # another process may have stored this version at the same time
        return stored

    async def _insert_run(self, task: Task, version: Unique) -> tuple[Inserted, Unique]:
        """Store a task as a run of this version, or as a later run if tasks of earlier runs ended without success. The
        record does not name these: a task is often stored for longer than the record of its key.

        Returns:
            The task, and its version with the run.
        """
        while True:
            [stored] = await self._inserts.insert([_with_version_id(task, version)])
            if isinstance(stored, Exception):
                raise stored
            if stored.is_new or answers_resubmission(stored.task):
                return stored, version
            version = replace(version, run=version.run + 1)


def _require_type(present: Task, task: Task, unique: Unique) -> None:
    """Refuse to answer with a task of another type: the caller would get a result that it did not ask for."""
    if present.task_type != task.task_type:
        raise VersionConflictError(unique.key, unique.version, present.task_type, present.task_id)


def _newer_version_error(unique: Unique, newest: Newest) -> NewerVersionError:
    return NewerVersionError(unique.key, unique.version, newest.version, newest.task_id)


def _with_version_id(task: Task, unique: Unique) -> Task:
    """Return the task with the id that its version and run give."""
    return with_task_id(task, versioned_id(task.user_id, unique)).evolve(unique=unique)
