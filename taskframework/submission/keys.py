"""Options by which several submissions mean one task: what they exclude, and what a task is stored with by them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from taskframework.errors import InvalidRequestError
from taskframework.model.debounce import throttled_id
from taskframework.model.idempotency import under_id
from taskframework.model.options import Debounce
from taskframework.model.task import Task

#: Each names the task otherwise, so that a submission has one of them; and why the last one needs no other.
_WHY = {
    "idempotency_key": "A key names one task.",
    "unique": "The same version is the same task already.",
    "debounce": "Submissions of its key share a task already.",
    "throttle": "Submissions of its key share a task already.",
}
NAMES = frozenset(_WHY)
#: A task waits no longer than so many times its `wait` if nothing else is said.
_WAITS = 10


def check_names(options: Mapping[str, Any]) -> None:
    """See that the options do not contradict each other.

    Raises:
        InvalidRequestError: naming two of which only one can be given.
    """
    given = [name for name in _WHY if name in options]
    if len(given) > 1:
        raise InvalidRequestError(given[-1], f"it cannot be given together with {given[0]}", _WHY[given[-1]])
    for time in ("not_before", "deadline"):
        if "debounce" in options and time in options:
            raise InvalidRequestError(
                time, "it cannot be given together with debounce", "The task begins when its wait is over."
            )


def debounced(options: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """What a debounced task is stored with.

    Raises:
        InvalidRequestError: if it would wait for less than its wait at the longest.
    """
    given = options["debounce"]
    wait: timedelta = given["wait"]
    longest: timedelta = given.get("max_wait", _WAITS * wait)
    if longest < wait:
        raise InvalidRequestError("debounce.max_wait", "it is shorter than wait", "Give a max_wait of wait or more.")
    millisecond = timedelta(milliseconds=1)
    return {"debounce": Debounce(given["key"], wait // millisecond, longest // millisecond), "not_before": now + wait}


def throttled(task: Task, throttle: Mapping[str, Any]) -> Task:
    """The task under the id of its key and period."""
    return under_id(
        task, throttled_id(task.user_id, task.task_type, throttle["key"], throttle["every"], task.created_at)
    )
