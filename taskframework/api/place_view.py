"""What HTTP shows of a task's place in an ordered stream."""

from __future__ import annotations

from pydantic import BaseModel, Field

from taskframework.model.options import StreamMode


class PlaceView(BaseModel):
    """Where a task is in an ordered stream."""

    key: str
    mode: StreamMode
    position: int = Field(description="Counts from 0")
    is_skipped: bool = Field(description="The stream went on without its result, or without it")
