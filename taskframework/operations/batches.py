"""Looks at batches, reads their results, cancels them, and retries their failed tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile
from math import inf

from taskframework.errors import TaskNotFoundError, TransitionRefusedError
from taskframework.model.batch_status import BatchResult, BatchStatus, items_by_status, results_of
from taskframework.model.batches import ReopenBatch, is_sealed, parts_of
from taskframework.model.query import Page, RoundOfSubtasks, TaskFilter
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import LATE_SPAWN_PAUSE, count_deleted, may_grow_until, subtask_id
from taskframework.model.task import Task
from taskframework.model.wording import duration_text, pluralize
from taskframework.moves import TaskMoves
from taskframework.operations.refusals import HINT_STILL_CANCELLING, hint_if_deleted
from taskframework.operations.tasks import TaskOperations
from taskframework.stores.base import TaskStore

#: How many sub-tasks are read together for results. Each may have a result of 1 MiB, and parameters of the same size.
_RESULT_PAGE_SIZE = 50
#: Seconds between two looks at a batch whose next result does not exist yet: at first, and at most.
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.05, 1.0


class BatchNotRetriedError(TransitionRefusedError):
    """There is nothing to retry in the batch."""

    def __init__(self, batch_id: str, status: str, hint: str) -> None:
        """Make the error of one batch in this status; `hint` says what the caller can do."""
        message = f"Batch {batch_id} is {status}; its failed tasks cannot be retried."
        super().__init__(batch_id, "retried", status, message=message, hint=hint)


class BatchOperations:
    """Operations on the batches in a scope; batches outside of it are treated as if they did not exist."""

    def __init__(self, store: TaskStore, moves: TaskMoves, tasks: TaskOperations) -> None:
        self._store = store
        self._moves = moves
        self._tasks = tasks

    async def get(self, batch_id: str, scope: Scope) -> Task:
        """Read the batch as a task.

        Raises:
            TaskNotFoundError: if there is no such batch.
        """
        batch = await self._store.get(batch_id, scope)
        if batch is None or batch.batch is None:
            raise TaskNotFoundError(batch_id, what="batch")
        return batch

    async def status(self, batch_id: str, scope: Scope) -> BatchStatus:
        """Return the progress of a batch, counted now.

        Raises:
            TaskNotFoundError: if there is no such batch.
        """
        return await self._count_status(await self.get(batch_id, scope))

    async def list_batches(
        self, scope: Scope, filter: TaskFilter, *, limit: int, cursor: str | None = None
    ) -> Page[BatchStatus]:
        """Return batches from the newest to the oldest, each with the progress of its last count."""
        wanted = replace(filter, batches=True)
        page = await self._tasks.list_tasks(scope, wanted, limit=limit, cursor=cursor)
        now = self._store.now()
        return Page(tuple(BatchStatus(batch, now) for batch in page.items), page.next_cursor)

    async def results(self, batch_id: str, scope: Scope, *, limit: int, first: int = 0) -> Page[BatchResult]:
        """Return the present outcomes of some items, in their order. The cursor is the number of the next item, which
        may not be stored yet; after the last item there is no cursor.

        Args:
            batch_id: the batch.
            scope: whose batches may be read.
            limit: the most items of the page.
            first: the item to begin with, from 0.

        Raises:
            TaskNotFoundError: if there is no such batch.
        """
        batch = await self.get(batch_id, scope)
        found = await self._results(batch, first, limit)
        next_index = found[-1].index + 1 if found else first
        is_last = next_index >= _end_of(batch) or (batch.status.is_final and not found)
        return Page(tuple(found), None if is_last else str(next_index))

    async def follow_results(
        self, batch_id: str, scope: Scope, *, first: int = 0
    ) -> AsyncIterator[Sequence[BatchResult]]:
        """Yield the result of each item in order, as soon as this result and all results before it exist.

        The results come in parts; an empty part says that nothing is new. This ends after the last item. If the batch
        ended before all items were stored, it ends after the last stored item.

        Raises:
            TaskNotFoundError: if there is no such batch, or it was removed meanwhile.
        """
        pause = _FIRST_PAUSE_SECONDS
        while True:
            batch = await self.get(batch_id, scope)
            # While this waits for a result, each look reads only this result and not the results after it.
            found = await self._results(batch, first, _RESULT_PAGE_SIZE if pause == _FIRST_PAUSE_SECONDS else 1)
            finished = list(takewhile(lambda result: result.status.is_final, found))
            yield finished
            first = finished[-1].index + 1 if finished else first
            if first >= _end_of(batch) or (batch.status.is_final and not found):
                return
            if finished:
                pause = _FIRST_PAUSE_SECONDS
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _MAX_PAUSE_SECONDS)

    async def cancel(self, batch_id: str, scope: Scope, *, by: str, reason: str | None = None) -> BatchStatus:
        """Cancel a batch, and in the background its live tasks.

        Raises:
            TaskNotFoundError: if there is no such batch.
            TransitionRefusedError: if the batch is final.
        """
        await self.get(batch_id, scope)
        return await self._count_status(await self._tasks.cancel(batch_id, scope, by=by, reason=reason))

    async def retry_failed(self, batch_id: str, scope: Scope, *, by: str) -> BatchStatus:
        """Replay all failed and cancelled tasks of a batch, in the background; the batch waits for all of them again.

        Raises:
            TaskNotFoundError: if there is no such batch.
            BatchNotRetriedError: if its policy is met, it was never uploaded completely, its tasks are being
                cancelled, or the retention has deleted some of them.
        """
        obstacle = await self._find_obstacle(await self.get(batch_id, scope))
        reopened = None if obstacle else await self._moves.make(ReopenBatch(batch_id, scope, by))
        if reopened is None:
            batch = await self.get(batch_id, scope)
            hint = _hint_if_not_retried(batch, obstacle, self._store.now())
            raise BatchNotRetriedError(batch_id, batch.status, hint)
        return await self._count_status(reopened)

    async def _find_obstacle(self, batch: Task) -> str | None:
        """Return why the tasks of a batch that has ended cannot be replayed, as a hint; None if they may be."""
        if not batch.status.is_final:
            return None
        counts = await self._store.count_subtasks(_round_of(batch))
        # Running tasks that were asked to stop end as CANCELLED after the retry, which would then not retry them.
        if live := sum(count for status, count in counts.items() if not status.is_final):
            left = pluralize(live, "task")
            return f"Its tasks are still being cancelled; try again when they have ended ({left} left)."
        deleted = count_deleted(parts_of(batch)[1], counts)
        return hint_if_deleted(batch, deleted) if deleted else None

    async def _count_status(self, batch: Task) -> BatchStatus:
        own, subtasks = parts_of(batch)
        counts = await self._store.count_subtasks(_round_of(batch))
        last: Task | None = None
        if own.chunk_size > 1 and subtasks.planned is not None:
            slot = subtasks.planned - 1
            last = await self._store.get(subtask_id(batch.task_id, batch.generation, subtasks.round, slot), EVERYONE)
        items = items_by_status(batch, counts, None if last is None else last.status)
        return BatchStatus(batch, self._store.now(), items)

    async def _results(self, batch: Task, first: int, limit: int) -> list[BatchResult]:
        size = parts_of(batch)[0].chunk_size
        slots = -(-(first % size + limit) // size)
        found = await self._store.list_subtasks(_round_of(batch), limit=slots, after_slot=first // size - 1)
        results = [result for subtask in found for result in results_of(subtask, size)]
        wanted = [result for result in results if result.index >= first][:limit]
        if batch.status.is_final:  # tasks that are missing were removed, or never stored
            return wanted
        # A missing task is still to be stored. If its process died, later tasks may end before it exists.
        return [result for index, result in enumerate(wanted, first) if result.index == index]


def _round_of(batch: Task) -> RoundOfSubtasks:
    return RoundOfSubtasks(batch.task_id, batch.generation, parts_of(batch)[1].round)


def _hint_if_not_retried(batch: Task, obstacle: str | None, now: datetime) -> str:
    """Return what the caller can do.

    Args:
        batch: the batch that was not reopened.
        obstacle: what was found before, if anything.
        now: by the store's clock.
    """
    if not is_sealed(batch):
        return "It was never uploaded completely: submit the items again, in a new batch."
    if batch.status is TaskStatus.COMPLETED:
        return "Its policy is met, so no task needs a retry."
    if not batch.status.is_final:
        return "Try again when it has ended."
    if obstacle:
        return obstacle
    if (until := may_grow_until(batch)) is None:
        return HINT_STILL_CANCELLING
    # The cascade notices the end of this time at its next look.
    wait = max(until - now, timedelta(0)) + LATE_SPAWN_PAUSE
    return (
        "It was cancelled during a retry, and tasks that are retried late are still being cancelled; "
        f"try again in {duration_text(wait)}."
    )


def _end_of(batch: Task) -> float:
    """Return how many items the batch has; infinite while this is not known."""
    return parts_of(batch)[0].items if is_sealed(batch) else inf
