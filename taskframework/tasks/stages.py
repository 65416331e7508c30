"""The methods of an executable: which method an attempt calls, and with which arguments."""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from taskframework.errors import RegistrationError
from taskframework.frames import place_in_source
from taskframework.model.task import Stage, Task
from taskframework.model.task_fields import Signal, Subtasks
from taskframework.tasks.chunks import call_for_each_item
from taskframework.tasks.context import TaskContext
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.tasks.kinds import type_arguments
from taskframework.tasks.resources import wanted_resources
from taskframework.tasks.subtasks import SubtaskSummary

#: The method that an attempt calls, as the stage of its task; or "batch" at the end of a batch, whose task stage is
#: "resume".
Part = Stage | Literal["batch"]
METHODS: Mapping[Part, str] = {
    "execute": "execute",
    "resume": "on_subtasks_finished",
    "signal": "on_signal",
    "batch": "on_batch_finished",
}
#: The arguments of each method.
_ARGUMENTS = {
    "execute": ("context",),
    "on_subtasks_finished": ("context", "summary"),
    "on_signal": ("context", "signal"),
    "on_batch_finished": ("context", "summary"),
}

#: From this similarity on (1: equal, as `difflib` measures it), a method's name is a mistake: `on_subtask_finished` has
#: 0.97, and `on_signal_received` has 0.67.
_MISSPELT = 0.85


@dataclass(frozen=True, slots=True)
class Call:
    """The call that one attempt makes. It can be pickled for another process."""

    stage: Part
    #: The data from which the method's second argument is made; None: the method has no second argument.
    about: Subtasks | Signal | None = None
    #: Whether the method is called for each item of a chunk.
    is_chunk: bool = False

    @property
    def method(self) -> str:
        return METHODS[self.stage]

    @classmethod
    def of(cls, task: Task) -> Call:
        """The call for a claimed task."""
        match task.stage:
            case "resume" if task.subtasks is not None:
                return cls("resume" if task.batch is None else "batch", replace(task.subtasks, plan=None))
            case "signal" if task.woken_by is not None:
                return cls("signal", task.woken_by)
        return CHUNK if task.parent is not None and task.parent.is_chunk else EXECUTE

    def make(
        self,
        executable: BackgroundTaskExecutable[Any, Any],
        context: TaskContext[Any],
        resources: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """Call the method with these resources; a coroutine function gives a coroutine, as always."""
        method = getattr(executable, self.method)
        if resources:
            method = partial(method, **resources)
        if self.is_chunk:
            return call_for_each_item(method, context)
        if self.about is None:
            return method(context)
        about = self.about
        return method(context, about if isinstance(about, Signal) else SubtaskSummary.of(about, context.control.family))


EXECUTE = Call("execute")
CHUNK = Call("execute", is_chunk=True)


def stages_of(instance: BackgroundTaskExecutable[Any, Any]) -> dict[Part, bool]:
    """The stages for which an executable has a method, and for each whether that is a coroutine function.

    Raises:
        RegistrationError: if a method has the wrong arguments, cannot run where the options say, or has nearly the name
            of a method that an executable may have.
    """
    _refuse_misspelt_methods(type(instance))
    stages: dict[Part, bool] = {}
    for stage, name in METHODS.items():
        method = getattr(instance, name)
        if getattr(method, "__func__", None) is getattr(BackgroundTaskExecutable, name):
            continue  # not defined
        _check(instance, name, method)
        stages[stage] = inspect.iscoroutinefunction(method)
        if stages[stage] and instance.options.run_in == "process":
            raise RegistrationError(
                f"{describe_executable(instance, method)} has run_in='process' and an async {name}.",
                hint="Make it a plain def.",
            )
    return stages


def _refuse_misspelt_methods(kind: type[BackgroundTaskExecutable[Any, Any]]) -> None:
    """Refuse methods such as `on_subtask_finished`, which would never be called, and without an error."""
    for name in dir(kind):
        if name.startswith("on_") and not hasattr(BackgroundTaskExecutable, name):
            for nearest in difflib.get_close_matches(name, METHODS.values(), 1, _MISSPELT):
                raise RegistrationError(
                    f"{describe_executable(kind, getattr(kind, name))} has the method {name}, which nobody calls.",
                    hint=f"Rename it to {nearest}, or to something less similar.",
                )


def resources_of(
    instance: BackgroundTaskExecutable[Any, Any], stages: Iterable[Part]
) -> dict[Part, Mapping[str, type[Any]]]:
    """The resources that the methods of these stages ask for. Stages without resources are left out.

    Raises:
        RegistrationError: if the methods run in a process of their own, which has no resources.
    """
    wanted = {stage: found for stage in stages if (found := wanted_resources(getattr(instance, METHODS[stage])))}
    if wanted and instance.options.run_in == "process":
        raise RegistrationError(
            f"{describe_executable(instance)} has run_in='process' and wants resources, which stay in the worker's "
            "process.",
            hint="Open what it needs in the code, or let it run in a thread.",
        )
    return wanted


def describe_executable(executable: object, method: object = None) -> str:
    """The name of an executable for messages: its class, and the source place of the class or of one of its methods."""
    kind = executable if isinstance(executable, type) else type(executable)
    is_function = hasattr(kind, "__wrapped__")  # its methods are not code of the author
    return f"{kind.__module__}.{kind.__qualname__}{place_in_source(kind if method is None or is_function else method)}"


def _check(instance: BackgroundTaskExecutable[Any, Any], name: str, method: Any) -> None:
    if inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method):
        raise RegistrationError(
            f"{name} of {describe_executable(instance, method)} is a generator.",
            hint="Return the result instead of yielding it.",
        )
    arguments = _ARGUMENTS[name]
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError as error:
        raise RegistrationError(
            f"{name} of {describe_executable(instance, method)} cannot be called with a {' and a '.join(arguments)}: "
            f"{error}.",
            hint=f"Write def {name}(self, {', '.join(arguments)}).",
        ) from error
    _check_annotation_of_context(instance, name, method)


def _check_annotation_of_context(instance: BackgroundTaskExecutable[Any, Any], name: str, method: Any) -> None:
    """Refuse `def execute(self, parameters: int)`, which would get a context and not the parameters."""
    first = next(iter(inspect.signature(method).parameters), "")
    try:
        wanted = typing.get_type_hints(method).get(first)
    except (NameError, TypeError):  # names that are imported for type checkers only
        return
    declared = type_arguments(type(instance))
    if declared is not None and wanted is not None and wanted is not Any and wanted == declared[0]:
        raise RegistrationError(
            f"{name} of {describe_executable(instance, method)} takes the parameters as {first}, but it is called with "
            "the context of the attempt.",
            hint=f"Write def {name}(self, {', '.join(_ARGUMENTS[name])}), and take context.parameters.",
        )
