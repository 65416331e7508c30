"""The message on the wire: a doorbell. It names a task and a dispatch epoch; all other data are in the document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

import orjson

from taskframework.errors import MessageUnreadableError
from taskframework.model.status import Priority
from taskframework.model.task import Task
from taskframework.model.values import INT64_END
from taskframework.model.versions import UNIQUE_HEADER, to_header

MESSAGE_VERSION = 1
#: Most bytes of a message. Messages of this framework have about 150; a far larger message comes from elsewhere.
MAX_MESSAGE_BYTES = 64 * 1024
#: How many leases the task has lost so far, so that a worker knows it before the claim.
CRASHES_HEADER = "x-crashes"
#: Since when the task can be claimed: by the second header, or without it by the first one, the time of submission.
SUBMITTED_HEADER = "submitted_at"
CLAIMABLE_HEADER = "claimable_at"
#: The W3C trace context.
TRACE_HEADER = "traceparent"


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """The content that is sent through `tasks.exchange`, and headers for people and for tracing."""

    task_id: str
    task_type: str
    dispatch_epoch: int
    lane: Priority = Priority.NORMAL
    headers: Mapping[str, str | int] | None = None

    def to_body(self) -> bytes:
        return orjson.dumps(
            {
                "schema_version": MESSAGE_VERSION,
                "task_id": self.task_id,
                "task_type": self.task_type,
                "dispatch_epoch": self.dispatch_epoch,
            }
        )

    @classmethod
    def for_task(cls, task: Task, lane: Priority | None = None) -> Self:
        """The message for a task's current dispatch epoch, in the trace of its submission.

        Args:
            task: the task as it is stored.
            lane: the lane that the message takes; None: the lane of the task's priority.
        """
        headers: dict[str, str | int] = {
            "task_id": task.task_id,
            "task_type": task.task_type,
            "user_id": task.user_id,
            "correlation_id": task.correlation_id,
            SUBMITTED_HEADER: rfc3339(task.created_at),
            "x-retry-count": task.attempts,
            CRASHES_HEADER: task.crashes,
        }
        if task.not_before > task.created_at:  # the task was submitted for a later time, or this is a retry
            headers[CLAIMABLE_HEADER] = rfc3339(task.not_before)
        if task.unique is not None:
            headers[UNIQUE_HEADER] = to_header(task.unique)
        if task.traceparent is not None:
            headers[TRACE_HEADER] = task.traceparent
        return cls(task.task_id, task.task_type, task.dispatch_epoch, lane or task.lane, headers)

    @property
    def traceparent(self) -> str | None:
        """The trace that the message belongs to."""
        trace = (self.headers or {}).get(TRACE_HEADER)
        return None if trace is None else str(trace)

    def in_trace(self, traceparent: str | None) -> Self:
        """The same message in another trace; None: in the trace in which it is."""
        if traceparent is None:
            return self
        return replace(self, headers={**(self.headers or {}), TRACE_HEADER: traceparent})


def read_message(body: bytes) -> TaskMessage:
    """Read a delivered body.

    Raises:
        MessageUnreadableError: with the reason, for everything that is not a message of a known version.
    """
    if len(body) > MAX_MESSAGE_BYTES:
        raise MessageUnreadableError(f"it has {len(body):,} bytes, far more than a task message")
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MessageUnreadableError(f"it is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise MessageUnreadableError("it is not a JSON object")
    version = content.get("schema_version")
    if version != MESSAGE_VERSION:
        raise MessageUnreadableError(f"its schema_version is {_shown(version)}, this release reads {MESSAGE_VERSION}")
    task_id, task_type, epoch = (content.get(key) for key in ("task_id", "task_type", "dispatch_epoch"))
    if not (isinstance(task_id, str) and 0 < len(task_id) <= 100 and "\0" not in task_id):
        raise MessageUnreadableError(f"its task_id is {_shown(task_id)}")
    if not (isinstance(task_type, str) and isinstance(epoch, int) and not isinstance(epoch, bool)):
        raise MessageUnreadableError("its task_type or dispatch_epoch is missing or of the wrong type")
    if not 0 < epoch < INT64_END:  # a store cannot compare a larger number
        raise MessageUnreadableError(f"its dispatch_epoch is {epoch}")
    return TaskMessage(task_id, task_type, epoch)


def claimable_since(headers: Mapping[str, str]) -> datetime | None:
    """Since when the task of a message can be claimed, by the store's clock; None if the message does not say."""
    try:
        since = datetime.fromisoformat(headers.get(CLAIMABLE_HEADER) or headers[SUBMITTED_HEADER])
    except (KeyError, ValueError):  # this framework did not write the headers
        return None
    return since if since.tzinfo is not None else None


def _shown(value: Any) -> str:
    return "missing" if value is None else repr(value)[:60]


def rfc3339(moment: datetime) -> str:
    """A time as every interface shows it: UTC, milliseconds, `Z`."""
    if moment.tzinfo is UTC and moment.microsecond:  # orjson gives "2026-01-31T08:15:30.123456…" in a third of the time
        return f"{orjson.dumps(moment)[1:24].decode()}Z"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
