"""The models of the answers, for the OpenAPI document. The answers are written directly from the public views."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema

from taskframework.model.options import StreamMode
from taskframework.model.status import Priority, TaskStatus

_ID = "0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11"
_TIME = "2027-01-31T12:00:00.000Z"
_CURSOR_NUMBER = re.compile("[0-9]{1,6}")


def _require_number(text: str) -> str:
    if not _CURSOR_NUMBER.fullmatch(text):
        raise ValueError("is not a cursor of this list")
    return text


#: A cursor of lists whose entries are numbered: the place where the next page begins.
NumericCursor = Annotated[
    str, AfterValidator(_require_number), Field(json_schema_extra={"pattern": f"^{_CURSOR_NUMBER.pattern}$"})
]
#: The form of a cursor is documented, not checked here: the list itself refuses a cursor that is not its own.
CursorText = Annotated[str, Field(max_length=500, json_schema_extra={"pattern": "^[A-Za-z0-9._-]+$"})]
NextCursor = Annotated[
    CursorText | None, Field(description="Give it as `cursor` to get the next page; null on the last one")
]
_DATA = {
    "type": "string",
    "contentMediaType": "application/json",
    "contentSchema": {
        "anyOf": [
            {"$ref": f"#/components/schemas/{name}"}
            for name in ("CloudEventView", "TaskView", "BatchView", "BatchResultView", "ResyncView")
        ]
    },
}


class FieldProblem(BaseModel):
    """One wrong field."""

    field: str = Field(description="Its name; a nested field has dots")
    message: str


class ProblemView(BaseModel):
    """An error (RFC 9457). Programs decide by `code`; people read `detail` and `hint`."""

    type: str = Field(description="Where the code is described", examples=["/docs#unknown_task_type"])
    title: str
    status: int
    detail: str = Field(description="What is wrong in this request")
    code: str = Field(examples=["unknown_task_type"])
    hint: str = Field(description="What to do next")
    instance: str | None = Field(default=None, description="Path of the request")
    errors: list[FieldProblem] | None = Field(default=None, description="The wrong fields")
    task_id: str | None = Field(default=None, description="The task that caused the refusal, if any")
    task_status: TaskStatus | None = Field(default=None, description="The status of that task")


class TaskErrorView(BaseModel):
    """Why the task, or its last attempt, failed."""

    code: str
    type: str
    message: str
    retryable: bool
    fingerprint: str = Field(description="Equal for errors with the same cause")


class SubtasksView(BaseModel):
    """How far the newest round of sub-tasks is, by the last count."""

    round: int = Field(description="Counts from 1 in each generation")
    planned: int | None = Field(description="How many there are; null while a batch is still being uploaded")
    done: int
    succeeded: int
    failed: int
    cancelled: int


class HistoryEntryView(BaseModel):
    """One event in the life of a task."""

    sequence: int = Field(description="Counts from 1")
    type: str = Field(examples=["submitted", "started", "completed"])
    at: datetime
    attempt: int
    worker_id: str | None
    data: Any


class PlaceView(BaseModel):
    """Where a task is in an ordered stream."""

    key: str
    mode: StreamMode
    position: int = Field(description="Counts from 0")
    is_skipped: bool = Field(description="The stream continued without it or its result")


class VersionView(BaseModel):
    """Which version of a key a task is."""

    key: str
    version: int


class TaskSummaryView(BaseModel):
    """A task as events contain it. Times are RFC 3339 in UTC with milliseconds."""

    task_id: str = Field(examples=[_ID])
    task_type: str = Field(examples=["count-words"])
    status: TaskStatus
    user_id: str
    progress: Any
    result: Any
    error: TaskErrorView | None
    attempt: int = Field(description="Attempts begun so far")
    max_attempts: int
    generation: int = Field(description="How often it was queued again")
    priority: Priority
    parent_task_id: str | None
    slot: int | None = Field(
        description="The number of a sub-task among those that were planned together, from 0; null without a parent"
    )
    subtasks: SubtasksView | None
    correlation_id: str
    stream: PlaceView | None = Field(description="Null for a task that is in no ordered stream")
    unique: VersionView | None = Field(description="Null for a task that is not a version of a key")
    not_before: datetime = Field(examples=[_TIME])
    deadline: datetime | None
    created_at: datetime = Field(examples=[_TIME])
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime = Field(description="Changes only by a transition or progress", examples=[_TIME])


class TaskView(TaskSummaryView):
    """A task. Times are RFC 3339 in UTC with milliseconds."""

    parameters: Any
    history: list[HistoryEntryView] = Field(description="Its last 100 events, oldest first")


class CloudEventView(BaseModel):
    """An event in the life of a task, as CloudEvent 1.0."""

    specversion: Literal["1.0"]
    id: str = Field(description="`<task_id>-<sequence>`, of progress `<task_id>-<sequence>-p<progressrevision>`")
    type: str = Field(examples=["task.submitted", "task.progress", "task.completed"])
    source: str = Field(description="The installation, `app.source`")
    subject: str = Field(description="The task's id", examples=[_ID])
    time: datetime = Field(examples=[_TIME])
    datacontenttype: Literal["application/json"]
    sequence: int = Field(description="Counts a task's events from 1; progress carries the last one")
    data: TaskSummaryView
    progressrevision: int = Field(default=0, description="Progress only: which report it is")
    traceparent: str = Field(default="", description="The trace the task belongs to, if there is one")


class ResyncView(BaseModel):
    """Events were missed: read the current state."""

    reason: str


class StreamedEvent(BaseModel):
    """One server-sent event. Comments in between keep the connection open and mean nothing."""

    event: str = Field(
        description="Type of the CloudEvent in `data`; or `snapshot`: the whole task, or the batch; or `item`: the "
        "outcome of an item of a batch; or `resync`: events were missed",
        examples=["task.completed", "snapshot", "item", "resync"],
    )
    id: str = Field(
        default="",
        description="What to send as Last-Event-ID: the id of the event, in a stream of several tasks one of its own; "
        "`resync` has none",
    )
    data: Annotated[str, WithJsonSchema(_DATA)]


class TaskPage(BaseModel):
    """Tasks from the newest to the oldest."""

    items: list[TaskView]
    next_cursor: NextCursor


class BatchView(BaseModel):
    """The progress of a batch. Numbers are of items; times are RFC 3339 in UTC with milliseconds."""

    batch_id: str = Field(examples=[_ID])
    task_type: str = Field(examples=["count-words"])
    status: TaskStatus
    user_id: str
    is_sealed: bool = Field(description="Whether the upload was completed")
    total: int = Field(description="Number of items; before the seal, the number received so far")
    counts: dict[TaskStatus, int] | None = Field(
        description="Stored items by status; null where they are not counted, as in a list"
    )
    done: int
    succeeded: int
    failed: int
    cancelled: int
    percent: float | None = Field(description="How much is done; null before the seal")
    rate: float | None = Field(description="Items done per second since the start; null before the first")
    estimated_end: datetime | None = Field(description="Estimated end at this rate")
    policy: str = Field(examples=["allow_failures"])
    chunk_size: int = Field(description="Items per task")
    priority: Priority
    max_attempts: int = Field(description="Of each task")
    correlation_id: str
    result: Any
    error: TaskErrorView | None
    not_before: datetime = Field(examples=[_TIME])
    deadline: datetime | None
    created_at: datetime = Field(examples=[_TIME])
    first_result_at: datetime | None = Field(description="When the first task had succeeded")
    finished_at: datetime | None


class BatchPage(BaseModel):
    """Batches from the newest to the oldest."""

    items: list[BatchView]
    next_cursor: NextCursor


class BatchResultView(BaseModel):
    """The status and the result of one item of a batch, as they are now."""

    index: int = Field(description="Its place in the upload, from 0")
    task_id: str = Field(description="The task that does it", examples=[_ID])
    status: TaskStatus
    result: Any
    error: TaskErrorView | None


class BatchResultPage(BaseModel):
    """Items in the order of the upload, each as it is now."""

    items: list[BatchResultView]
    next_cursor: str | None = Field(
        description="Give it as `cursor` to continue (later, if the page is empty); null after the last item"
    )


class TaskTypeView(BaseModel):
    """A task type, with the schemas of its parameters and its result."""

    task_type: str = Field(examples=["count-words"])
    parameters_schema: dict[str, Any] = Field(description="JSON Schema (2020-12) of its `parameters`")
    result_schema: dict[str, Any] = Field(description="JSON Schema (2020-12) of its `result`")
    priority: Priority = Field(description="Default lane of a submission")
    max_attempts: int = Field(description="Default number of attempts", examples=[5])
    declared_at: datetime | None = Field(
        description="When a worker that executes it last started; null: none has started yet, so its tasks wait",
        examples=[_TIME],
    )


class TaskTypePage(BaseModel):
    """Task types by their name."""

    items: list[TaskTypeView]
    next_cursor: NextCursor


class WorkerView(BaseModel):
    """A worker process as it was at its last report. Times are by the store's clock."""

    worker_id: str = Field(description="As in the history of tasks", examples=["build-7:4711:9f2c1a"])
    host: str = Field(examples=["build-7"])
    pid: int = Field(examples=[4711])
    release: str = Field(description="Version of taskframework")
    task_types: list[str] = Field(description="Task types that it executes", examples=[["count-words"]])
    concurrency: int = Field(description="How many attempts it can run at once")
    in_flight: int = Field(description="Attempts that it was running")
    started_at: datetime
    seen_at: datetime = Field(description="Time of this record, which is renewed every ten seconds")
    is_lost: bool = Field(description="Not seen for 30 seconds: killed, frozen, or without the store")


class WorkerPage(BaseModel):
    """Workers by their id."""

    items: list[WorkerView]
    next_cursor: str | None = Field(description="Give it as `cursor` to get the next page; null on the last one")


class BulkOutcome(BaseModel):
    """The outcome of one task of a bulk submission: `task` if it was accepted, otherwise `error`."""

    index: int = Field(description="Its place in the request, from 0")
    status: int = Field(description="The status that a single submission would have got", examples=[202])
    task: TaskView | None
    error: ProblemView | None


class BulkResult(BaseModel):
    """One outcome for each task, in the order of the request."""

    items: list[BulkOutcome]


class HealthView(BaseModel):
    """The process lives."""

    status: Literal["ok"]


class RepairView(BaseModel):
    """When a repair last looked for something to do."""

    last_run: str | None = Field(examples=["2026-11-20T09:30:00.000Z"])
    seconds_ago: float = Field(description="Since the last check, or since the start if there was none", examples=[0.7])
    every_seconds: float = Field(description="The planned pause between two looks", examples=[1.0])


class ReadinessView(BaseModel):
    """Whether the process can do its work, what is wrong with each part, and when each repair last looked."""

    status: Literal["ready", "not ready"]
    checks: dict[str, str] = Field(examples=[{"store": "ok", "topology": "ok", "broker": "ok"}])
    repairs: dict[str, RepairView]
