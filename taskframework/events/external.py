"""External events: CloudEvents 1.0 in JSON, single or as a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from taskframework.brokers.base import ExternalMessage
from taskframework.errors import MessageUnreadableError
from taskframework.model.events import EVENT_BY_ENTRY_TYPE
from taskframework.model.message import rfc3339
from taskframework.model.task import Task
from taskframework.model.view import public_view

SINGLE = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
PREFIX = "task."
#: The types of events, without the prefix.
TYPES = (*EVENT_BY_ENTRY_TYPE, "progress")


@dataclass(frozen=True, slots=True)
class ExternalEvent:
    """One event as another program sees it.

    Attributes:
        type: `task.submitted`, `task.started`, `task.progress`, ...
        task_id: the subject.
        sequence: counts a task's events from 1; a progress event has the last sequence and does not count.
        progress_revision: the number of the progress report; None for all other events.
        data: the task's public view when the event was published, without parameters and history.
    """

    id: str
    type: str
    source: str
    task_id: str
    sequence: int
    time: datetime
    data: dict[str, Any]
    progress_revision: int | None = None
    traceparent: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the CloudEvent in the JSON event format."""
        event: dict[str, Any] = {
            "specversion": "1.0",
            "id": self.id,
            "type": self.type,
            "source": self.source,
            "subject": self.task_id,
            "time": rfc3339(self.time),
            "datacontenttype": "application/json",
            "sequence": self.sequence,
            "data": self.data,
        }
        if self.progress_revision is not None:
            event["progressrevision"] = self.progress_revision
        if self.traceparent is not None:
            event["traceparent"] = self.traceparent
        return event


def lifecycle_events(task: Task, above: int, source: str) -> list[ExternalEvent]:
    """Return the events for the entries of a task's history above a sequence, all with the task as it is now."""
    data = public_view(task, whole=False)
    return [
        ExternalEvent(
            id=f"{task.task_id}-{entry.sequence}",
            type=PREFIX + entry.type,
            source=source,
            task_id=task.task_id,
            sequence=entry.sequence,
            time=entry.at,
            data=data,
            traceparent=task.traceparent,
        )
        for entry in task.history
        if entry.sequence > above
    ]


def progress_event(task: Task, source: str) -> ExternalEvent:
    """Return the event for a task's newest progress."""
    return ExternalEvent(
        id=f"{task.task_id}-{task.sequence}-p{task.progress_revision}",
        type=PREFIX + "progress",
        source=source,
        task_id=task.task_id,
        sequence=task.sequence,
        time=task.updated_at,
        data=public_view(task, whole=False),
        progress_revision=task.progress_revision,
        traceparent=task.traceparent,
    )


def to_message(events: Sequence[ExternalEvent]) -> ExternalMessage:
    """Make one message of one or several events."""
    if len(events) == 1:
        return ExternalMessage(orjson.dumps(events[0].to_dict()), SINGLE, {})
    return ExternalMessage(orjson.dumps([event.to_dict() for event in events]), BATCH, {})


def read_events(message: ExternalMessage) -> list[ExternalEvent]:
    """Read a message of the events exchange, single or batch.

    Raises:
        MessageUnreadableError: if it is not a CloudEvent of this framework.
    """
    try:
        content = orjson.loads(message.body)
        entries = content if isinstance(content, list) else [content]
        return [_event(entry) for entry in entries]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise MessageUnreadableError(f"it is not a CloudEvent of a task ({error!r})") from error


def _event(entry: dict[str, Any]) -> ExternalEvent:
    if not str(entry["specversion"]).startswith("1."):
        raise ValueError(f"specversion {entry['specversion']!r}")
    if not all(isinstance(entry[name], str) for name in ("id", "type", "source", "subject", "time")):
        raise TypeError("an attribute is not a text")
    if not isinstance(entry["data"], dict):
        raise TypeError("its data is not an object")
    return ExternalEvent(
        id=entry["id"],
        type=entry["type"],
        source=entry["source"],
        task_id=entry["subject"],
        sequence=int(entry["sequence"]),
        time=datetime.fromisoformat(entry["time"]),
        data=entry["data"],
        progress_revision=entry.get("progressrevision"),
        traceparent=entry.get("traceparent"),
    )
