"""Versions of keys at a worker: of the waiting tasks of a key, only the newest version begins."""

from __future__ import annotations

import logging
from datetime import timedelta

from taskframework.errors import TaskUnreadableError
from taskframework.limits.versions import become_newest, read_newest, supersede_before
from taskframework.model.interventions import Supersede
from taskframework.model.options import Unique
from taskframework.model.scope import EVERYONE
from taskframework.model.versions import from_headers, is_newer, is_older
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.worker.admission import Candidate, PutOff

logger = logging.getLogger(__name__)

#: For a superseded task. It has ended, so putting it off changes nothing in the store; its message is acknowledged.
_IS_OVER = PutOff(timedelta(0))
#: For a task if only a newer release can read it or the task that it supersedes: soon a worker of that release gets it.
_FOR_NEWER_RELEASE = PutOff(timedelta(seconds=30))


class NewestVersions:
    """`AdmissionCheck` that ends a task if there is a newer version, and completes a submission whose process died.

    It finds each write that such a submission did not make, so no repair is needed.
    """

    def __init__(self, store: TaskStore, moves: TaskMoves, kept: timedelta) -> None:
        """Prepare; `kept` has the same value as for the submission."""
        self._store = store
        self._moves = moves
        self._kept = kept

    async def admit(self, candidate: Candidate) -> PutOff | None:
        """Let the newest version continue; a task without a version needs no call to the store."""
        unique = from_headers(candidate.headers)
        if unique is None:
            return None
        try:
            return await self._compare(candidate, unique)
        except TaskUnreadableError as error:
            logger.info("task %s is put off: %s", candidate.message.task_id, error.message)
            return _FOR_NEWER_RELEASE

    async def _compare(self, candidate: Candidate, unique: Unique) -> PutOff | None:
        task_id = candidate.message.task_id
        newest = await read_newest(self._store, candidate.headers.get("user_id", ""), unique.key)
        if newest is None or is_newer(unique, newest):
            return await self._finish_submission(task_id)
        if is_older(unique, newest):
            await self._moves.make(Supersede(task_id, newest.version))
            return _IS_OVER
        await supersede_before(self._moves, newest)
        return None

    async def _finish_submission(self, task_id: str) -> PutOff | None:
        """Write the record for the process that stored the task, which died or has not written the record yet."""
        task = await self._store.get(task_id, EVERYONE)
        if task is None or task.unique is None:
            return None  # the claim will find the fault
        newer = await become_newest(self._store, self._moves, task, task.unique, self._kept)
        return None if newer is None else _IS_OVER
