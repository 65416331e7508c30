"""What task code returned, and planned, as the outcome of its attempt."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from taskframework.errors import InvalidRequestError, NonRetryableError, TaskframeworkError
from taskframework.model.outcome import Succeeded, Waits
from taskframework.model.task import Subtasks
from taskframework.model.values import MAX_RESULT_BYTES, Json, check_storable, in_one_line
from taskframework.tasks.registry import Registration
from taskframework.tasks.subtasks import WaitForSignal
from taskframework.tasks.values import refuse_non_finite


class BadResultError(NonRetryableError):
    """The result cannot be stored."""


def outcome_of(registration: Registration, returned: Any, subtasks: Subtasks | None) -> Succeeded | Waits:
    """How an attempt ended whose code returned.

    Args:
        registration: of its task type.
        returned: the result, or what `context.wait_for` gave.
        subtasks: the round that it planned, if any.

    Raises:
        BadResultError: if the result is not of the declared type.
        InvalidRequestError: if the task would wait for a signal that it cannot hear.
    """
    wait = returned if isinstance(returned, WaitForSignal) else None
    if wait is not None and "signal" not in registration.stages:
        raise InvalidRequestError(
            "signal",
            f"the task type {registration.task_type!r} cannot go on when it comes",
            "Define on_signal(self, context, signal).",
        )
    if subtasks is None and wait is None:
        return Succeeded(_storable_result(registration, returned))
    result = None
    if subtasks is not None and not subtasks.resumes:
        result = _storable_result(registration, None if wait else returned)
    return Waits(subtasks, wait.signal if wait else None, wait.timeout if wait else None, result)


def _storable_result(registration: Registration, value: Any) -> Json:
    """The result as JSON; a result that cannot be stored would fail on every attempt, so it is final."""
    try:
        validated = registration.result.validate_python(value)
        refuse_non_finite(registration.result.dump_python(validated, by_alias=True), "result")
        plain = registration.result.dump_python(validated, mode="json", by_alias=True)
        check_storable(plain, "result", MAX_RESULT_BYTES)
    except ValidationError as error:
        raise BadResultError(f"The result is not the declared type: {in_one_line(error)}."[:2000]) from None
    except (TaskframeworkError, ValueError, TypeError, RecursionError) as error:
        raise BadResultError(f"The result cannot be stored: {error}"[:2000]) from None
    return plain
