"""Submission: check the request, store the task, raise `TaskSubmittedEvent`. Accepted means stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from taskframework import failpoint
from taskframework.bus import EventBus
from taskframework.clock import whole_milliseconds
from taskframework.errors import SubmissionError
from taskframework.model.events import TaskSubmittedEvent
from taskframework.model.status import Priority
from taskframework.model.task import Task, first_state, new_task_id
from taskframework.model.values import fingerprint
from taskframework.stores.base import Inserted, TaskStore
from taskframework.submission.idempotency import IdempotentInserts
from taskframework.submission.types import Submittable, TaskTypes
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.tasks.options import MAX_ATTEMPTS
from taskframework.telemetry import current_traceparent

ANONYMOUS = "anonymous"
MAX_NAME = 200
_FARTHEST = timedelta(days=3660)
#: Requests of `submit_many` that are stored together; the event loop has its turn in between.
_TOGETHER = 1_000


class InvalidRequestError(SubmissionError):
    """The request contradicts itself or a limit."""

    code = "invalid_request"

    def __init__(self, field: str, reason: str, hint: str) -> None:
        super().__init__(f"{field}: {reason}.", hint=hint)
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    """What somebody wants done. Left out values come from the task type's options, then from the settings.

    `task_type` is the name of a type, or its class or an instance of that.
    """

    task_type: str | type[BackgroundTaskExecutable[Any, Any]] | BackgroundTaskExecutable[Any, Any]
    parameters: Any = field(default=None, repr=False)
    user_id: str = ANONYMOUS
    priority: str | None = None
    not_before: datetime | None = None
    deadline: datetime | None = None
    max_attempts: int | None = None
    idempotency_key: str | None = None
    correlation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """An accepted request: its task, and whether this request made it or an earlier one with the same key."""

    task: Task
    is_new: bool


class TaskSubmissionService:
    """The only way in."""

    def __init__(
        self,
        store: TaskStore,
        bus: EventBus,
        types: TaskTypes,
        *,
        max_attempts: int,
        dispatch_after: timedelta,
        keys_kept: timedelta,
    ) -> None:
        """Prepare the way in.

        Args:
            store: where tasks are stored.
            bus: hears `TaskSubmittedEvent` after the task is stored.
            types: the task types that are known.
            max_attempts: attempts for task types that do not say.
            dispatch_after: when the sweeper takes the task up if nobody dispatched it; zero in a process that does
                not dispatch.
            keys_kept: how long an idempotency key is kept after the end of its task.
        """
        self._store = store
        self._inserts = IdempotentInserts(store, keys_kept)
        self._bus = bus
        self._types = types
        self._max_attempts = max_attempts
        self._dispatch_after = dispatch_after

    async def submit(self, request: SubmitRequest) -> Submission:
        """Store a task.

        Returns:
            The task once it is stored durably. Dispatch goes on by itself.

        Raises:
            SubmissionError: if the request is wrong; nothing is stored.
            StoreUnavailableError: if it could not be stored; submit again, with an idempotency key to be safe.
        """
        name = type_name(request.task_type)
        task = self._new_task(request, (await self._types.find([name]))[name])
        await failpoint.reached("submit.before_insert")
        return await self._accept(await self._inserts.insert(task))

    async def submit_many(self, requests: Sequence[SubmitRequest]) -> list[Submission | Exception]:
        """Store many tasks together; each request has its own outcome, in the order given."""
        outcomes: list[Submission | Exception] = []
        for at in range(0, len(requests), _TOGETHER):
            together = requests[at : at + _TOGETHER]
            kinds = await self._types.find(_names_in(together))
            made = [self._made(request, kinds) for request in together]
            await failpoint.reached("submit.before_insert")
            stored = iter(await self._inserts.insert_many([task for task in made if isinstance(task, Task)]))
            outcomes += [await self._outcome(next(stored)) if isinstance(task, Task) else task for task in made]
        return outcomes

    def check(self, request: SubmitRequest) -> None:
        """Look a request through without a store, for types that are registered here.

        Raises:
            SubmissionError: as `submit` would.
        """
        self._new_task(request, self._types.registered(type_name(request.task_type)))

    def _made(self, request: SubmitRequest, kinds: Mapping[str, Submittable | SubmissionError]) -> Task | Exception:
        try:
            return self._new_task(request, kinds[type_name(request.task_type)])
        except Exception as error:
            return error

    async def _outcome(self, stored: Inserted | Exception) -> Submission | Exception:
        if isinstance(stored, Exception):
            return stored
        try:
            return await self._accept(stored)
        except Exception as error:
            return error

    async def _accept(self, inserted: Inserted) -> Submission:
        """Tell of a task that is stored; of one that was there before, nothing."""
        await failpoint.reached("submit.after_insert")
        if not inserted.is_new:
            return Submission(inserted.task, is_new=False)
        await self._bus.publish(TaskSubmittedEvent(inserted.task))
        return Submission(inserted.task, is_new=True)

    def _new_task(self, request: SubmitRequest, kind: Submittable | SubmissionError) -> Task:
        if isinstance(kind, SubmissionError):
            raise kind
        parameters, canonical = kind.accept(request.parameters)
        now = self._store.now()
        not_before, deadline = _times(request, now)
        task_id = new_task_id()
        return Task.new(
            task_id=task_id,
            task_type=kind.task_type,
            priority=_priority(request.priority or kind.priority),
            user_id=_name("user_id", request.user_id),
            correlation_id=_name("correlation_id", request.correlation_id or task_id),
            traceparent=current_traceparent(),
            parameters=parameters,
            parameters_hash=fingerprint(kind.task_type, canonical),
            idempotency_key=_name("idempotency_key", request.idempotency_key),
            max_attempts=_attempts(request.max_attempts, kind.max_attempts, self._max_attempts),
            not_before=not_before,
            deadline=deadline,
            created_at=now,
            updated_at=now,
            **first_state(not_before, now, self._dispatch_after),
        )


def _names_in(requests: Iterable[SubmitRequest]) -> set[str]:
    """The types that are asked for; a request that names none is told so by itself."""
    names = set()
    for request in requests:
        with suppress(InvalidRequestError):
            names.add(type_name(request.task_type))
    return names


def type_name(given: object) -> str:
    """The name of a task type that is given by it, by its class or by an instance.

    Raises:
        InvalidRequestError: if it is anything else.
    """
    if isinstance(given, str):
        return given
    is_task = isinstance(given, BackgroundTaskExecutable) or (
        isinstance(given, type) and issubclass(given, BackgroundTaskExecutable)
    )
    if is_task and isinstance(name := getattr(given, "task_type", None), str):
        return name
    what = "the task class has no task_type" if is_task else f"{given!r:.100} names no task"
    raise InvalidRequestError("task_type", what, "Give the type's name, its class or an instance of that.")


def _times(request: SubmitRequest, now: datetime) -> tuple[datetime, datetime | None]:
    not_before = _moment("not_before", request.not_before, now) or now
    deadline = _moment("deadline", request.deadline, now)
    if deadline is not None and deadline <= max(now, not_before):
        raise InvalidRequestError(
            "deadline", "it has passed or lies before not_before", "Give a time after not_before and in the future."
        )
    return max(not_before, now), deadline


def _moment(field: str, value: datetime | None, now: datetime) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidRequestError(field, f"it is {value!r:.50}", "Give a datetime with a time zone.")
    if value.tzinfo is None:
        raise InvalidRequestError(field, "it has no time zone", "Add one, for example 2027-01-31T12:00:00Z.")
    if value - now > _FARTHEST:
        raise InvalidRequestError(field, "it is more than ten years ahead", "Give a nearer time.")
    return whole_milliseconds(max(value, now - _FARTHEST).astimezone(UTC))


def _priority(value: str) -> Priority:
    if isinstance(value, Priority):  # finding a member by its value takes ten times as long
        return value
    try:
        return Priority(value)
    except ValueError:
        raise InvalidRequestError("priority", f"it is {value!r:.50}", "Use high, normal or low.") from None


def _attempts(wanted: int | None, of_type: int | None, default: int) -> int:
    value = wanted if wanted is not None else of_type if of_type is not None else default
    if type(value) is not int or not 1 <= value <= MAX_ATTEMPTS:
        raise InvalidRequestError("max_attempts", f"it is {value!r:.50}", f"Use 1 to {MAX_ATTEMPTS}.")
    return value


def _name(field: str, value: object) -> Any:
    """Names travel in headers, indexes and logs: short, printable ASCII."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or not (value.isascii() and value.isprintable()):
        raise InvalidRequestError(field, "it is not a name", f"Use 1 to {MAX_NAME} printable ASCII characters.")
    return value
