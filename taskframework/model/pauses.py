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


#: The record of a pause, by the name of the task type. It exists as long as the type is paused.
PAUSE = RecordKind("pause", Pause)
