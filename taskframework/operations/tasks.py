"""Shows tasks, cancels them, and queues them again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from taskframework.errors import (
    SignalsFullError,
    TaskframeworkError,
    TaskNotFoundError,
    TransitionRefusedError,
)
from taskframework.limits.versions import read_newest
from taskframework.model.interventions import Cancel, Discard, NewParameters, Replay, RetryNow
from taskframework.model.query import CursorInvalidError, Page, RoundOfSubtasks, SlotCursor, TaskFilter
from taskframework.model.scope import Scope
from taskframework.model.signals import MAX_SIGNALS, SendSignal
from taskframework.model.status import LIVE, REPLAYABLE, TaskStatus
from taskframework.model.streams import go_on_command
from taskframework.model.task import Task, new_claim_id
from taskframework.model.values import MAX_SIGNAL_BYTES
from taskframework.model.versions import is_older
from taskframework.moves import TaskMoves
from taskframework.operations.ancestors import Ancestors
from taskframework.operations.parents import count_deleted_subtasks
from taskframework.operations.refusals import (
    hint_if_deleted,
    hint_if_not_reopened_for,
    not_discarded_error,
    not_retried_error,
    parent_finished_error,
    refusal_of,
)
from taskframework.stores.base import TaskStore
from taskframework.submission.acceptance import accept_name, accept_reason
from taskframework.tasks.values import to_storable_json


class SignalConflictError(TaskframeworkError):
    """The idempotency key was used before for a signal of another name to the same task."""

    code = "idempotency_conflict"
    hint = "Use a new key for each signal: for example, put the name of the signal into the key."

    def __init__(self, key: str, task_id: str, name: str) -> None:
        super().__init__(f"The idempotency key {key!r} belongs to the signal {name!r} of task {task_id}.")
        self.key, self.task_id = key, task_id


class TaskOperations:
    """Operations on the tasks in a scope; tasks outside of it are treated as if they did not exist."""

    def __init__(self, store: TaskStore, moves: TaskMoves, dispatch_after: timedelta) -> None:
        """Prepare; `dispatch_after` as in `NewTasks`."""
        self._store = store
        self._moves = moves
        self._dispatch_after = dispatch_after
        self.ancestors = Ancestors(store, moves)

    async def get(self, task_id: str, scope: Scope) -> Task:
        """Read a task.

        Raises:
            TaskNotFoundError: if there is no such task, or it belongs to somebody else.
        """
        task = await self._store.get(task_id, scope)
        if task is None:
            raise TaskNotFoundError(task_id)
        return task

    async def list_tasks(
        self, scope: Scope, filter: TaskFilter, *, limit: int, cursor: str | None = None
    ) -> Page[Task]:
        """Return tasks from the newest to the oldest.

        If no index supports the filter, each page searches a part of the list. It may have few tasks although further
        pages follow.
        """
        find = self._store.search_tasks if filter.has_unindexed_condition else self._store.list_tasks
        return await find(scope, filter, limit=limit, cursor=cursor)

    async def cancel(self, task_id: str, scope: Scope, *, by: str, reason: str | None = None) -> Task:
        """Cancel a task. If it does not run, it is CANCELLED at once; a running task is asked to stop, and its end
        decides its status.

        A second call while a running task is still stopping is not an error.

        Raises:
            TaskNotFoundError: if there is no such task.
            TransitionRefusedError: if the task is final.
        """
        cancel = Cancel(task_id, scope, by, accept_reason(reason))
        if (cancelled := await self._moves.make(cancel)) is not None:
            return cancelled
        task = await self.get(task_id, scope)
        if task.status.is_final:
            raise refusal_of(task, "cancelled", LIVE)
        return task

    async def retry(
        self,
        task_id: str,
        scope: Scope,
        *,
        by: str,
        reopen: bool = False,
        reason: str | None = None,
        edited: NewParameters | None = None,
        replay_id: str | None = None,
        revision: int | None = None,
    ) -> Task:
        """Queue a failed, dead or cancelled task again, as a new generation with all its attempts.

        The next attempt of a RETRYING task becomes due now; if it is due already, nothing changes.

        A sub-task counts again if its parent waits; it is refused if its parent has ended.

        Args:
            task_id: the task.
            scope: whose tasks may be queued again.
            by: the caller.
            reopen: whether an ended parent waits again, and the parents above it too, so that they end again later.
            reason: why; kept in the history.
            edited: new parameters of the task, checked before.
            replay_id: the action on many tasks to which this call belongs.
            revision: only queue the task if it still has this revision.

        Raises:
            TaskNotFoundError: if there is no such task.
            TransitionRefusedError: if the task has another status, or has changed; if a newer version of its key would
                supersede it at once; or if it is a batch:
                `BatchOperations.retry_failed` retries the failed tasks in it, or its `on_batch_finished`.
            ParentFinishedError: if its parent has ended and is not to be reopened.
        """
        reason = accept_reason(reason)
        task = await self.check_retry(task_id, scope, reopen=reopen)
        if task.status is TaskStatus.RETRYING and edited is None:
            request = RetryNow(task_id, scope, by, self._dispatch_after, task.dispatch_epoch, reason, replay_id)
            return await self._retry_now(task, request)
        if revision not in (None, task.revision):
            raise not_retried_error(task)
        if reopen:
            await self.ancestors.reopen(task, scope, by)
        replay = Replay(task_id, scope, by, self._dispatch_after, task.revision, edited, reason, replay_id)
        replayed = await self._moves.make(replay)
        if replayed is None:
            raise not_retried_error(await self.get(task_id, scope))
        await self.ancestors.count_again(replayed, scope, by=by, reopen=reopen)
        return replayed

    async def _retry_now(self, task: Task, request: RetryNow) -> Task:
        if (due := await self._moves.make(request)) is not None:
            return due
        present = await self.get(task.task_id, request.scope)
        if present.status is not TaskStatus.RETRYING and present.attempts == task.attempts:
            raise not_retried_error(present)  # the task is cancelled, or has ended
        return present

    async def discard(self, task_id: str, scope: Scope, *, by: str, reason: str | None) -> Task:
        """Discard a dead letter. The task keeps its status and can still be retried by its id.

        Raises:
            TaskNotFoundError: if there is no such task.
            TransitionRefusedError: if the task is not a dead letter, or was discarded before.
        """
        discard = Discard(task_id, scope, by, accept_reason(reason))
        if (discarded := await self._moves.make(discard)) is not None:
            return discarded
        raise not_discarded_error(await self.get(task_id, scope))

    async def check_retry(self, task_id: str, scope: Scope, *, reopen: bool = False) -> Task:
        """Return a task if it can be queued again, as far as this can be known before; nothing is changed.

        Raises:
            TaskframeworkError: as `retry`.
        """
        task = await self.get(task_id, scope)
        if task.status is TaskStatus.RETRYING:
            return task
        if task.batch is not None or task.status not in REPLAYABLE or task.cascade_at is not None:
            raise not_retried_error(task)
        await self._check_version(task)
        if finished := await self.ancestors.finished(task, scope):
            hints = filter(None, map(hint_if_not_reopened_for, [task, *finished], finished))
            if (hint := next(hints, None)) or not reopen:
                raise parent_finished_error(task, finished[0], hint)
            for parent in finished:
                await self._check_version(parent)
                if deleted := await count_deleted_subtasks(self._store, parent):
                    raise parent_finished_error(task, finished[0], hint_if_deleted(parent, deleted))
        return task

    async def subtasks(
        self,
        task_id: str,
        scope: Scope,
        *,
        limit: int,
        round: int | None = None,
        status: TaskStatus | None = None,
        cursor: str | None = None,
    ) -> Page[Task]:
        """Return sub-tasks of a task in slot order, by default of its newest round. The cursor names the round, so all
        pages are of the round of the first one, even if another round begins in between.

        Raises:
            TaskNotFoundError: if there is no such task.
            CursorInvalidError: if the cursor does not belong to this list.
        """
        place = None if cursor is None else SlotCursor.decode(cursor)
        task = await self.get(task_id, scope)
        if task.subtasks is None:
            return Page((), None)
        if place is None:  # before the first slot
            place = SlotCursor(task.generation, task.subtasks.round if round is None else round, -1)
        elif round not in (None, place.round):
            raise CursorInvalidError
        chosen = RoundOfSubtasks(task_id, place.generation, place.round)
        statuses = None if status is None else [status]
        # One more sub-task shows whether another page follows.
        found = await self._store.list_subtasks(chosen, limit=limit + 1, after_slot=place.slot, statuses=statuses)
        last = found[limit - 1].parent if len(found) > limit else None
        return Page(tuple(found[:limit]), None if last is None else replace(place, slot=last.slot).encode())

    async def signal(
        self, task_id: str, scope: Scope, name: str, payload: Any = None, *, key: str | None = None
    ) -> Task:
        """Send a live task a signal: a task that waits for this signal continues; any other task keeps the signal until
        it waits for it.

        Args:
            task_id: the task.
            scope: whose tasks may get a signal.
            name: the name of the signal: 1 to 200 printable ASCII characters.
            payload: JSON of at most 64 KiB, or a pydantic model.
            key: a second call with the same key sends no second signal; without a key each call sends a new signal.

        Raises:
            SignalConflictError: if the task knows the key from a signal of another name.
            TaskNotFoundError: if there is no such task.
            InvalidRequestError: if the name or the key is not valid.
            ValueNotStorableError: if the payload is not JSON, or too large.
            TransitionRefusedError: if the task is final, or a batch.
            SignalsFullError: if the task has too many signals.
        """
        accept_name(name, "name")
        payload = to_storable_json(payload, "payload", MAX_SIGNAL_BYTES)
        signal = SendSignal(task_id, scope, new_claim_id() if key is None else accept_name(key, "key"), name, payload)
        if (signalled := await self._moves.make(signal)) is not None:
            return signalled
        task = await self.get(task_id, scope)
        if (known := next((known for known in task.signals if known.key == key), None)) is not None:
            if known.name != name:
                raise SignalConflictError(known.key, task_id, known.name)
            return task
        if task.batch is not None:
            message = f"Task {task_id} is a batch, which executes no code itself, so nothing can wait for the signal."
            raise refusal_of(task, "signalled", LIVE, message=message, hint="Send the signal to one of its tasks.")
        if task.status.is_final:
            raise refusal_of(task, "signalled", LIVE)
        raise SignalsFullError(task_id, MAX_SIGNALS)

    async def _check_version(self, task: Task) -> None:
        """Refuse a task that a newer version would supersede as soon as a worker gets it."""
        if (unique := task.unique) is None:
            return
        newest = await read_newest(self._store, task.user_id, unique.key)
        if newest is not None and is_older(unique, newest):
            message = (
                f"Task {task.task_id} is version {unique.version} of {unique.key!r},"
                f" and task {newest.task_id} has taken its place."
            )
            hint = f"No action is needed: that task is version {newest.version}."
            if task.stream is not None and task.stream.halts:
                command = go_on_command(task.user_id, task.stream.key, task.stream.position)
                hint = f"That task is version {newest.version}. If this one halts its stream: {command}"
            raise TransitionRefusedError(task.task_id, "retried", task.status, message=message, hint=hint)
