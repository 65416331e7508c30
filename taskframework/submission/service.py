"""Submission: check the request, store the task, raise `TaskSubmittedEvent`. Accepted means stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Unpack

from taskframework import failpoint
from taskframework.bus import EventBus
from taskframework.errors import InvalidRequestError, SubmissionError
from taskframework.model.events import TaskSubmittedEvent
from taskframework.model.status import lane_of
from taskframework.model.task import FAMILY_VERSION, Task, Unique, first_state, new_task_id
from taskframework.model.values import fingerprint
from taskframework.moves import TaskMoves
from taskframework.stores.base import Inserted, TaskStore
from taskframework.submission.idempotency import IdempotentInserts
from taskframework.submission.options import OPTIONS, SubmissionOptions, accepted, accepted_name, accepted_times
from taskframework.submission.types import Submittable, TaskTypes
from taskframework.submission.versions import VersionedInserts
from taskframework.tasks.executable import AnyExecutable, type_name
from taskframework.telemetry import current_traceparent

ANONYMOUS = "anonymous"
#: Requests of `submit_many` that are stored together; the event loop has its turn in between.
_TOGETHER = 1_000


@dataclass(frozen=True, slots=True, init=False)
class SubmitRequest:
    """What somebody wants done: a task type, its parameters, whose task it is, and how it is to be done."""

    task_type: str | AnyExecutable
    parameters: Any = field(repr=False)
    user_id: str
    options: SubmissionOptions

    def __init__(
        self,
        *,
        task_type: str | AnyExecutable,
        parameters: Any = None,
        user_id: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> None:
        """Make a request; it is looked through when it is submitted.

        Args:
            task_type: the name of a type, or its class or an instance of that.
            parameters: what the type's model accepts, as JSON or as an instance.
            user_id: who owns the task.
            options: see `SubmissionOptions`.

        Raises:
            TypeError: for an option that does not exist.
        """
        if unknown := options.keys() - OPTIONS:
            raise TypeError(f"a submission has no option {', '.join(sorted(unknown))}")
        object.__setattr__(self, "task_type", task_type)
        object.__setattr__(self, "parameters", parameters)
        object.__setattr__(self, "user_id", ANONYMOUS if user_id is None else user_id)
        object.__setattr__(self, "options", options)


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
        moves: TaskMoves,
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
            moves: supersedes older versions of a key.
            types: the task types that are known.
            max_attempts: attempts for task types that do not say.
            dispatch_after: when the sweeper takes the task up if nobody dispatched it; zero in a process that does
                not dispatch.
            keys_kept: how long an idempotency key is kept after the end of its task.
        """
        self._store = store
        self._inserts = IdempotentInserts(store, keys_kept)
        self._versions = VersionedInserts(store, moves, keys_kept)
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
        [stored] = await self._insert([task])
        return await self._accept(stored)

    async def submit_many(self, requests: Sequence[SubmitRequest]) -> list[Submission | Exception]:
        """Store many tasks together; each request has its own outcome, in the order given."""
        outcomes: list[Submission | Exception] = []
        for at in range(0, len(requests), _TOGETHER):
            together = requests[at : at + _TOGETHER]
            kinds = await self._types.find(_names_in(together))
            made = [self._made(request, kinds) for request in together]
            await failpoint.reached("submit.before_insert")
            stored = iter(await self._insert([task for task in made if isinstance(task, Task)]))
            outcomes += [await self._outcome(next(stored)) if isinstance(task, Task) else task for task in made]
        return outcomes

    def check(self, request: SubmitRequest) -> None:
        """Look a request through without a store, for types that are registered here.

        Raises:
            SubmissionError: as `submit` would.
        """
        self._new_task(request, self._types.registered(type_name(request.task_type)))

    async def _insert(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        """Store tasks, those that are versions of a key one after the other: two may be of one key."""
        if all(task.unique is None for task in tasks):
            return await self._inserts.insert(tasks)
        others = iter(await self._inserts.insert([task for task in tasks if task.unique is None]))
        return [
            next(others) if task.unique is None else await self._insert_version(task, task.unique) for task in tasks
        ]

    async def _insert_version(self, task: Task, unique: Unique) -> Inserted | Exception:
        try:
            return await self._versions.insert(task, unique)
        except Exception as error:
            return error

    def _made(self, request: SubmitRequest, kinds: Mapping[str, Submittable | SubmissionError]) -> Task | Exception:
        try:
            return self._new_task(request, kinds[type_name(request.task_type)])
        except Exception as error:
            return error

    async def _outcome(self, stored: Inserted | Exception) -> Submission | Exception:
        try:
            return await self._accept(stored)
        except Exception as error:
            return error

    async def _accept(self, stored: Inserted | Exception) -> Submission:
        """Tell of a task that is stored; of one that was there before, nothing."""
        if isinstance(stored, Exception):
            raise stored
        await failpoint.reached("submit.after_insert")
        if stored.is_new:
            await self._bus.publish(TaskSubmittedEvent(stored.task))
        return Submission(stored.task, stored.is_new)

    def _new_task(self, request: SubmitRequest, kind: Submittable | SubmissionError) -> Task:
        if isinstance(kind, SubmissionError):
            raise kind
        parameters, canonical = kind.accept(request.parameters)
        options = accepted(request.options)
        if "unique" in options:
            options |= _version(options)
        now = self._store.now()
        not_before = accepted_times(options, now)
        task_id = new_task_id()
        fields = {
            "priority": lane_of(kind.priority),
            "max_attempts": self._max_attempts if kind.max_attempts is None else kind.max_attempts,
            "correlation_id": task_id,
            **options,
            "task_id": task_id,
            "task_type": kind.task_type,
            "user_id": accepted_name(request.user_id, "user_id"),
            "traceparent": current_traceparent(),
            "parameters": parameters,
            "parameters_hash": fingerprint(kind.task_type, canonical),
            "not_before": not_before,
            "created_at": now,
            "updated_at": now,
            **first_state(not_before, now, self._dispatch_after),
        }
        return Task.new(**fields)


def _version(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a version of a key is stored with.

    Raises:
        InvalidRequestError: for a task that also has an idempotency key: each of them names another task.
    """
    if "idempotency_key" in options:
        raise InvalidRequestError(
            "unique", "it cannot be given together with idempotency_key", "The same version is the same task already."
        )
    unique = options["unique"]
    is_stopping = unique.get("on_running") == "cancel"
    version = Unique(unique["key"], unique["version"], stops_older=is_stopping)
    return {"unique": version, "schema_version": FAMILY_VERSION}


def _names_in(requests: Iterable[SubmitRequest]) -> set[str]:
    """The types that are asked for; a request that names none is told so by itself."""
    names = set()
    for request in requests:
        with suppress(InvalidRequestError):
            names.add(type_name(request.task_type))
    return names
