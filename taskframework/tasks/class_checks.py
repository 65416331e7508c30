"""What a class must be like to be a task type. Each refusal says what to change."""

from __future__ import annotations

import inspect
import logging
from dataclasses import fields
from itertools import chain
from typing import Any, TypeGuard

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from taskframework.errors import RegistrationError
from taskframework.frames import place_in_source
from taskframework.model.status import LANES
from taskframework.names import NAME
from taskframework.tasks.executable import AnyExecutable, BackgroundTaskExecutable
from taskframework.tasks.kinds import type_arguments
from taskframework.tasks.options import TaskOptions
from taskframework.tasks.stages import describe_executable

logger = logging.getLogger(__name__)


def is_task(member: object) -> TypeGuard[type[BackgroundTaskExecutable[Any, Any]]]:
    return inspect.isclass(member) and issubclass(member, BackgroundTaskExecutable) and not _is_base_class(member)


def _is_base_class(kind: type[BackgroundTaskExecutable[Any, Any]]) -> bool:
    if inspect.isabstract(kind):
        return "task_type" not in vars(kind) or bool(kind.__subclasses__())
    return getattr(kind, "task_type", None) is None and bool(kind.__subclasses__())


def to_instance(
    executable: AnyExecutable,
) -> BackgroundTaskExecutable[Any, Any]:
    kind = executable if inspect.isclass(executable) else type(executable)
    if inspect.isroutine(executable):
        raise RegistrationError(
            f"The function {executable.__qualname__}{place_in_source(executable)} is not a task.",
            hint='Write @taskframework.task("its-type") right above it.',
        )
    if not issubclass(kind, BackgroundTaskExecutable):
        raise RegistrationError(
            f"{describe_executable(kind)} is not a BackgroundTaskExecutable.",
            hint="Derive it from taskframework.BackgroundTaskExecutable[Parameters, Result].",
        )
    if inspect.isabstract(kind):
        raise RegistrationError(
            f"{describe_executable(kind)} is abstract: {', '.join(sorted(kind.__abstractmethods__))} is missing.",
            hint="Implement it, or register a concrete subclass.",
        )
    if isinstance(executable, BackgroundTaskExecutable):
        return executable
    try:
        return executable()
    except Exception as error:
        if isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise RegistrationError(  # the call itself failed, not code inside `__init__`
                f"{describe_executable(kind)} cannot be made without arguments: {error}.",
                hint="Register an instance: framework.register(YourTask(...)).",
            ) from error
        raise RegistrationError(
            f"{describe_executable(kind)} cannot be made: {type(error).__name__}: {error}.",
            hint="Correct its __init__, or register an instance: framework.register(YourTask(...)).",
        ) from error


_OPTIONS = frozenset(field.name for field in fields(TaskOptions))


def check_options(instance: BackgroundTaskExecutable[Any, Any]) -> None:
    for name, value in chain.from_iterable(vars(kind).items() for kind in type(instance).__mro__):
        if name != "options" and isinstance(value, TaskOptions):
            raise RegistrationError(
                f"{describe_executable(instance)} has its options under the name {name}, where nothing reads them.",
                hint="Write options = TaskOptions(...).",
            )
        # Only a warning, because the author's own code may read it.
        if name in _OPTIONS and not (callable(value) or isinstance(value, property)):
            text = "%s: the attribute %s sets no option of the task type; write options = TaskOptions(%s=...)"
            logger.warning(text, describe_executable(instance), name, name)
    if not isinstance(instance.options, TaskOptions):
        raise RegistrationError(
            f"The options of {describe_executable(instance)} are {instance.options!r}.",
            hint="Write options = TaskOptions(...).",
        )


def checked_type(instance: BackgroundTaskExecutable[Any, Any]) -> str:
    task_type = getattr(instance, "task_type", None)
    if task_type is None:
        raise RegistrationError(
            f"{describe_executable(instance)} has no task_type.",
            hint='Write task_type = "count-words" in it. Only an abstract base class needs none.',
        )
    if not isinstance(task_type, str) or NAME.fullmatch(task_type) is None:
        raise RegistrationError(
            f"{describe_executable(instance)} has task_type {task_type!r}.",
            hint="Use lower-case letters, digits, '.', '_' and '-', starting with a letter or digit, at most 100.",
        )
    if "." in task_type and task_type.rpartition(".")[2] in LANES:
        raise RegistrationError(
            f"{describe_executable(instance)} has task_type {task_type!r}, which ends with the name of a lane.",
            hint="Queues are named by type and lane, so a type cannot end in .high, .normal or .low.",
        )
    return task_type


def type_arguments_of(kind: type[BackgroundTaskExecutable[Any, Any]]) -> tuple[Any, Any]:
    if (found := type_arguments(kind)) is None:
        raise RegistrationError(
            f"{describe_executable(kind)} does not say its parameter and result types.",
            hint=f"Write class {kind.__name__}(BackgroundTaskExecutable[Parameters, Result]).",
        )
    return found


def adapter_of(argument: Any, instance: BackgroundTaskExecutable[Any, Any], what: str) -> TypeAdapter[Any]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(argument)
        adapter.rebuild(raise_errors=True)  # a name that cannot be resolved would fail at the first submission
        return adapter
    except (PydanticUserError, NameError) as error:
        reason = str(error).partition("\n\nFor further information")[0].removesuffix(".")
        raise RegistrationError(
            f"The {what} type of {describe_executable(instance)} is not one pydantic can validate: {reason}.",
            hint="Use a pydantic model, a dataclass or plain types.",
        ) from error
