"""A task as a row: the document as JSON, and the columns that repeat the fields that queries need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import compress
from operator import attrgetter, is_not
from typing import Any, NamedTuple, cast

import orjson

from taskframework.clock import to_milliseconds, whole_milliseconds
from taskframework.errors import ValueNotStorableError
from taskframework.model.drivers import DRIVERS, Driver, missing_drivers
from taskframework.model.limits import waiting_limit
from taskframework.model.task import SHAPE, TIMES, UNREADABLE, Task, record_from_document
from taskframework.model.task_fields import CancelRequest
from taskframework.model.values import Json
from taskframework.stores.reading import unreadable


def _column(driver: Driver) -> str:
    return driver.field.replace(".", "_").removesuffix("_at") + "_at"


#: The column of each driver, by the driver's name. It holds the time when the driver is due for the task, or null if it
#: does not drive the task. So a partial index on the column contains only the tasks that the driver drives.
DRIVER_COLUMNS = {driver.name: _column(driver) for driver in DRIVERS}
_USUAL_DRIVERS = tuple(driver for driver in DRIVERS if driver.is_usual)
_UNUSUAL_DRIVERS = tuple(driver for driver in DRIVERS if not driver.is_usual)
#: The fields from which the columns of `UNUSUAL_MOVING` are made; for a field inside a record, the record.
_unusual_fields = attrgetter(
    "purge_at", "waits_for_limit", "stream", *(driver.field.partition(".")[0] for driver in _UNUSUAL_DRIVERS)
)

# A column that a statement does not name causes no write to its indexes. So only the insert writes columns that never
# change, and columns that are null for most tasks are named only where they have, or had, a value.
FIXED = ("task_id", "task_type", "user_id", "lane", "created_at")
UNUSUAL_FIXED = (
    "idempotency_key",
    "parent_task_id",
    "parent_generation",
    "parent_round",
    "parent_slot",
    "is_batch",
    "stream_key",
)
MOVING = (
    "status",
    "dispatch_epoch",
    "fencing_token",
    "crashes",
    "not_before",
    *(DRIVER_COLUMNS[driver.name] for driver in _USUAL_DRIVERS),
    "finished_at",
    "undriven",
    "document",
)
UNUSUAL_MOVING = (
    "purge_at",
    "waits_for",
    "stream_position",
    *(DRIVER_COLUMNS[driver.name] for driver in _UNUSUAL_DRIVERS),
)

# Exactly the same text as in the partial indexes: SQLite uses such an index only for the same text.
DEAD = "status IN ('FAILED', 'DEAD_LETTER')"
CLAIMABLE = "status IN ('QUEUED', 'RETRYING')"
DONE = "status IN ('COMPLETED', 'COMPLETED_WITH_ERRORS', 'CANCELLED')"

_TIMES = frozenset(SHAPE.times)
#: Fields with records or users' values in them; the parameters are in a table of their own.
_NESTED = frozenset({*SHAPE.records, *SHAPE.lists, *SHAPE.user_values}) - {"parameters"}
#: The other names in a document.
_PLAIN = {"_id"} | set(SHAPE.names) - _NESTED

_user_values = attrgetter(*SHAPE.user_values)
_NO_VALUES = dict.fromkeys(SHAPE.user_values)
_NO_PARENT = (None,) * 4

_OPTIONS = orjson.OPT_UTC_Z

Value = str | int | None


class TaskRow(NamedTuple):
    """The columns that every query for tasks selects."""

    task_id: str
    created_at: int
    finished_at: int
    document: str
    parameters: str


class StoredTask(NamedTuple):
    """A task as it is in the file: the task, the JSON of some fields (`forms`), and the JSON of the parameters.

    `forms` has the fields that this release does not know, and the fields that contain records or users' values, which
    this release may know only in part. A transition replaces the form of a field only if it changes the field. Forms
    share with the task no object that could be changed in place.
    """

    task: Task
    forms: Mapping[str, Any]
    parameters: str

    def changed_to(self, task: Task) -> StoredTask:
        """The stored form of the task after a transition; `task` descends from this one by `evolve`."""
        # Both have the same fields in the same order, and in an unchanged field the identical object.
        fields, before = task.__dict__, self.task.__dict__
        changes = dict(compress(fields.items(), map(is_not, fields.values(), before.values())))
        if rounded := _rounded_times(changes):
            return self.changed_to(task.evolve(**rounded))
        changed = _NESTED & changes.keys()
        parameters = to_json(task.parameters) if "parameters" in changes else self.parameters
        if not changed:
            return StoredTask(task, self.forms, parameters)
        forms = {**self.forms, **{name: _merge_form(name, self, changes[name]) for name in changed}}
        return StoredTask(task, forms, parameters)

    def without_user_values(self) -> StoredTask:
        """The same without users' values, because a caller that gets the task could change them in place."""
        if _user_values(self.task) == tuple(_NO_VALUES.values()):
            return self
        return StoredTask(self.task.evolve(**_NO_VALUES), self.forms, self.parameters)

    def with_user_values(self) -> StoredTask:
        """The opposite of `without_user_values`, with fresh copies of users' values."""
        values = {name: value_of(self.forms.get(name)) for name in SHAPE.user_values}
        task = self.task.evolve(**{**values, "parameters": orjson.loads(self.parameters)})
        return StoredTask(task, self.forms, self.parameters)

    def document(self) -> dict[str, Any]:
        """The document in the form of the file: all fields except the parameters."""
        document = {"_id": self.task.task_id, **self.task.__dict__, **self.forms}
        del document["task_id"], document["parameters"]
        return document

    def inserted(self) -> tuple[Value, ...]:
        """The columns of an insert: `FIXED` and `MOVING`; between them the unusual columns, if the task has a value for
        one of these.

        Raises:
            ValueNotStorableError: as `moving`.
        """
        task = self.task
        fixed = (task.task_id, task.task_type, task.user_id, str(task.lane), to_milliseconds(task.created_at))
        if self.is_usual:
            return (*fixed, *self.moving())
        parent = task.parent
        place = (parent.task_id, parent.generation, parent.round, parent.slot) if parent else _NO_PARENT
        key = None if task.stream is None else task.stream.key
        unusual = (task.idempotency_key, *place, int(task.batch is not None), key)
        return (*fixed, *unusual, *self.unusual_moving(), *self.moving())

    def moving(self) -> tuple[Value, ...]:
        """The columns of `MOVING`.

        Raises:
            ValueNotStorableError: if a value in the document is not JSON.
        """
        task = self.task
        return (
            str(task.status),
            task.dispatch_epoch,
            task.fencing_token,
            task.crashes,
            to_milliseconds(task.not_before),
            *[_optional_milliseconds(driver.time_of(task)) for driver in _USUAL_DRIVERS],
            _optional_milliseconds(task.finished_at),
            int(bool(missing_drivers(task))),
            to_json(self.document()),
        )

    def unusual_moving(self) -> tuple[Value, ...]:
        """The columns of `UNUSUAL_MOVING`."""
        position = None if self.task.stream is None else self.task.stream.position
        times = [_optional_milliseconds(driver.time_of(self.task)) for driver in _UNUSUAL_DRIVERS]
        return (_optional_milliseconds(self.task.purge_at), waiting_limit(self.task), position, *times)

    @property
    def has_usual_moving_columns(self) -> bool:
        """Whether every column of `UNUSUAL_MOVING` is null."""
        return not any(_unusual_fields(self.task))

    @property
    def is_usual(self) -> bool:
        """Whether every column of `UNUSUAL_FIXED` and `UNUSUAL_MOVING` is null."""
        task = self.task
        return (
            task.parent is None
            and task.idempotency_key is None
            and task.batch is None
            and self.has_usual_moving_columns
        )


def new_row(task: Task) -> StoredTask:
    """The stored form of a task that is not in the file yet.

    Raises:
        ValueNotStorableError: if the parameters are not JSON.
    """
    parameters = to_json(task.parameters)
    if rounded := _rounded_times(task.__dict__):
        task = task.evolve(**rounded)
    forms = {name: _form(name, value) for name in _NESTED if (value := getattr(task, name)) not in (None, ())}
    return StoredTask(task, forms, parameters)


def value_of(form: Any) -> Json:
    """A new copy of a user's value from its form, because the code that gets the value may change it in place."""
    return None if form is None else orjson.loads(orjson.dumps(form))


def read_row(row: TaskRow, *, with_parameters: bool = True) -> StoredTask:
    """The task of a row. Without parameters, which may be large, its parameters are None.

    Raises:
        TaskUnreadableError: if this release cannot read the document.
    """
    values: Any = None
    try:
        values = orjson.loads(row.document)
        TIMES.change(values, datetime.fromisoformat)
        if with_parameters:
            values["parameters"] = orjson.loads(row.parameters)
        # Parsed a second time, and not copied: the forms must share no object with the task.
        forms = {name: form for name, form in orjson.loads(row.document).items() if name not in _PLAIN}
        return StoredTask(Task.from_document(values), forms, row.parameters)
    except UNREADABLE as error:
        raise unreadable(values, row.task_id, error) from error


def read_cancel(text: str) -> CancelRequest:
    """A cancel request, from its JSON in a document."""
    document = TIMES.change({"cancel": orjson.loads(text)}, datetime.fromisoformat)
    return cast(CancelRequest, record_from_document(CancelRequest, document["cancel"]))


def to_json(value: Json) -> str:
    try:
        return orjson.dumps(value, option=_OPTIONS).decode()
    except orjson.JSONEncodeError as error:
        raise ValueNotStorableError("task", str(error)) from error


def _optional_milliseconds(value: datetime | None) -> int | None:
    return None if value is None else to_milliseconds(value)


def _merge_form(name: str, before: StoredTask, value: Any) -> Any:
    """The new form of a field; in a list, entries that were there before keep their forms."""
    if name not in SHAPE.lists:
        return _form(name, value)
    known = zip(getattr(before.task, name), before.forms.get(name, ()), strict=True)
    kept = {id(entry): form for entry, form in known}
    return tuple([kept.get(id(entry)) or _fragment(entry) for entry in value])


def _form(name: str, value: Any) -> Any:
    """The form of a field. It becomes JSON at once, because a user's value in it could be changed in place later."""
    if name in SHAPE.lists:
        return tuple([_fragment(entry) for entry in value])
    return None if value is None else _fragment(value)


def _fragment(value: Any) -> orjson.Fragment:
    return orjson.Fragment(to_json(value))  # a text, because the bytes that orjson returns occupy at least 4 KB


def _rounded_times(values: Mapping[str, Any]) -> dict[str, Any]:
    """The times in these fields that need rounding, rounded: stored times are UTC in whole milliseconds, and times that
    are computed with a delay may be rounded.
    """
    changes: dict[str, Any] = {}
    for name in _TIMES & values.keys():
        value = values[name]
        if value is not None and (value.microsecond % 1000 or value.tzinfo is not UTC):
            changes[name] = whole_milliseconds(value.astimezone(UTC))
    lease, wait = values.get("lease"), values.get("waits_for")
    if lease is not None and lease.expires_at.microsecond % 1000:
        changes["lease"] = replace(lease, expires_at=whole_milliseconds(lease.expires_at))
    if wait is not None and wait.until is not None and wait.until.microsecond % 1000:
        changes["waits_for"] = replace(wait, until=whole_milliseconds(wait.until))
    return changes
