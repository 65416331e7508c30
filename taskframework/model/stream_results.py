"""The results of a stream as a reader sees them: one result for each position, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from taskframework.model.streams import position_of
from taskframework.model.task import Task
from taskframework.model.values import Json
from taskframework.model.view import error_view

#: The status of a position that had no result in time. It is not a status of the task, which may still end.
SKIPPED = "SKIPPED"


@dataclass(frozen=True, slots=True)
class StreamResult:
    """The result of one position."""

    position: int
    #: None for a position that was given and never used.
    task_id: str | None = None
    #: The final status of the task; or SKIPPED.
    status: str = SKIPPED
    result: Json = field(default=None, repr=False)
    error: dict[str, Any] | None = None

    @classmethod
    def of(cls, task: Task) -> StreamResult:
        """The result of a task that is final or was skipped."""
        position = position_of(task)
        if task.stream is not None and task.stream.is_skipped:
            return cls(position, task.task_id)
        return cls(position, task.task_id, task.status.value, task.result, error_view(task.error))

    def view(self) -> dict[str, Any]:
        """The fields of the HTTP contract."""
        return {
            "position": self.position,
            "task_id": self.task_id,
            "status": self.status,
            "result": self.result,
            "error": self.error,
        }
