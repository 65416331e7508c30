"""What the client gives: the answers of the HTTP interface as records.

They read what they know and pass over the rest, so that a program goes on while the installation is upgraded. That is
why they are not the models of the interface, which state exactly what one release sends.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from taskframework.errors import ApiError
from taskframework.model.status import Priority, TaskStatus


class Answer(BaseModel):
    """One record of an answer."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RemoteTask(Answer):
    """A task as the interface tells of it.

    Attributes:
        attempt: attempts begun so far.
        error: why it, or its last attempt, failed: `code`, `type`, `message`, `retryable`, `fingerprint`.
        history: its last 100 events, each `{sequence, type, at, attempt, worker_id, data}`.
    """

    task_id: str
    task_type: str
    status: TaskStatus
    user_id: str
    parameters: Any
    progress: Any
    result: Any
    error: dict[str, Any] | None
    attempt: int
    max_attempts: int
    generation: int
    priority: Priority
    parent_task_id: str | None
    subtasks: dict[str, Any] | None
    correlation_id: str
    stream: Any
    unique: Any
    not_before: AwareDatetime
    deadline: AwareDatetime | None
    created_at: AwareDatetime
    started_at: AwareDatetime | None
    finished_at: AwareDatetime | None
    updated_at: AwareDatetime
    history: list[dict[str, Any]]


class RemoteExplanation(Answer):
    """Why a task was not running, or not finished, at one moment.

    Attributes:
        code: the cause, for programs.
        because: the cause as a sentence.
        change: what would change it, as a sentence.
        details: what belongs to the cause; its fields depend on the code.
    """

    task_id: str
    status: TaskStatus
    code: str
    because: str
    change: str
    details: dict[str, Any]
    at: AwareDatetime


class RemoteBatch(Answer):
    """A batch as the interface tells of it. Numbers are of items.

    Attributes:
        is_sealed: whether all its items came.
        total: how many there are, or came so far.
        counts: how many are in each status; None in a list, where nobody counts.
        percent: how much is over; None before the seal.
        rate: items a second.
    """

    batch_id: str
    status: TaskStatus
    is_sealed: bool
    total: int
    counts: dict[str, int] | None
    done: int
    succeeded: int
    failed: int
    percent: float | None
    rate: float | None
    estimated_end: AwareDatetime | None
    first_result_at: AwareDatetime | None
    created_at: AwareDatetime
    finished_at: AwareDatetime | None


class RemoteResult(Answer):
    """What became of one item of a batch, so far.

    Attributes:
        index: its place in the batch, from 0.
        task_id: the task that does it.
        error: as that of a task.
    """

    index: int
    task_id: str
    status: TaskStatus
    result: Any
    error: dict[str, Any] | None


class Page(Answer):
    """Some entries, each still to be read; `next_cursor` None means these were the last."""

    items: list[Any]
    next_cursor: str | None = None


AnswerT = TypeVar("AnswerT", bound=Answer)


def read(kind: type[AnswerT], content: Any) -> AnswerT:
    """An answer as a record.

    Raises:
        ApiError: if it is something else.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the answer"
        raise ApiError(
            f"This is no {kind.__name__}: {place}: {first['msg']}.",
            hint="Is the address that of an API, and of a release this client knows?",
        ) from None
