"""How far a batch is, and the results of its items: the public view of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic

from typing_extensions import TypeVar  # with a default before Python 3.13

from taskframework.model.batches import is_sealed, not_before_of, parts_of
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import Counts
from taskframework.model.task import Task
from taskframework.model.view import error_view, format_time

R = TypeVar("R", default=Any, covariant=True)


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """How far a batch is. Numbers are of items."""

    #: The batch as a task.
    batch: Task
    #: The store's time.
    at: datetime
    #: Items by status, counted now; items that are not stored yet are missing. None: use the numbers of the last count.
    counts: Mapping[TaskStatus, int] | None = None

    @property
    def batch_id(self) -> str:
        return self.batch.task_id

    @property
    def status(self) -> TaskStatus:
        return self.batch.status

    @property
    def is_sealed(self) -> bool:
        """Whether the upload was completed."""
        return is_sealed(self.batch)

    @property
    def total(self) -> int:
        """How many items the batch has; before the seal, how many came so far."""
        return parts_of(self.batch)[0].items

    @property
    def ended(self) -> Counts:
        """How many items have ended, and how. While a retry is running, only items that succeeded count.

        Without `counts` these are the numbers of the last count of sub-tasks; the last chunk counts as full.
        """
        if self.counts is not None:
            ended = Counts.of(self.counts)
            is_being_retried = self.batch.retry_at is not None and not self.status.is_final
            return Counts(ended.succeeded) if is_being_retried else ended
        own, subtasks = parts_of(self.batch)
        numbers = (subtasks.succeeded, subtasks.failed, subtasks.cancelled)
        return Counts(*(min(number * own.chunk_size, own.items) for number in numbers))

    @property
    def percent(self) -> float | None:
        """The percentage of items that have ended; None before the seal."""
        return round(100 * min(self.ended.done / self.total, 1), 1) if self.is_sealed else None

    @property
    def rate(self) -> float | None:
        """Items a second since the batch could begin; None until an item has ended."""
        began = max(self.batch.created_at, not_before_of(self.batch))
        seconds = ((self.batch.finished_at or self.at) - began).total_seconds()
        return round(self.ended.done / seconds, 3) if self.ended.done and seconds > 0 else None

    @property
    def estimated_end(self) -> datetime | None:
        """When the last item ends if the rate stays the same. None if this is unknown: before the seal, after the end,
        and after a retry, because most items ended before the retry.
        """
        if not self.is_sealed or self.status.is_final or not self.rate or self._was_reopened:
            return None
        return self.at + timedelta(seconds=(self.total - min(self.ended.done, self.total)) / self.rate)

    @property
    def _was_reopened(self) -> bool:
        return any(entry.type == "reopened" for entry in self.batch.history)

    def view(self) -> dict[str, Any]:
        """The fields of the HTTP contract."""
        batch, own, ended = self.batch, parts_of(self.batch)[0], self.ended
        return {
            "batch_id": batch.task_id,
            "task_type": batch.task_type,
            "status": batch.status.value,
            "user_id": batch.user_id,
            "is_sealed": self.is_sealed,
            "total": self.total,
            "counts": None if self.counts is None else {status.value: n for status, n in self.counts.items()},
            "done": ended.done,
            "succeeded": ended.succeeded,
            "failed": ended.failed,
            "cancelled": ended.cancelled,
            "percent": self.percent,
            "rate": self.rate,
            "estimated_end": format_time(self.estimated_end),
            "policy": parts_of(batch)[1].policy,
            "chunk_size": own.chunk_size,
            "priority": str(batch.priority),
            "max_attempts": batch.max_attempts,
            "correlation_id": batch.correlation_id,
            "result": batch.result,
            "error": error_view(batch.error),
            "not_before": format_time(not_before_of(batch)),
            "deadline": format_time(batch.deadline),
            "created_at": format_time(batch.created_at),
            "first_result_at": format_time(own.first_result_at),
            "finished_at": format_time(batch.finished_at),
        }


@dataclass(frozen=True, slots=True)
class BatchResult(Generic[R]):
    """The status of one item, and its result."""

    #: The place of the item in the upload, from 0.
    index: int
    #: The task that does the item; several items may have the same task.
    task_id: str
    status: TaskStatus
    result: R = field(repr=False)
    error: dict[str, Any] | None

    def view(self) -> dict[str, Any]:
        """The fields of the HTTP contract."""
        return {
            "index": self.index,
            "task_id": self.task_id,
            "status": self.status.value,
            "result": self.result,
            "error": self.error,
        }


def results_of(subtask: Task, chunk_size: int) -> list[BatchResult]:
    """The results of the items of a sub-task of a batch."""
    slot = subtask.parent.slot if subtask.parent else 0
    error = error_view(subtask.error) if subtask.status.is_final else None
    if chunk_size == 1:
        return [BatchResult(slot, subtask.task_id, subtask.status, subtask.result, error)]
    items = len(subtask.parameters)
    results = subtask.result if subtask.result is not None else [None] * items
    return [
        BatchResult(slot * chunk_size + number, subtask.task_id, subtask.status, result, error)
        for number, result in enumerate(results)
    ]


def items_by_status(batch: Task, subtasks: Mapping[TaskStatus, int], last: TaskStatus | None) -> dict[TaskStatus, int]:
    """The numbers of items in each status.

    Args:
        batch: the batch of the items.
        subtasks: how many sub-tasks are in each status.
        last: the status of the last sub-task, whose chunk may not be full; None if it is not stored yet.
    """
    own, planned = parts_of(batch)[0], parts_of(batch)[1].planned
    items = {status: number * own.chunk_size for status, number in subtasks.items()}
    if last is not None and planned is not None:
        # Not below zero: the last sub-task may have left this status since the others were counted.
        items[last] = max(0, items.get(last, 0) - (planned * own.chunk_size - own.items))
    return items
