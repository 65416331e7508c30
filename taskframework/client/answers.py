"""What the client gives: the answers of the HTTP interface as records.

They read what they know and pass over the rest, so that a program goes on while the installation is upgraded. That is
why they are not the models of the interface, which state exactly what one release sends.
"""

from __future__ import annotations

from typing import Any, Generic

from pydantic import AwareDatetime, BaseModel, ConfigDict, PrivateAttr, TypeAdapter, ValidationError
from typing_extensions import TypeVar  # with a default before Python 3.13

from taskframework.errors import ApiError
from taskframework.model.status import SUCCEEDED, Priority, TaskStatus
from taskframework.tasks.kinds import AnyTaskType, TaskKind, kind_of, read_result

R = TypeVar("R", default=Any)


class Answer(BaseModel):
    """One record of an answer."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RemoteTask(Answer, Generic[R]):
    """A task as the interface tells of it. Of one that was submitted by its class the result is an R, else plain JSON.

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
    result: R | None
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
    _kind: type[TaskKind[Any, R]] | None = PrivateAttr(None)


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


class RemoteBatch(Answer, Generic[R]):
    """A batch as the interface tells of it. Numbers are of items; each gives an R.

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
    _kind: type[TaskKind[Any, R]] | None = PrivateAttr(None)


class RemoteResult(Answer, Generic[R]):
    """What became of one item of a batch, so far.

    Attributes:
        index: its place in the batch, from 0.
        task_id: the task that does it.
        error: as that of a task.
    """

    index: int
    task_id: str
    status: TaskStatus
    result: R | None
    error: dict[str, Any] | None


class Page(Answer):
    """Some entries, each still to be read; `next_cursor` None means these were the last."""

    items: list[Any]
    next_cursor: str | None = None


Kind = TypeVar("Kind")

#: What reads a type. It takes long to make, so each is made once.
_READERS: dict[type[Any], TypeAdapter[Any]] = {}


def read(kind: type[Kind], content: Any) -> Kind:
    """An answer as a record, or as any dataclass that has fields of the same names.

    Raises:
        ApiError: if it is something else.
    """
    try:
        reader = _READERS.get(kind) or _READERS.setdefault(kind, TypeAdapter(kind))
        found: Kind = reader.validate_python(content)
        return found
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the answer"
        raise ApiError(
            f"This is not a {kind.__name__}: {place}: {first['msg']}.",
            hint="Check that the address is that of an API, of a release that this client knows.",
        ) from None


AnyRemote = TypeVar("AnyRemote", bound=RemoteTask[Any] | RemoteBatch[Any])


def of_kind(answer: AnyRemote, given: AnyTaskType | RemoteTask[Any] | RemoteBatch[Any]) -> AnyRemote:
    """An answer that knows the class by which its task was submitted, if it was by one.

    Args:
        answer: as it came.
        given: how the program named the task type, or an earlier answer.

    Raises:
        ResultUnreadableError: if the result is not what the class says.
    """
    kind = given._kind if isinstance(given, RemoteTask | RemoteBatch) else kind_of(given)
    if kind is None:
        return answer
    known = with_result(answer, kind) if isinstance(answer, RemoteTask) else answer.model_copy()
    known._kind = kind
    return known


AnyWithResult = TypeVar("AnyWithResult", bound=RemoteTask[Any] | RemoteResult[Any])


def with_result(answer: AnyWithResult, kind: type[TaskKind[Any, Any]]) -> AnyWithResult:
    """An answer whose result, if there is one, was read as the class says."""
    if answer.status not in SUCCEEDED:
        return answer
    result = read_result(kind, answer.result)
    return answer.model_copy(update={"result": result})  # type: ignore[return-value]  # it is the same class


def id_of(given: str | RemoteTask[Any] | RemoteBatch[Any]) -> str:
    """The id of a task or batch that is given by it or by an earlier answer."""
    if isinstance(given, str):
        return given
    return given.task_id if isinstance(given, RemoteTask) else given.batch_id
