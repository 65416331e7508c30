"""`@task`: a task type that is one function."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, get_args, get_origin, get_type_hints, overload

from taskframework.errors import RegistrationError
from taskframework.frames import place_in_source
from taskframework.tasks.context import TaskContext
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.tasks.options import TaskOptions, unknown_option_error
from taskframework.tasks.resources import wanted_resources

P = TypeVar("P")
R = TypeVar("R")
Options = ParamSpec("Options")
Function = Callable[..., Any]

_SIGNATURE_HINT = (
    "Write def {name}(parameters: Parameters, context: TaskContext[Parameters]) -> Result; "
    "parameters and context may be left out."
)
_PARAMETERS, _CONTEXT = "parameters", "context"
#: What a function may take, in this order.
_ALLOWED_ARGUMENTS = ((), (_PARAMETERS,), (_CONTEXT,), (_PARAMETERS, _CONTEXT))
_OPTIONS = frozenset(field.name for field in fields(TaskOptions))


class Decorator(Protocol):
    """Makes a task type of a function. The function may be async, and may leave out the context and the parameters."""

    @overload
    def __call__(
        self, function: Callable[[P, TaskContext[P]], Awaitable[R]], /
    ) -> type[BackgroundTaskExecutable[P, R]]: ...
    @overload
    def __call__(
        self, function: Callable[[TaskContext[P]], Awaitable[R]], /
    ) -> type[BackgroundTaskExecutable[P, R]]: ...
    @overload
    def __call__(self, function: Callable[[], Awaitable[R]], /) -> type[BackgroundTaskExecutable[None, R]]: ...
    @overload
    def __call__(self, function: Callable[[P], Awaitable[R]], /) -> type[BackgroundTaskExecutable[P, R]]: ...
    @overload
    def __call__(self, function: Callable[[P, TaskContext[P]], R], /) -> type[BackgroundTaskExecutable[P, R]]: ...
    @overload
    def __call__(self, function: Callable[[TaskContext[P]], R], /) -> type[BackgroundTaskExecutable[P, R]]: ...
    @overload
    def __call__(self, function: Callable[[], R], /) -> type[BackgroundTaskExecutable[None, R]]: ...
    @overload
    def __call__(self, function: Callable[[P], R], /) -> type[BackgroundTaskExecutable[P, R]]: ...


def _with_options(make: Callable[Options, TaskOptions]) -> Callable[Concatenate[str, Options], Decorator]:
    """`task`, with the options that `TaskOptions` has: checkers and editors know them, and they are listed once."""

    def task(task_type: str = "", /, *args: Options.args, **options: Options.kwargs) -> Decorator:
        """Make a task type of the function below, in place of a class with `execute`.

        ::

            @task("count-words", max_attempts=5)
            async def count_words(parameters: CountWordsParameters) -> CountWordsResult: ...

        The name then stands for a `BackgroundTaskExecutable`, to be registered and submitted like any other.

        Args:
            task_type: its name: `[a-z0-9][a-z0-9._-]*`, at most 100 characters.
            options: see `TaskOptions`.

        Raises:
            RegistrationError: if there is no name, an option is wrong, or the function does not say its parameters and
                its result.
        """
        # Without parentheses the argument is the function itself, and no task type would be made.
        if not task_type or not isinstance(task_type, str):
            raise RegistrationError(
                f"@task{place_in_source(task_type)} does not give the name of the task type.",
                hint='Write @task("count-words").',
            )
        if unknown := options.keys() - _OPTIONS:
            by_name = f'Give them by name: @task("{task_type}", max_attempts=5).'
            raise unknown_option_error(f"@task({task_type!r})", min(unknown), _OPTIONS, by_name)
        try:
            chosen = make(*args, **options)
        except RegistrationError as error:
            raise RegistrationError(f"@task({task_type!r}): {error.message}", hint=error.hint) from None
        caller_locals = sys._getframe(1).f_locals  # types that the function names may be defined there

        def decorate(function: Function) -> type[BackgroundTaskExecutable[Any, Any]]:
            found = _read_annotations(function, caller_locals)
            base = BackgroundTaskExecutable[found.parameters, found.result]  # type: ignore[name-defined]
            body = {
                "task_type": task_type,
                "options": chosen,
                "execute": _make_execute(function, found.arguments),
                "__init__": _refuse_arguments,
                "__doc__": function.__doc__,
                "__module__": function.__module__,
                "__qualname__": function.__qualname__,
                "__wrapped__": staticmethod(function),
            }
            return types.new_class(function.__name__, (base,), exec_body=lambda names: names.update(body))

        return decorate

    return task


task = _with_options(TaskOptions)


def _refuse_arguments(self: object, *args: object, **named: object) -> None:
    """Refuse arguments. The registry passes none, so a call with arguments is meant for the function itself."""
    if args or named:
        name = type(self).__name__
        raise TypeError(
            f"{name} is a task type, which is not called but registered and submitted: framework.submit({name}, ...). "
            f"In a test: await taskframework.testing.run({name}, ...)."
        )


@dataclass(frozen=True, slots=True)
class _FunctionTypes:
    """The types and arguments of a function, by its annotations."""

    parameters: Any
    result: Any
    #: One of `_ALLOWED_ARGUMENTS`.
    arguments: tuple[str, ...]


def _make_execute(function: Function, arguments: tuple[str, ...]) -> Function:
    """The method that calls a function. It is a coroutine function if the function is: this decides where it runs."""

    def call(context: TaskContext[Any], **resources: Any) -> Any:
        given = (context if argument == _CONTEXT else context.parameters for argument in arguments)
        return function(*given, **resources)

    async def execute_on_loop(self: object, context: TaskContext[Any], **resources: Any) -> Any:
        return await call(context, **resources)

    def execute(self: object, context: TaskContext[Any], **resources: Any) -> Any:
        return call(context, **resources)

    made: Any = execute_on_loop if inspect.iscoroutinefunction(function) else execute
    made.__signature__ = _signature(made, function)
    return cast(Function, made)


def _own_parameter_names(function: Function) -> list[str]:
    """The names of the parameters that are not resources."""
    return [name for name in inspect.signature(function).parameters if name not in wanted_resources(function)]


def _signature(made: Function, function: Function) -> inspect.Signature:
    """The signature of the method: its own, and the resources that the function asks for."""
    itself, context, _ = inspect.signature(made).parameters.values()
    parameters, wanted = inspect.signature(function).parameters, wanted_resources(function)
    resources = [parameters[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in wanted]
    return inspect.Signature([itself, context, *resources])


def _read_annotations(function: Function, caller_locals: Mapping[str, Any]) -> _FunctionTypes:
    if not hasattr(function, "__qualname__") or isinstance(function, (classmethod, staticmethod)):
        hint = "Write a def of its own for it; a task with a state of its own is a class with `execute`."
        raise RegistrationError(f"@task is for functions, and this is a {type(function).__name__}.", hint=hint)
    what = f"{function.__module__}.{function.__qualname__}{place_in_source(function)}"
    hint = _SIGNATURE_HINT.format(name=function.__name__)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise RegistrationError(f"{what} is a generator.", hint="Return the result instead of yielding it.")
    names = _own_parameter_names(function)
    if unusual := next((it for it in inspect.signature(function).parameters.values() if _is_unusual(it, names)), None):
        why = (
            "has a default, which is never used" if unusual.default is not unusual.empty else "cannot be given by place"
        )
        raise RegistrationError(f"{what} has an argument {unusual.name} that {why}.", hint=hint)
    if len(names) > 2:
        raise RegistrationError(f"{what} takes {len(names)} arguments.", hint=hint)
    try:
        hints = get_type_hints(function, localns={**caller_locals}, include_extras=True)
    except NameError as error:
        raise RegistrationError(f"{what} uses an unknown type: {error}.", hint=hint) from error
    if missing := [name for name in (*names[:1], "return") if name not in hints]:
        wanted = "type of its result" if missing == ["return"] else f"type of {missing[0]}"
        raise RegistrationError(f"{what} does not say the {wanted}.", hint=hint)
    annotations = [hints.get(name, TaskContext) for name in names]
    arguments = tuple(_CONTEXT if _is_context(each) else _PARAMETERS for each in annotations)
    if arguments not in _ALLOWED_ARGUMENTS:
        if _CONTEXT not in arguments:
            raise RegistrationError(f"{what} takes {len(names)} arguments, and neither is the context.", hint=hint)
        raise RegistrationError(f"{what} has the context in the wrong place.", hint=hint)
    if arguments == (_CONTEXT,) and not get_args(annotations[0]):
        hint = "Write TaskContext[Parameters], or TaskContext[None] if it has no parameters."
        raise RegistrationError(f"{what} does not say the type of its parameters.", hint=hint)
    parameters = get_args(annotations[0])[0] if arguments == (_CONTEXT,) else annotations[0] if annotations else None
    return _FunctionTypes(parameters, hints["return"], arguments)


def _is_unusual(parameter: inspect.Parameter, names: Collection[str]) -> bool:
    """Return whether a parameter that is no resource cannot be given by position alone, or has a default."""
    by_position = (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return parameter.name in names and (parameter.kind not in by_position or parameter.default is not parameter.empty)


def _is_context(hint: Any) -> bool:
    return hint is TaskContext or get_origin(hint) is TaskContext
