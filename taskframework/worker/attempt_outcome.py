"""Makes the outcome of an attempt from what its task code returned and planned."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from taskframework.errors import InvalidRequestError, NonRetryableError, TaskframeworkError, ValueNotStorableError
from taskframework.model.outcome import Succeeded, Waits
from taskframework.model.task import Task
from taskframework.model.task_fields import Subtasks
from taskframework.model.values import MAX_RESULT_BYTES, Json, check_storable, in_one_line
from taskframework.tasks.chunks import for_each
from taskframework.tasks.context import TaskContext, forgotten_await, has_forgotten_wait
from taskframework.tasks.registry import Registration
from taskframework.tasks.stages import Call
from taskframework.tasks.subtasks import WaitForSignal
from taskframework.tasks.values import read_json, reason_of, refuse_values_lost_in_json, to_storable_json

#: What is probably wrong with code that returned None.
_NO_RESULT = "is a `return` missing?"
_NO_RESULT_WITH_SUBTASKS = (
    "is a `return` missing, or the method on_subtasks_finished, which gives the result after the sub-tasks?"
)
_PLAIN_FUNCTION = ", or in a plain def the method of the same name with _blocking or _soon at its end"


class BadResultError(NonRetryableError):
    """The result cannot be stored."""


def refuse_forgotten_calls(context: TaskContext[Any], returned: object) -> None:
    """Refuse a result if the code called a method of the context and did not return or await what it gave.

    Otherwise the task would end without its signal, its sub-tasks or one of its steps.

    Raises:
        BadResultError: says what to write.
    """
    if has_forgotten_wait(context, returned):
        raise BadResultError(
            "The code called context.wait_for and did not return its value: write `return context.wait_for(...)`."
        )
    if (name := forgotten_await(context)) is not None:
        raise BadResultError(
            f"The code called context.{name} and did not await it, so nothing was done: "
            f"write `await context.{name}(...)`."
        )


def outcome_of(registration: Registration, task: Task, returned: Any, subtasks: Subtasks | None) -> Succeeded | Waits:
    """Return the outcome of an attempt whose code returned.

    Args:
        registration: the registration of its task type.
        task: the task as it was claimed, which says what was called.
        returned: the result, or the value of `context.wait_for`.
        subtasks: the round that the code planned, if any.

    Raises:
        BadResultError: if the result is not of the declared type.
        InvalidRequestError: if the task would wait for a signal, but has no method for it.
    """
    call = Call.of(task)
    if call.is_chunk:
        _require_result_of_each(returned, len(task.parameters))
    if call.is_chunk or call.stage == "batch":
        return Succeeded(_result_of_many(registration, call, returned, subtasks))
    return outcome_of_one(registration, returned, subtasks)


def outcome_of_one(registration: Registration, returned: Any, subtasks: Subtasks | None) -> Succeeded | Waits:
    """`outcome_of` for a task that is neither a chunk nor a batch."""
    wait = returned if isinstance(returned, WaitForSignal) else None
    if wait is not None and "signal" not in registration.stages:
        raise InvalidRequestError(
            "signal",
            f"the task type {registration.task_type!r} cannot continue when it comes",
            "Define on_signal(self, context, signal); a task that is one function has to become a class.",
        )
    if subtasks is None and wait is None:
        return Succeeded(storable_result(registration, returned))
    result = None
    if subtasks is not None and not subtasks.resumes:
        result = storable_result(registration, None if wait else returned, _NO_RESULT_WITH_SUBTASKS)
    return Waits(subtasks, wait.signal if wait else None, wait.timeout if wait else None, result)


def _require_result_of_each(returned: object, items: int) -> None:
    """Refuse what is no list with a result for each item of a chunk; a middleware may have replaced the list."""
    if not isinstance(returned, list | tuple) or len(returned) != items:
        given = f"{len(returned)}" if isinstance(returned, list | tuple) else f"a {type(returned).__name__}"
        raise BadResultError(f"The result of a chunk of {items} items is a list of {items} results, not {given}.")


def _result_of_many(registration: Registration, call: Call, returned: Any, subtasks: Subtasks | None) -> Json:
    """Return the result of a chunk, which is a list of results, or of a batch, whose result type is not declared."""
    results = returned if call.is_chunk else [returned]
    if subtasks is not None or any(isinstance(result, WaitForSignal) for result in results):
        raise InvalidRequestError(
            "sub-tasks" if subtasks else "signal",
            f"{call.method} of {'a chunk' if call.is_chunk else 'a batch'} can neither submit sub-tasks nor wait",
            "Submit the batch without chunks." if call.is_chunk else "Submit another task that does this.",
        )
    try:
        plain = for_each(partial(storable_result, registration), returned) if call.is_chunk else returned
        return to_storable_json(plain, "result", MAX_RESULT_BYTES)
    except ValueNotStorableError as error:
        raise _not_storable_error(error) from None


def storable_result(registration: Registration, value: Any, if_none: str = _NO_RESULT) -> Json:
    """Return the result as JSON. If a result cannot be stored, its error is final: each attempt would fail alike.

    Args:
        registration: the registration of its task type.
        value: what the code returned.
        if_none: what is probably wrong if the code returned None and its type does not allow that.

    Raises:
        BadResultError: if the result is not of the declared type, or cannot be stored.
    """
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # otherwise Python warns of it, and names a line of the framework
        plain = "" if all(registration.stages.values()) else _PLAIN_FUNCTION
        raise BadResultError(f"The code returned a {type(value).__name__}: `await` is missing before it{plain}.")
    try:
        validated = registration.result.validate_python(value)
        refuse_values_lost_in_json(registration.result.dump_python(validated, by_alias=True, warnings=False), "result")
        plain = _as_json(registration.result, validated)
        check_storable(plain, "result", MAX_RESULT_BYTES)
    except ValidationError as error:
        if value is None:
            raise BadResultError(f"The code returned None, which is not of the declared type: {if_none}") from None
        raise BadResultError(f"The result is not of the declared type: {in_one_line(error)}."[:2000]) from None
    except (TaskframeworkError, ValueError, TypeError, RecursionError) as error:
        raise _not_storable_error(error) from None
    return plain


def _as_json(adapter: TypeAdapter[Any], value: Any) -> Json:
    """The JSON of a result. An instance was not checked: the code may have given a field a value of another type.

    Raises:
        ValidationError: if such a value cannot be read as the declared type.
    """
    try:
        plain: Json = adapter.dump_python(value, mode="json", by_alias=True, warnings="error")
        has_other_types = False
    except PydanticSerializationError:
        plain = adapter.dump_python(value, mode="json", by_alias=True, warnings=False)
        has_other_types = True
    try:
        read_json(adapter, plain)
    except Exception as error:  # a validator may raise anything if it reads JSON
        problems = error.errors(include_url=False) if isinstance(error, ValidationError) else []
        # A type that writes other fields than it reads is stored as it is. None in place of a value causes no warning.
        if any(has_other_types or (it["input"] is None and it["type"] != "extra_forbidden") for it in problems):
            raise
    return plain


def _not_storable_error(error: Exception) -> BadResultError:
    match error:
        case ValueNotStorableError():
            message = str(error)
        case RecursionError():
            message = "The result cannot be stored: it is nested too deeply, or contains itself."
        case _:
            message = f"The result cannot be stored: {reason_of(error)}"
    return BadResultError(message[:2000])
