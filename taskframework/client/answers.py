"""The answers of the HTTP interface, as the client gives them.

An answer reads the fields that it knows and ignores all others, so that a program goes on working while the
installation is upgraded. So answers are not the models of the interface, which state exactly the fields that one
release sends.
"""

from __future__ import annotations

from typing import Any, Generic

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
)
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function
from typing_extensions import TypeVar  # with a default before Python 3.13

from taskframework.errors import WHOLE, ApiError
from taskframework.model.status import SUCCEEDED, Priority, TaskStatus
from taskframework.model.values import problems_of
from taskframework.tasks.kinds import AnyTaskType, TaskKind, kind_of, read_result

R = TypeVar("R", default=Any)


class Answer(BaseModel):
    """The base of all answers."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RemoteError(dict[str, Any]):
    """Why a task failed: a dictionary, as over HTTP.

    Its fields are read as those of `Task.error`, too, so that code for a handle also works with a client.
    """

    @property
    def code(self) -> str:
        return str(self["code"])

    @property
    def type(self) -> str:
        return str(self["type"])

    @property
    def message(self) -> str:
        return str(self["message"])

    @property
    def retryable(self) -> bool:
        return bool(self["retryable"])

    @property
    def fingerprint(self) -> str:
        return str(self["fingerprint"])

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(cls, handler(dict[str, Any]))


class RemoteTask(Answer, Generic[R]):
    """A task as the interface shows it. If it was submitted by its class, the result is an R; otherwise plain JSON.

    Attributes:
        attempt: attempts begun so far.
        slot: the number of a sub-task among those that were planned together, from 0; None without a parent.
        error: why the task, or its last attempt, failed: `error.code` (or `error["code"]`), `type`, `message`,
            `retryable`, `fingerprint`.
        history: its last 100 events, each `{sequence, type, at, attempt, worker_id, data}`.
    """

    task_id: str
    task_type: str
    status: TaskStatus
    user_id: str
    parameters: Any
    progress: Any
    result: R | None
    error: RemoteError | None
    attempt: int
    max_attempts: int
    generation: int
    priority: Priority
    parent_task_id: str | None
    slot: int | None = None
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
        details: more about the cause; the fields depend on the code.
    """

    task_id: str
    status: TaskStatus
    code: str
    because: str
    change: str
    details: dict[str, Any]
    at: AwareDatetime


class RemoteBatch(Answer, Generic[R]):
    """A batch as the interface shows it. Numbers count items; the result of each item is an R.

    Attributes:
        is_sealed: whether all its items have come.
        result: what `on_batch_finished` returned, as JSON.
        error: why the batch failed, as for a task.
        total: how many items it has, or how many have come so far.
        counts: how many items are in each status; None in a list, which does not count them.
        percent: how many of the items have ended, in percent; None before the seal.
        rate: items a second.
    """

    batch_id: str
    task_type: str
    status: TaskStatus
    user_id: str
    is_sealed: bool
    total: int
    counts: dict[str, int] | None
    done: int
    succeeded: int
    failed: int
    cancelled: int
    percent: float | None
    rate: float | None
    estimated_end: AwareDatetime | None
    policy: str
    chunk_size: int
    priority: Priority
    max_attempts: int
    correlation_id: str
    result: Any
    error: RemoteError | None
    not_before: AwareDatetime
    deadline: AwareDatetime | None
    created_at: AwareDatetime
    first_result_at: AwareDatetime | None
    finished_at: AwareDatetime | None
    _kind: type[TaskKind[Any, R]] | None = PrivateAttr(None)


class RemoteResult(Answer, Generic[R]):
    """One item of a batch, as it is now.

    Attributes:
        index: its place in the batch, from 0.
        task_id: the task that does it.
        error: as for a task.
    """

    index: int
    task_id: str
    status: TaskStatus
    result: R | None
    error: RemoteError | None


class Page(Answer):
    """Some entries of a list, each still in the form of JSON; if `next_cursor` is None, these are the last entries."""

    items: list[Any]
    next_cursor: str | None = None


Kind = TypeVar("Kind")

#: The reader of each type. It takes long to make a reader, so each is made once.
_READERS: dict[type[Any], TypeAdapter[Any]] = {}


def read(kind: type[Kind], content: Any) -> Kind:
    """Read an answer as a class of this module, or as any dataclass that has fields of the same names.

    Raises:
        ApiError: if the content does not fit the class.
    """
    try:
        reader = _READERS.get(kind) or _READERS.setdefault(kind, TypeAdapter(kind))
        found: Kind = reader.validate_python(content)
        return found
    except ValidationError as error:
        first = problems_of(error)[0]
        place = "the answer" if first["field"] == WHOLE else first["field"]
        raise ApiError(
            f"This is not a {kind.__name__}: {place}: {first['message']}.",
            hint="Check that the address is that of an API, of a release that this client knows.",
        ) from None


AnyRemote = TypeVar("AnyRemote", bound=RemoteTask[Any] | RemoteBatch[Any])


def with_kind(answer: AnyRemote, given: AnyTaskType | RemoteTask[Any] | RemoteBatch[Any]) -> AnyRemote:
    """Let an answer know the class by which its task was submitted, if the task was submitted by a class.

    Args:
        answer: the answer of the interface.
        given: how the program named the task type, or an earlier answer.

    Raises:
        ResultUnreadableError: if the result does not fit the class.
    """
    if isinstance(given, RemoteTask | RemoteBatch):
        # The class of a batch is that of its tasks. Seen as a task, the batch has a result of its own.
        kind = given._kind if type(given) is type(answer) else None
    else:
        kind = kind_of(given)
    if kind is None:
        return answer
    known = with_typed_result(answer, kind) if isinstance(answer, RemoteTask) else answer.model_copy()
    known._kind = kind
    return known


AnyWithResult = TypeVar("AnyWithResult", bound=RemoteTask[Any] | RemoteResult[Any])


def with_typed_result(answer: AnyWithResult, kind: type[TaskKind[Any, Any]]) -> AnyWithResult:
    """Read the result of an answer, if there is one, as the class says."""
    if answer.status not in SUCCEEDED:
        return answer
    result = read_result(kind, answer.result)
    return answer.model_copy(update={"result": result})  # type: ignore[return-value]  # it is the same class


def id_of(given: str | RemoteTask[Any] | RemoteBatch[Any]) -> str:
    """The id of a task or a batch, from this id itself or from an earlier answer."""
    if isinstance(given, str):
        return given
    if isinstance(given, RemoteTask | RemoteBatch):
        return given.task_id if isinstance(given, RemoteTask) else given.batch_id
    raise TypeError(f"expected an id, or a task or batch that a client has returned, not {given!r:.50}")
