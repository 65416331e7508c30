"""What callers get of schedules, for the OpenAPI document."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from taskframework.model.schedules import Missed, Overlap
from taskframework.model.status import TaskStatus
from taskframework.names import NAME

SCHEDULE_NAME = f"^{NAME.pattern}$"
_ID = "0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11"
_TIME = "2027-01-31T12:00:00.000Z"


class LastRunView(BaseModel):
    """The newest run of a schedule."""

    at: datetime = Field(description="The scheduled time of the run", examples=[_TIME])
    task_id: str = Field(examples=[_ID])
    status: TaskStatus | None = Field(description="Present status of that task; null if it no longer exists")


class RunProblemView(BaseModel):
    """Why the newest run of a schedule could not be submitted."""

    at: datetime = Field(description="The scheduled time of the run", examples=[_TIME])
    message: str


class ScheduleView(BaseModel):
    """A schedule. Times are RFC 3339 in UTC with milliseconds, lengths of time such as `15m` or `1h30m`."""

    name: str = Field(examples=["nightly-report"])
    cron: str | None = Field(examples=["30 2 * * MON-FRI"])
    every: str | None
    timezone: str = Field(description="Time zone of `cron`", examples=["Europe/Berlin"])
    task_type: str = Field(examples=["count-words"])
    parameters: Any
    user_id: str = Field(description="Owner of the tasks")
    missed: Missed
    overlap: Overlap
    jitter: str = Field(examples=["30s"])
    is_paused: bool
    is_from_settings: bool = Field(description="Defined in the settings, and changed only there")
    next_run_at: datetime | None = Field(description="With its jitter; null while it is paused", examples=[_TIME])
    next_runs: list[datetime] | None = Field(default=None, description="Single schedules only: the next five")
    last_run: LastRunView | None
    problem: RunProblemView | None = Field(description="Why the newest run could not be submitted; null if it could")


class SchedulePage(BaseModel):
    """Schedules by their names."""

    items: list[ScheduleView]
    next_cursor: str | None = Field(description="Give it as `cursor` to get the next page; null on the last one")
