"""The shapes of the limits over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field


class LimitView(BaseModel):
    """A bucket of a rate limit, as it is now."""

    kind: Literal["rate"]
    name: str = Field(examples=["openai"])
    key: str | None = Field(description="The value of the limit's key; null: the bucket for tasks without a key")
    rate: float = Field(description="Attempts per second")
    burst_capacity: int = Field(description="Attempts at once after a pause")
    available: int = Field(description="How many may start at once now")
    next_at: datetime | None = Field(description="When the next one may start; null: now")
    last_turn_at: datetime | None = Field(description="The last turn that a task waits for; null: no task is waiting")


class HolderView(BaseModel):
    """A task that runs with a slot, or is about to."""

    task_id: str
    worker_id: str = Field(examples=["host:4711:ab12cd"])
    since: datetime


class SlotsView(BaseModel):
    """The slots of a concurrency limit, as they are now."""

    kind: Literal["concurrency"]
    name: str = Field(description="The task type", examples=["resize"])
    key: str | None = Field(description="The value of the limit's key; null: the slots of the whole type")
    number: int = Field(description="Number of slots, according to the worker that asked last")
    holders: list[HolderView]
    waiting: int = Field(description="Tasks that wait for a slot; at most 500 are counted per key")


class LimitPage(BaseModel):
    """Buckets by name and key, then slots by task type and key."""

    items: list[Annotated[LimitView | SlotsView, Field(discriminator="kind")]]
    next_cursor: None = Field(description="Always null: they are all on one page")
