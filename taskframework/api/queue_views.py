"""The shapes of the queues over HTTP."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from taskframework.api.views import NextCursor
from taskframework.model.status import Priority


class PauseView(BaseModel):
    """Who paused a task type, when and why."""

    by: str
    at: datetime
    reason: str | None


class LaneView(BaseModel):
    """One lane of a task type, as the store has it. Rates are of the last minute, in tasks a second."""

    waiting: int = Field(description="Tasks that could start now")
    oldest_at: datetime | None = Field(
        description="Since when the oldest of them could start; null: no task is waiting"
    )
    running: int
    retrying: int = Field(description="Tasks that failed and will be retried")
    is_bounded: bool = Field(description="More tasks may be waiting or retrying than were counted")
    in_per_second: float = Field(description="Submitted tasks", examples=[2.5])
    out_per_second: float = Field(description="Ended tasks, whatever their end status", examples=[2.5])


class QueueView(BaseModel):
    """The queues of one task type."""

    task_type: str
    is_paused: bool
    paused: PauseView | None = Field(description="Null while it is not paused")
    is_running: bool = Field(description="Whether a worker is running an attempt of this type")
    messages: dict[Priority, int] | None = Field(
        description="Messages ready in the broker, by lane; null while the broker is away"
    )
    lanes: dict[Priority, LaneView]
    is_bounded: bool = Field(description="In some lane more tasks may be waiting or retrying than were counted")
    is_running_bounded: bool = Field(description="More tasks may be running than were counted")


class QueuePage(BaseModel):
    """Queues by their task type."""

    items: list[QueueView]
    next_cursor: NextCursor
