"""The declarations of task types by the processes that execute them, so that other processes can submit them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from taskframework.errors import ExtraMissingError, InvalidParametersError, ValueNotStorableError
from taskframework.model.options import KeptFor, StartLimit
from taskframework.model.records import RecordKind
from taskframework.model.values import MAX_PROBLEMS, NO_FIELD, NO_JSON_TYPE, Json, problem
from taskframework.tasks.registry import Registration
from taskframework.tasks.schemas import NO_PARAMETERS, describe_parameters, schema_of
from taskframework.tasks.values import storable_parameters

if TYPE_CHECKING:
    import jsonschema_rs


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDeclaration:
    """One task type as its workers declare it: everything that a submission needs."""

    task_type: str
    #: JSON Schemas (2020-12) of the parameters and of the result.
    parameters_schema: Json
    result_schema: Json
    priority: str
    #: None: the settings of the process that submits decide.
    max_attempts: int | None = None
    max_chunk_size: int = 1
    finishes_batches: bool = False
    #: The bucket that the whole type shares, how long its tasks may wait for a worker, and how long they stay.
    bucket: str | None = None
    #: The name of its rate limit, also if each key has a bucket of its own.
    rate_limit: str | None = None
    start_limit: StartLimit | None = None
    retention: KeptFor | None = None
    #: When a process that executes the type last started; None: no process has started yet.
    declared_at: datetime | None = None
    #: The id of the worker that declared it; None if an earlier release did.
    declared_by: str | None = None

    @classmethod
    def of(cls, registration: Registration) -> TaskDeclaration:
        """The declaration of a registered type."""
        return cls(
            task_type=registration.task_type,
            parameters_schema=schema_of(registration.task_type, registration.parameters, "validation"),
            result_schema=schema_of(registration.task_type, registration.result, "serialization"),
            priority=registration.priority,
            max_attempts=registration.max_attempts,
            max_chunk_size=registration.max_chunk_size,
            finishes_batches=registration.finishes_batches,
            bucket=registration.bucket,
            rate_limit=registration.rate_limit.name if registration.rate_limit else None,
            start_limit=registration.start_limit,
            retention=registration.retention,
        )

    def is_same(self, other: TaskDeclaration) -> bool:
        """Return whether both declare the same, whoever did so and when."""
        return replace(self, declared_at=other.declared_at, declared_by=other.declared_by) == other

    def accept(self, value: Any) -> tuple[Json, bytes]:
        """Parameters as they are stored, and as canonical JSON, if they fit the schema.

        The class of a Python object writes the object as JSON. Values are not converted to fit: a model accepts `"5"`
        as a number, a schema does not. The worker applies the model in any case.

        Raises:
            InvalidParametersError: names each field that does not fit.
            ValueNotStorableError: if a store could not keep them.
        """
        # This comes first because it limits the depth; without a limit the library's stack would overflow.
        try:
            plain, canonical = storable_parameters(value)
        except ValueNotStorableError as error:
            if error.reason.endswith(NO_JSON_TYPE):
                error.hint = "Use plain JSON, or register the task type in this process too: then its model writes it."
            raise
        if problems := list(islice(_problems(self.parameters_schema, plain), MAX_PROBLEMS)):
            raise InvalidParametersError(self.task_type, problems, takes=describe_parameters(self.parameters_schema))
        # An empty object means the same as null there, so it is stored and compared in the same way.
        return storable_parameters(None) if self.parameters_schema == NO_PARAMETERS else (plain, canonical)


#: The record of a task type, by its name.
DECLARATION = RecordKind("task-type", TaskDeclaration)


def _reads(kind: type[Any]) -> Callable[[str], bool]:
    """Return whether pydantic reads a text as a value of this type."""
    adapter = TypeAdapter(kind)

    def reads(text: str) -> bool:
        try:
            adapter.validate_python(text)
        except ValidationError:
            return False
        return True

    return reads


#: Formats of texts that pydantic reads in more ways than the standard allows: a time without a zone, for example.
_FORMATS = {
    "date-time": _reads(datetime),
    "date": _reads(date),
    "time": _reads(time),
    "duration": _reads(timedelta),
    "uuid": _reads(UUID),
}


def _problems(schema: Json, value: Json) -> Iterator[dict[str, Any]]:
    """The problems of a value, as pairs of field and message; without the input, which may be a secret."""
    try:
        import jsonschema_rs  # takes 6 MB; only needed to submit a type that is not registered here
    except ImportError:
        raise ExtraMissingError("Submitting a type that is not registered here", "jsonschema-rs", "api") from None
    try:
        validator = jsonschema_rs.Draft202012Validator(
            schema, formats=_FORMATS, validate_formats=True, mask="Input", offline=True
        )
        for error in validator.iter_errors(value):
            yield from _problems_in(error)
    except jsonschema_rs.ValidationError:
        return  # the library does not support a part of the schema, such as a Python pattern; the worker decides


def _problems_in(error: jsonschema_rs.ValidationError) -> Iterator[dict[str, Any]]:
    """An error, in pydantic's words if it names a field, otherwise in the library's words."""
    place, details = error.instance_path, error.kind.value
    match error.kind.name:
        case "required":
            yield problem([*place, details], "Field required")
        case "additionalProperties":
            for name in details:
                yield problem([*place, name], NO_FIELD)
        case "anyOf" | "oneOf":
            alternatives = [inner for alternative in details for inner in alternative]
            for inner in alternatives:
                if inner.kind.value != ["null"]:  # the hint that null is accepted too would not help
                    yield from _problems_in(inner)
        case _:
            yield problem(place, error.message)
