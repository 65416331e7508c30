"""Pauses: an operator's order that no task of a type begins for now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from taskframework.model.records import RecordKind


@dataclass(frozen=True, slots=True)
class Pause:
    """Who paused a task type, when, and why."""

    task_type: str
    by: str
    at: datetime
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """When the last pause of a task type ended. What waited before does not count for queue timeouts."""

    at: datetime


#: The record of a pause, by the name of the task type. It exists as long as the type is paused.
PAUSE = RecordKind("pause", Pause)
#: The record of the end of a pause, by the name of the task type. It is written before the pause ends, and kept for a
#: time.
RESUMED = RecordKind("resumed", Resumed)
