"""Makes tasks with sensible contents, for tests that care about one field."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from taskframework.clock import SystemClock
from taskframework.model.task import Task, initial_fields, new_task_id
from taskframework.model.values import MAX_PARAMETERS_BYTES, check_storable, fingerprint


def new_task(
    *, now: datetime | None = None, dispatch_after: timedelta = timedelta(seconds=5), **overrides: Any
) -> Task:
    """A task as it is right before its insert: QUEUED, with its first event.

    Args:
        now: when it was submitted; pass the store's clock if due times matter.
        dispatch_after: how long the sweeper leaves the task to the process that inserts it.
        overrides: fields of the task.
    """
    at = now or SystemClock().now()
    parameters = overrides.get("parameters", {"n": 1})
    fields: dict[str, Any] = {
        "task_id": new_task_id(),
        "task_type": "test-task",
        "user_id": "alice",
        "correlation_id": "correlation-1",
        "parameters": parameters,
        "parameters_hash": fingerprint(check_storable(parameters, "parameters", MAX_PARAMETERS_BYTES)),
        "max_attempts": 5,
        "not_before": at,
        "next_dispatch_at": None,
        "created_at": at,
        "updated_at": at,
    }
    fields |= overrides
    return Task(
        **fields | initial_fields(fields["not_before"], at, dispatch_after, fields.get("start_limit")) | overrides
    )
