"""A fixed time and tasks in every status, for tests of the pure rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from taskframework.model.outcome import describe
from taskframework.model.status import CLAIMABLE, LIVE, TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import CancelRequest, Lease, TaskError
from taskframework.model.transitions import Fence
from taskframework.testing.factories import new_task

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ZERO = timedelta(0)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
TASK_ID = "the-task"
#: Differs from the attempt, as it does after a replay.
TOKEN = 7
FENCE = Fence(TASK_ID, TOKEN, "the-claim")


def in_status(status: TaskStatus, **overrides: Any) -> Task:
    """A healthy task in this status, in its third attempt if it runs; its lease ended a second ago."""
    fields: dict[str, Any] = {"task_id": TASK_ID, "status": status, "fencing_token": TOKEN, "attempts": 3}
    if status is TaskStatus.RUNNING:
        fields["lease"] = Lease("worker-1", "the-claim", NOW - SECOND)
    if status not in CLAIMABLE:
        fields["next_dispatch_at"] = None
    if status is TaskStatus.WAITING:
        fields["check_at"] = NOW - SECOND
    if status is TaskStatus.BLOCKED:
        fields["unblock_at"] = NOW - SECOND
    if status not in LIVE:
        fields["finished_at"] = NOW - MINUTE
    return new_task(now=NOW - MINUTE, **(fields | overrides))


def running(**overrides: Any) -> Task:
    return in_status(TaskStatus.RUNNING, **overrides)


def queued(**overrides: Any) -> Task:
    return in_status(TaskStatus.QUEUED, **overrides)


def wish_to_stop(by: str = "alice") -> CancelRequest:
    return CancelRequest(by, NOW - SECOND, None)


def an_error(message: str = "it broke") -> TaskError:
    return describe(ValueError(message), retryable=True)
