"""A task type as a submitter sees it: its name, and the types of its parameters and its result."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from taskframework.errors import InvalidRequestError, TaskframeworkError
from taskframework.model.values import Json, in_one_line
from taskframework.tasks.values import read_json

P = TypeVar("P")
R = TypeVar("R")


class TaskKind(Generic[P, R]):
    """A task type that takes P and gives R."""

    #: Name on the wire and over HTTP: `[a-z0-9][a-z0-9._-]*`, at most 100 characters.
    task_type: ClassVar[str]


#: A task type by its class or an instance of the class: type checkers know its parameters and its result.
KindOf = TaskKind[P, R] | type[TaskKind[P, R]]
AnyKind = KindOf[Any, Any]
#: A task type as a program names it.
AnyTaskType = str | AnyKind


class ResultUnreadableError(TaskframeworkError):
    """The stored result is not of the type that this program expects."""

    hint = (
        "Its worker has another version of the task type, or values of this type cannot be read back from their JSON; "
        "the result as JSON is in `Task.result`."
    )


def type_name(given: object) -> str:
    """The name of a task type that is given by its name, by its class or by an instance.

    Raises:
        InvalidRequestError: if it is anything else.
    """
    if isinstance(given, str):
        return given
    is_task = issubclass(given if isinstance(given, type) else type(given), TaskKind)
    if is_task and isinstance(name := getattr(given, "task_type", None), str):
        return name
    what = "the task class has no task_type" if is_task else f"{given!r:.100} names no task"
    raise InvalidRequestError("task_type", what, "Give the type's name, its class or an instance of the class.")


def kind_of(given: AnyTaskType | None) -> type[TaskKind[Any, Any]] | None:
    """The class of a task type; None if only its name is known."""
    if given is None or isinstance(given, str):
        return None
    return given if isinstance(given, type) else type(given)


def read_result(kind: type[TaskKind[Any, Any]] | None, result: Json) -> Any:
    """A stored result as the R of its task type; unchanged if only the name of the type is known.

    Raises:
        ResultUnreadableError: if the result is not an R.
    """
    if kind is None:
        return result
    try:
        return read_json(_reader(kind), result)  # type: ignore[arg-type]  # a class is hashable
    except ValidationError as error:
        raise ResultUnreadableError(
            f"The stored result is not of the type of {kind.__qualname__}: {in_one_line(error)}."[:2000]
        ) from None


def type_arguments(kind: type[TaskKind[Any, Any]]) -> tuple[Any, Any] | None:
    """P and R of a task type, also through generic base classes; None if the class does not name them."""
    found = _arguments_in(kind, ())
    if len(found) != 2 or any(isinstance(argument, TypeVar) or _has_type_variables(argument) for argument in found):
        return None
    return found[0], found[1]


@cache
def _reader(kind: type[TaskKind[Any, Any]]) -> TypeAdapter[Any]:
    arguments = type_arguments(kind)
    return TypeAdapter(Any if arguments is None else arguments[1])


def _has_type_variables(argument: Any) -> bool:
    """Return whether a generic alias, such as list[T], still has a variable in it."""
    return get_origin(argument) is not None and bool(getattr(argument, "__parameters__", ()))


def _arguments_in(kind: Any, arguments: Sequence[Any]) -> Sequence[Any]:
    """P and R of a class whose own type variables stand for `arguments`; empty if the class does not name them."""
    if kind is TaskKind:
        return arguments
    found: Sequence[Any] = ()
    bound = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
    for base in vars(kind).get("__orig_bases__", kind.__bases__):
        origin = get_origin(base) or base
        if inspect.isclass(origin) and issubclass(origin, TaskKind):
            if _has_type_variables(base):
                base = base[tuple(bound.get(variable, variable) for variable in base.__parameters__)]
            found = _arguments_in(origin, get_args(base))
            if found and not any(isinstance(argument, TypeVar) for argument in found):
                break  # otherwise the base is a mixin that does not name them
    return found
