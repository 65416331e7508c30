"""The shapes of ordered streams over HTTP."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from taskframework.api.views import TaskErrorView
from taskframework.model.options import StreamMode
from taskframework.model.status import TaskStatus
from taskframework.operations.streams import CURSOR_PATTERN

#: As `CursorText`, for the list of streams: it has the user and the key.
StreamCursor = Annotated[str, Field(max_length=2001, json_schema_extra={"pattern": f"^{CURSOR_PATTERN.pattern}$"})]


class TurnView(BaseModel):
    """The task that runs, or is about to."""

    task_id: str
    position: int


class StreamView(BaseModel):
    """An ordered stream as it is now."""

    key: str
    mode: StreamMode
    next_position: int = Field(
        description="Position of the next submitted task; equals the number of positions used so far"
    )
    turn: TurnView | None = Field(description="Serial only: null while no task has the turn")
    waiting: int = Field(description="Serial only: tasks that wait for their turn")
    is_halted: bool = Field(description="The task that has the turn failed; replay it, or continue the stream")


class ListedStreamView(BaseModel):
    """An ordered stream in a list."""

    key: str
    user_id: str
    mode: StreamMode
    next_position: int = Field(description="Number of positions used so far")
    last_turn: TurnView | None = Field(description="Serial only: the task that has the turn, or had it last")
    is_halted: bool = Field(description="That task failed; replay it, or continue the stream")


class StreamPage(BaseModel):
    """Ordered streams by user and key."""

    items: list[ListedStreamView]
    next_cursor: StreamCursor | None = Field(
        description="Give it as `cursor` to get the next page; null on the last one"
    )


class StreamResultView(BaseModel):
    """The result of one position."""

    position: int
    task_id: str | None = Field(description="Null for a position without a task")
    status: TaskStatus | Literal["SKIPPED"] = Field(description="SKIPPED: it had no result in time")
    result: Any
    error: TaskErrorView | None


class StreamResultPage(BaseModel):
    """The results that are known, in order, up to the first position for which readers still wait."""

    items: list[StreamResultView]
    next_cursor: str = Field(description="The next position to read; a stream has no end", examples=["17"])


class StreamedResult(BaseModel):
    """One server-sent event. Comments in between keep the connection open and mean nothing."""

    event: Literal["result"]
    id: str = Field(description="The position; send it as Last-Event-ID to continue after it", examples=["16"])
    data: StreamResultView
