"""Task type → executable, with the models of its parameters and result."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter, ValidationError, WithJsonSchema

from taskframework.errors import InvalidParametersError, RegistrationError, UnknownTaskTypeError
from taskframework.model.options import KeptFor, StartLimit
from taskframework.model.values import Json, problem, problems_of
from taskframework.tasks.class_checks import (
    adapter_of,
    check_options,
    checked_type,
    is_task,
    to_instance,
    type_arguments_of,
)
from taskframework.tasks.executable import AnyExecutable, BackgroundTaskExecutable
from taskframework.tasks.limits import ConcurrencyLimit, RateLimit, start_limit_of
from taskframework.tasks.readback import change_when_read
from taskframework.tasks.retention import retention_from_option
from taskframework.tasks.schemas import NO_PARAMETERS, describe_parameters_cached, fields_in, names_of_field
from taskframework.tasks.stages import Part, describe_executable, resources_of, stages_of
from taskframework.tasks.values import read_json, storable_parameters

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Registration:
    """An executable with its validators, compiled once."""

    executable: BackgroundTaskExecutable[Any, Any]
    parameters: TypeAdapter[Any]
    result: TypeAdapter[Any]
    #: The stages for which it has a method, and for each whether that is a coroutine function.
    stages: Mapping[Part, bool]
    #: For each stage whose method asks for resources: their classes, by the names of its parameters.
    resources: Mapping[Part, Mapping[str, type[Any]]]

    @property
    def task_type(self) -> str:
        return self.executable.task_type

    @property
    def priority(self) -> str:
        return self.executable.options.priority

    @property
    def max_attempts(self) -> int | None:
        return self.executable.options.max_attempts

    @property
    def max_chunk_size(self) -> int:
        return self.executable.options.max_chunk_size

    @property
    def rate_limit(self) -> RateLimit | None:
        return self.executable.options.limit

    @property
    def bucket(self) -> str | None:
        """The name of the bucket that the whole type shares; None if it has no rate limit, or a bucket for each key."""
        limit = self.rate_limit
        return None if limit is None or limit.key is not None else limit.name

    @property
    def start_limit(self) -> StartLimit | None:
        return start_limit_of(self.executable.options.queue_timeout)

    @property
    def retention(self) -> KeptFor | None:
        return retention_from_option(self.executable.options.retention)

    @property
    def concurrency_limit(self) -> ConcurrencyLimit | None:
        """The concurrency limit of the options; a plain number is a limit of the whole type."""
        limit = self.executable.options.concurrency_limit
        return ConcurrencyLimit(limit) if isinstance(limit, int) else limit

    @property
    def has_limit_by_key(self) -> bool:
        """Whether it has a rate limit or a concurrency limit whose key is in the parameters."""
        rate, concurrency = self.executable.options.rate_limit, self.executable.options.concurrency_limit
        return (isinstance(rate, RateLimit) and rate.key is not None) or (
            isinstance(concurrency, ConcurrencyLimit) and concurrency.key is not None
        )

    @property
    def parameter_fields(self) -> frozenset[str] | None:
        """The names of the parameters as they are submitted; None if their type does not list them."""
        try:
            return fields_in(self.parameters.json_schema())
        except Exception:  # authors can add their own code to a schema
            return None

    def names_of(self, field: str) -> tuple[str, ...]:
        """The names under which parameters may give a field, first the one by which it is submitted."""
        return _names_of(type(self.executable), field)

    @property
    def finishes_batches(self) -> bool:
        """Whether a batch of this type continues in `on_batch_finished`."""
        return "batch" in self.stages

    def accept(self, value: Any) -> tuple[Json, bytes]:
        """Parameters of a submission as they are stored, and as canonical JSON, if they fit the model.

        Raises:
            InvalidParametersError: names each field that does not fit.
            ValueNotStorableError: if a store could not keep them.
        """
        try:
            accepted = self.validate_parameters(value)
        except InvalidParametersError as error:
            taken = describe_parameters_cached(self.task_type, self.parameters)
            raise InvalidParametersError(self.task_type, error.problems, takes=taken) from None
        except (Exception, SystemExit) as error:  # of a validator; the submitter can do nothing but change the value
            logger.exception("a validator of task type %s broke", self.task_type)
            broke = problem((), f"a validator of the task type broke ({type(error).__name__})")
            raise InvalidParametersError(self.task_type, [broke]) from error
        if self.parameters is _NO_PARAMETERS:
            value = None  # an empty object means the same, so it is stored and compared in the same way
        plain, canonical = storable_parameters(value, self.parameters, accepted)
        if plain is not value:
            self._require_readable(plain, type(value), accepted)
        return plain, canonical

    def _require_readable(self, plain: Json, kind: type, accepted: Any) -> None:
        """Refuse the JSON of an object if every attempt would refuse it, or would get an object of another class."""
        try:
            read = self.validate_parameters(plain)
        except (Exception, SystemExit) as error:  # of a validator
            reason = type(error).__name__
            if isinstance(error, InvalidParametersError):
                reason = f"{error.problems[0]['field']}: {error.problems[0]['message']}"
            wrong = f"{kind.__name__} does not accept its own JSON ({reason})"
            hint = "Let the model read what it writes: see its aliases, and its excluded and computed fields."
            raise InvalidParametersError(self.task_type, [problem((), wrong)], takes=hint) from None
        if (change := change_when_read(accepted, read)) is not None:
            # The hint of the error is about the parameters as a whole.
            wrong = f"{change.message}. {change.hint.removesuffix('.')}" if change.place else change.message
            raise InvalidParametersError(self.task_type, [problem(change.place, wrong)], takes=change.hint)

    def validate_parameters(self, value: Any) -> Any:
        """Turn JSON into P.

        Raises:
            InvalidParametersError: naming each field that does not fit.
        """
        try:
            return read_json(self.parameters, value)
        except ValidationError as error:
            # Without the cause, because the cause quotes the input, and the log would then show the input.
            raise InvalidParametersError(self.task_type, problems_of(error)) from None


class TaskRegistry:
    """The task types this program knows."""

    def __init__(self, check: Callable[[Registration], None] = lambda registration: None) -> None:
        """Start without task types. `check` is called before each registration, and may raise `RegistrationError`."""
        self._registrations: dict[str, Registration] = {}
        self._check = check
        self._workers = 0

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Accept no further types in this context: a worker consumes only the types that it knew when it started."""
        self._workers += 1
        try:
            yield
        finally:
            self._workers -= 1

    def register(self, executable: AnyExecutable) -> Registration:
        """Add an executable, or a class that needs no arguments to make one.

        Raises:
            RegistrationError: if it is not an executable, is abstract, has no valid type name or generic arguments, if
                its type is taken, or while a worker runs.
        """
        instance = to_instance(executable)
        task_type = checked_type(instance)
        if self._workers:
            raise RegistrationError(
                f"Task type {task_type!r} is registered while a worker is running, which would never execute it.",
                hint="Register it before `running()`.",
            )
        if (present := self._registrations.get(task_type)) is not None:
            raise RegistrationError(
                f"Task type {task_type!r} is registered twice: by {describe_executable(present.executable)} "
                f"and {describe_executable(instance)}.",
                hint="Register this class once."
                if type(present.executable) is type(instance)
                else "Give one of them another task_type.",
            )
        check_options(instance)
        parameters, result = type_arguments_of(type(instance))
        stages = stages_of(instance)
        registration = Registration(
            instance,
            _NO_PARAMETERS if parameters in (None, type(None)) else adapter_of(parameters, instance, "parameters"),
            adapter_of(result, instance, "result"),
            stages,
            resources_of(instance, stages),
        )
        self._check(registration)
        self._registrations[task_type] = registration
        return registration

    def register_module(self, module: ModuleType) -> tuple[Registration, ...]:
        """Register every concrete executable that is defined in the module, but no imported executable.

        Raises:
            RegistrationError: see `register`; also if a class has a `task_type` but no `execute`, and no class is
                derived from it: its method has another name by mistake.
        """
        tasks = [member for member in vars(module).values() if is_task(member)]
        found = [task for task in tasks if task.__module__ == module.__name__]
        if not found:
            hint = "Define one in it, or name another module."
            if module.__name__.partition(".")[0] in sys.stdlib_module_names:
                hint = f"It is a module of Python itself ({getattr(module, '__file__', None)}): rename yours."
            if tasks:
                source = tasks[0].__module__
                names = ", ".join(task.__name__ for task in tasks if task.__module__ == source)
                hint = f"It imports {names}, and imported tasks do not count: use --app {source}."
            raise RegistrationError(
                f"Module {module.__name__} defines no tasks: neither a BackgroundTaskExecutable with task_type and "
                "execute nor a @task function.",
                hint=hint,
            )
        return tuple(self.register(member) for member in found)

    def get(self, task_type: str) -> Registration | None:
        return self._registrations.get(task_type)

    def require(self, task_type: str) -> Registration:
        """The registration of a type.

        Raises:
            UnknownTaskTypeError: names the most similar registered type.
        """
        registration = self._registrations.get(task_type)
        if registration is None:
            raise UnknownTaskTypeError(task_type, self.task_types)
        return registration

    @property
    def task_types(self) -> tuple[str, ...]:
        return tuple(sorted(self._registrations))

    def __iter__(self) -> Iterator[Registration]:
        return iter(self._registrations.values())

    def __len__(self) -> int:
        return len(self._registrations)


#: Of all task types that take no parameters.
_NO_PARAMETERS: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        None,
        BeforeValidator(lambda value: None if value == {} else value),
        WithJsonSchema(NO_PARAMETERS),
    ]
)


@functools.cache
def _names_of(kind: type[BackgroundTaskExecutable[Any, Any]], field: str) -> tuple[str, ...]:
    return names_of_field(type_arguments_of(kind)[0], field)
