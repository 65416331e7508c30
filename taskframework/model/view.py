"""The public view of a task: the same fields over HTTP, on the command line and in external events."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from taskframework.model.message import rfc3339
from taskframework.model.task import Task
from taskframework.model.task_fields import HistoryEntry, TaskError


def public_view(task: Task, *, whole: bool = True) -> dict[str, Any]:
    """A task as plain JSON.

    Args:
        task: the task.
        whole: whether to include `parameters` and `history`; external events omit them, because they may be large.

    Returns:
        The fields of the HTTP contract.
    """
    view: dict[str, Any] = {
        "task_id": task.task_id,
        "task_type": task.task_type,
        "status": str(task.status),
        "user_id": task.user_id,
        "progress": task.progress,
        "result": task.result,
        "error": error_view(task.error),
        "attempt": task.attempts,
        "max_attempts": task.max_attempts,
        "generation": task.generation,
        "priority": str(task.priority),
        "parent_task_id": task.parent.task_id if task.parent else None,
        "slot": task.parent.slot if task.parent else None,
        "subtasks": subtasks_view(task),
        "correlation_id": task.correlation_id,
        "stream": stream_view(task),
        "unique": None if task.unique is None else {"key": task.unique.key, "version": task.unique.version},
        "not_before": format_time(task.not_before),
        "deadline": format_time(task.deadline),
        "created_at": format_time(task.created_at),
        "started_at": format_time(task.started_at),
        "finished_at": format_time(task.finished_at),
        "updated_at": format_time(task.updated_at),
    }
    if whole:
        view["parameters"] = task.parameters
        view["history"] = [entry_view(entry) for entry in task.history]
    return view


def error_view(error: TaskError | None) -> dict[str, Any] | None:
    """An error without its traceback, which may show more of the program than a caller should see."""
    if error is None:
        return None
    return {name: getattr(error, name) for name in ("code", "type", "message", "retryable", "fingerprint")}


def subtasks_view(task: Task) -> dict[str, int | None] | None:
    counts = task.subtasks
    if counts is None:
        return None
    return {name: getattr(counts, name) for name in ("round", "planned", "done", "succeeded", "failed", "cancelled")}


def stream_view(task: Task) -> dict[str, Any] | None:
    place = task.stream
    if place is None:
        return None
    return {"key": place.key, "mode": place.mode, "position": place.position, "is_skipped": place.is_skipped}


def entry_view(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "sequence": entry.sequence,
        "type": entry.type,
        "at": format_time(entry.at),
        "attempt": entry.attempt,
        "worker_id": entry.worker_id,
        "data": entry.data,
    }


def format_time(value: datetime | None) -> str | None:
    return None if value is None else rfc3339(value)
