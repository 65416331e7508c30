"""The task record: the document in the store, field for field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime, timedelta
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Literal, Self

import uuid_utils

from taskframework.model.options import Debounce, KeptFor, StartLimit, StreamPlace, Unique, start_by
from taskframework.model.shape import Rare, places_in, shape_of
from taskframework.model.status import Priority, TaskStatus, lane_of
from taskframework.model.task_fields import (
    Batch,
    CancelRequest,
    Discarded,
    HeldSlot,
    HistoryEntry,
    Lease,
    LimitWait,
    ParentLink,
    Signal,
    SignalWait,
    StepOutcome,
    Subtasks,
    TaskError,
)
from taskframework.model.values import Json

#: The newest version of documents that this release claims (newer tasks are postponed), and that of an ordinary task.
SCHEMA_VERSION, _FIRST_VERSION = 2, 1
#: The version of sub-tasks, of versions of a key, of tasks in a stream, and of every task that has waited. A release
#: that knows only the first version must not run them: it would not report a sub-task to its parent, not look for a
#: newer version, not pass on the turn of a stream, and call the wrong method after a wait.
FAMILY_VERSION = 2
#: Which method of the task type the next attempt calls: `execute`, `on_subtasks_finished` or `on_signal`.
Stage = Literal["execute", "resume", "signal"]
HISTORY_LENGTH = 100
ERRORS_KEPT = 5


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task. Immutable: a transition makes a new object. Its `repr` shows no parameters, progress or result."""

    task_id: str
    schema_version: int = _FIRST_VERSION
    task_type: str
    priority: str = Priority.NORMAL
    user_id: str
    correlation_id: str
    traceparent: str | None = None
    parameters: Json = field(default=None, repr=False)
    parameters_hash: str
    idempotency_key: str | None = None
    unique: Rare[Unique | None] = None
    stream: Rare[StreamPlace | None] = None
    debounce: Rare[Debounce | None] = None
    status: TaskStatus = TaskStatus.QUEUED
    revision: int = 1
    generation: int = 0
    fencing_token: int = 0
    attempts: int = 0
    max_attempts: int
    crashes: int = 0
    releases: int = 0
    dispatch_epoch: int = 1
    not_before: datetime
    next_dispatch_at: datetime | None
    dispatches: int = 0
    lease: Lease | None = None
    last_claim_id: str | None = None
    cancel: CancelRequest | None = None
    discarded: Rare[Discarded | None] = None
    deadline: datetime | None = None
    start_limit: Rare[StartLimit | None] = None
    start_by: Rare[datetime | None] = None
    parent: ParentLink | None = None
    subtasks: Subtasks | None = None
    spawn_at: datetime | None = None
    cascade_at: Rare[datetime | None] = None
    check_at: Rare[datetime | None] = None
    batch: Rare[Batch | None] = None
    seal_by: Rare[datetime | None] = None
    retry_at: Rare[datetime | None] = None
    unblock_at: Rare[datetime | None] = None
    stage: Rare[Stage] = "execute"
    waits_for: Rare[SignalWait | None] = None
    signals: Rare[tuple[Signal, ...]] = ()
    woken_by: Rare[Signal | None] = None
    waits_for_limit: Rare[LimitWait | None] = None
    slot: Rare[HeldSlot | None] = None
    no_handler: int = 0
    progress: Json = field(default=None, repr=False)
    progress_revision: int = 0
    steps: Rare[tuple[StepOutcome, ...]] = ()
    result: Json = field(default=None, repr=False)
    error: TaskError | None = None
    errors: tuple[TaskError, ...] = ()
    sequence: int = 0
    history: tuple[HistoryEntry, ...] = ()
    published_sequence: int = 0
    publish_at: datetime | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    updated_at: datetime
    retention: Rare[KeptFor | None] = None
    purge_at: datetime | None = None

    @property
    def lane(self) -> Priority:
        return lane_of(self.priority)

    @property
    def unpublished(self) -> tuple[HistoryEntry, ...]:
        """The events that are not known to be published, oldest first."""
        mark = self.published_sequence
        return tuple([entry for entry in self.history if entry.sequence > mark])

    def outcome_of(self, step: str) -> StepOutcome | None:
        """The recorded outcome of a step; None if the step is not done yet."""
        return next((entry for entry in self.steps if entry.step == step), None)

    def evolve(self, **changes: Any) -> Self:
        """This task with some fields changed.

        Raises:
            TypeError: for a field that does not exist.
        """
        if not changes.keys() <= _NAMES:
            raise TypeError(f"a task has no field {', '.join(sorted(changes.keys() - _NAMES))}")
        return self._of({**self.__dict__, **changes})

    def to_document(self) -> dict[str, Any]:
        """The stored form: these fields, the id as `_id`, times as `datetime`; without rare fields at their default."""
        own = self.__dict__
        document = dict(zip(_STORED, _usual_of(own), strict=True))
        if _rare_of(own) != _NOTHING_RARE:
            document.update((name, own[name]) for name in SHAPE.rare if own[name] != _DEFAULTS[name])
        document["status"] = str(self.status)
        document["priority"] = str(self.priority)
        if _records_of(own) != _NO_RECORDS:
            document.update((name, record_to_document(own[name])) for name in SHAPE.records if own[name] is not None)
        for name in SHAPE.lists:
            if name in document:
                document[name] = list(map(record_to_document, document[name]))
        return document

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read a stored task. Fields of a newer release are ignored; missing fields get their default."""
        values = {**_DEFAULTS, **document}
        values["task_id"] = values.pop("_id")
        values["status"] = TaskStatus(document["status"])
        for name, record in SHAPE.records.items():
            if (nested := values[name]) is not None:
                values[name] = record_from_document(record, nested)
        for name, record in SHAPE.lists.items():
            values[name] = tuple([record_from_document(record, entry) for entry in values[name]])
        if not all(map(isinstance, _required_of(values), _REQUIRED_TYPES)):  # code that shows the task would fail
            raise TypeError(f"a wrong type in {SHAPE.wrong_in(values)}")
        return cls._of(values if values.keys() == _NAMES else {name: values[name] for name in _NAMES})

    @classmethod
    def new(cls, given: Mapping[str, Any] = MappingProxyType({}), /, **others: Any) -> Self:
        """The same as the constructor, for the places where new tasks are made; fields may be given as a mapping too.

        Raises:
            TypeError: if a field is missing or does not exist.
        """
        values = {**_DEFAULTS, **given, **others}
        if values.keys() != _NAMES:
            raise TypeError(f"missing or unknown fields of a task: {', '.join(sorted(values.keys() ^ _NAMES))}")
        return cls._of(values)

    @classmethod
    def _of(cls, values: dict[str, Any]) -> Self:
        """A task that owns this dict of values. `__init__` of a frozen dataclass takes forty times as long."""
        task = object.__new__(cls)
        object.__setattr__(task, "__dict__", values)
        return task


#: The exceptions for a document that this release cannot read: a newer release wrote it, or it was changed by hand.
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)
#: The stored fields of a task, and the places of times and of users' values in its document.
SHAPE = shape_of(Task)
TIMES = places_in(SHAPE, lambda shape: shape.times)
USER_VALUES = places_in(SHAPE, lambda shape: shape.user_values)

_NAMES = frozenset(SHAPE.names)
_DEFAULTS = {field.name: field.default for field in fields(Task) if field.default is not MISSING}
#: The fields that every document has, by their names in this record and in the document. `itemgetter` takes all of them
#: in one call; a loop in Python over the fields would be the largest part of the cost of a submission.
_USUAL = tuple(name for name in SHAPE.names if name not in SHAPE.rare)
_STORED = tuple("_id" if name == "task_id" else name for name in _USUAL)
_usual_of, _rare_of, _records_of = itemgetter(*_USUAL), itemgetter(*SHAPE.rare), itemgetter(*SHAPE.records)
_required_of, _REQUIRED_TYPES = itemgetter(*SHAPE.required), tuple(SHAPE.required.values())
_NOTHING_RARE = _rare_of(_DEFAULTS)
_NO_RECORDS = (None,) * len(SHAPE.records)
_FIELDS = {record: shape_of(record).names for record in (*SHAPE.records.values(), *SHAPE.lists.values())}
_FIELD_SETS = {record: frozenset(names) for record, names in _FIELDS.items()}


def record_from_document(record: type[Any], document: Mapping[str, Any]) -> Any:
    """One of the small records inside a task, from its stored form."""
    if document.keys() == _FIELD_SETS[record]:
        return record(**document)
    return record(**{name: document[name] for name in _FIELDS[record] if name in document})


def record_to_document(record: Any) -> dict[str, Any]:
    """The stored form of one of the small records inside a task."""
    return {name: getattr(record, name) for name in _FIELDS[type(record)]}


def new_task_id() -> str:
    """A fresh id that sorts by time of creation (UUID version 7)."""
    return str(uuid_utils.uuid7())


def new_claim_id() -> str:
    """A fresh id for one claim; random, since it is a proof of ownership."""
    return uuid_utils.uuid4().hex


def initial_fields(
    not_before: datetime, now: datetime, dispatch_after: timedelta, start_limit: StartLimit | None = None
) -> dict[str, Any]:
    """The fields that a submission sets: the first event, the latest start, when the sweeper sends the message."""
    due = now + dispatch_after
    return {
        "start_by": start_by(start_limit, not_before),
        "sequence": 1,
        "history": (HistoryEntry(1, "submitted", now, 0, None, None),),
        "publish_at": due,
        "next_dispatch_at": due if not_before <= now else not_before,
    }
