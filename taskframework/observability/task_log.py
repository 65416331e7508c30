"""Logs a line for each failed attempt and each task that ended or waits, in the process that stored this.

This process may be a worker, a process whose repair found the task of a dead worker, or an API process that was asked
to cancel. The message of an exception is logged; parameters, results and variables are not.
"""

from __future__ import annotations

import logging
from typing import Any

from taskframework.bus import EventBus
from taskframework.model.events import (
    EVENT_BY_ENTRY_TYPE,
    TaskCancelledEvent,
    TaskCompletedEvent,
    TaskEvent,
    TaskFailedEvent,
    TaskRetryingEvent,
    TaskWaitingEvent,
)
from taskframework.model.interventions import BY_PARENT
from taskframework.model.task import Task
from taskframework.model.task_fields import HistoryEntry, TaskError
from taskframework.model.wording import duration_text, pluralize

logger = logging.getLogger(__name__)

_LEVELS: dict[type[TaskEvent], int] = {
    TaskRetryingEvent: logging.WARNING,
    TaskFailedEvent: logging.ERROR,
    TaskCancelledEvent: logging.INFO,
    TaskCompletedEvent: logging.DEBUG,
    TaskWaitingEvent: logging.DEBUG,
}


def listen(bus: EventBus) -> None:
    """Write a line for each of these events on the bus."""
    for event_type in _LEVELS:
        bus.listen(event_type, _log_event, name="task_log")


def _log_event(event: TaskEvent) -> None:
    level = _level_of(event)
    if not logger.isEnabledFor(level):
        return  # the usual case
    task = event.task
    # Not always the newest entry: if the task was read again after a lost reply, it may have moved on since.
    end = next(entry for entry in reversed(task.history) if EVENT_BY_ENTRY_TYPE[entry.type] is type(event))
    error = None if isinstance(event, (TaskCompletedEvent, TaskWaitingEvent)) else _error_of(task, end)
    fields = _fields(task, end, error)
    record = logger.makeRecord(logger.name, level, __file__, 0, _line_of(task, end, error), (), None, extra=fields)
    if level == logging.ERROR and error is not None and error.traceback:
        # As text, in the field that every formatter reads, because the exception may come from another process.
        record.exc_text = f"Traceback (most recent call last):\n{error.traceback}{error.type}: {error.message}"
    logger.handle(record)


def _level_of(event: TaskEvent) -> int:
    cancel = event.task.cancel
    if isinstance(event, TaskCancelledEvent) and cancel is not None and cancel.by == BY_PARENT:
        return logging.DEBUG  # of perhaps thousands; the cascade writes one line for all of them
    return _LEVELS[type(event)]


def _line_of(task: Task, end: HistoryEntry, error: TaskError | None) -> str:
    text = f"task {task.task_id} ({task.task_type}) {_phrase_of(task, end)}"
    if (seconds := _seconds(task, end)) is not None:
        text += f" in attempt {end.attempt} of {task.max_attempts} after {duration_text(seconds)}"
    if end.type == "retrying":
        text += f" and is retried in {duration_text(task.not_before - end.at)}"
    elif end.type == "failed":
        text += " and is not retried"
    return text if error is None else f"{text}: {_error_text(error)}"


def _phrase_of(task: Task, end: HistoryEntry) -> str:
    match end.type:
        case "dead_letter":
            return "became a dead letter"
        case "cancelled":
            return f"was cancelled by {task.cancel.by}" if task.cancel else "was cancelled"
        case "completed" | "completed_with_errors":
            return "completed"
        case "waiting":
            return f"waits for {_awaited_text(end)}"
    return "failed"


def _awaited_text(end: HistoryEntry) -> str:
    subtasks, signal = end.data["subtasks"], end.data["signal"]
    named = None if signal is None else f"the signal {signal!r}"
    counted = None if subtasks is None else pluralize(subtasks, "sub-task")
    return " or ".join(filter(None, (counted, named)))


def _error_of(task: Task, end: HistoryEntry) -> TaskError | None:
    error = next((error for error in reversed(task.errors) if error.attempt == end.attempt), None)
    return None if error is None or error.code == "cancelled" else error


def _seconds(task: Task, end: HistoryEntry) -> float | None:
    """Return the seconds from the claim to the end of the attempt; None if no attempt ended (no worker is named)."""
    if end.worker_id is None or task.started_at is None or task.started_at > end.at:
        return None
    return (end.at - task.started_at).total_seconds()


def _error_text(error: TaskError) -> str:
    """Return the error on one line, with the type of the exception that the task's code raised."""
    message = " ".join(error.message.splitlines())
    if error.type == "taskframework":
        return message
    return ": ".join(filter(None, (error.type.rpartition(".")[2], message)))


def _fields(task: Task, end: HistoryEntry, error: TaskError | None) -> dict[str, Any]:
    fields = {
        "task_id": task.task_id,
        "task_type": task.task_type,
        "user_id": task.user_id,
        "correlation_id": task.correlation_id,
        "trace_id": task.traceparent.split("-")[1] if task.traceparent else None,
        "attempt": end.attempt,
        "duration": _seconds(task, end),
        "status": end.type.upper(),
        "error_code": error.code if error else None,
        "error_type": error.type if error else None,
        "crashes": task.crashes or None,
    }
    return {name: value for name, value in fields.items() if value is not None}
