"""Options that make several submissions share one task: which of them exclude each other, and what they store."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from taskframework.errors import InvalidRequestError
from taskframework.model.debounce import throttled_id
from taskframework.model.idempotency import with_task_id
from taskframework.model.options import Debounce
from taskframework.model.task import Task

#: Options that identify the task, so that a submission may have only one of them; each with a hint that says why.
_HINTS = {
    "idempotency_key": "A key stands for one task only.",
    "unique": "The same version already is the same task.",
    "debounce": "Submissions with this key already share one task.",
    "throttle": "Submissions with this key already share one task.",
}
NAMING_OPTIONS = frozenset(_HINTS)
#: Without `max_wait`, a debounced task waits at most this many times its `wait`.
_MAX_WAIT_FACTOR = 10


def check_naming_options(options: Mapping[str, Any]) -> None:
    """Check that the options do not contradict each other.

    Raises:
        InvalidRequestError: if two options exclude each other; names both.
    """
    given = [name for name in _HINTS if name in options]
    if len(given) > 1:
        raise InvalidRequestError(given[-1], f"it cannot be combined with {given[0]}", _HINTS[given[-1]])
    for time in ("not_before", "deadline"):
        if "debounce" in options and time in options:
            raise InvalidRequestError(
                time, "it cannot be combined with debounce", "A debounced task starts when its wait is over."
            )


def debounce_fields(options: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the fields that a debounced task is stored with.

    Raises:
        InvalidRequestError: if `max_wait` is shorter than `wait`.
    """
    given = options["debounce"]
    wait: timedelta = given["wait"]
    max_wait: timedelta = given.get("max_wait", _MAX_WAIT_FACTOR * wait)
    if max_wait < wait:
        raise InvalidRequestError(
            "debounce.max_wait", "it is shorter than wait", "Give a max_wait that is not shorter than wait."
        )
    millisecond = timedelta(milliseconds=1)
    return {"debounce": Debounce(given["key"], wait // millisecond, max_wait // millisecond), "not_before": now + wait}


def with_throttle_id(task: Task, throttle: Mapping[str, Any]) -> Task:
    """Return the task with the id that its key and period give."""
    return with_task_id(
        task, throttled_id(task.user_id, task.task_type, throttle["key"], throttle["every"], task.created_at)
    )
