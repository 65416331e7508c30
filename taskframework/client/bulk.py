"""Submits many tasks in as few requests as possible."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Required

from taskframework.client.answers import Page, RemoteTask, read
from taskframework.client.connection import ApiConnection
from taskframework.client.refusals import error_of, says_too_large
from taskframework.client.requests import JSON, Call, as_json, new_key
from taskframework.errors import (
    ApiError,
    ApiUnavailableError,
    InvalidRequestError,
    StoreUnavailableError,
    SubmissionError,
    TaskframeworkError,
)
from taskframework.submission.options import SubmissionOptions
from taskframework.tasks.kinds import AnyTaskType, type_name

#: How many tasks, or items of a batch, the interface accepts in one body.
MAX_ITEMS_PER_REQUEST = 1_000
#: The most bytes of a body of many tasks. The interface accepts `api.max_body`, by default 1 MiB; if that is smaller,
#: a body that it refuses is sent in parts.
MAX_BODY_BYTES = 1_000_000
_EXAMPLE = '{"task_type": "send-mail", "parameters": {...}}'


class NewTask(SubmissionOptions, total=False):
    """A task to be submitted with others."""

    task_type: Required[AnyTaskType]
    parameters: Any


async def submit_all(api: ApiConnection, tasks: Iterable[NewTask]) -> list[RemoteTask | TaskframeworkError]:
    """Submit the tasks, and return an outcome for each, in the same order.

    Raises:
        TypeError: if one of them is no dictionary; nothing is sent.
    """
    prepared_tasks = [_prepare(index, task) for index, task in enumerate(tasks)]
    outcomes: list[RemoteTask | TaskframeworkError] = []
    outage: TaskframeworkError | None = None
    groups = deque(_group_by_request(prepared_tasks))
    while groups:
        group = groups.popleft()
        try:
            if outage is None:
                outcomes += await _submit_group(api, group)
        except (ApiUnavailableError, StoreUnavailableError) as error:
            outage = error
        except ApiError as error:
            if says_too_large(error) and (half := len(group) // 2):  # `api.max_body` is smaller there
                groups.extendleft((group[half:], group[:half]))
            else:
                outcomes += [error] * len(group)
        if outage is not None:  # the patience is for all requests together, not for each of them
            outcomes += [outage] * len(group)
    remaining = iter(outcomes)
    return [next(remaining) if isinstance(task, _PreparedTask) else task for task in prepared_tasks]


def with_idempotency_key(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """A task as it is sent: with an idempotency key, unless another option makes a repetition safe.

    Raises:
        InvalidRequestError: if it names no task type.
    """
    if "task_type" not in task:
        raise InvalidRequestError("task_type", "is missing", f"Write {_EXAMPLE}.")
    is_known = any(task.get(name) is not None for name in ("idempotency_key", "unique", "debounce", "throttle"))
    named = {**task, "task_type": type_name(task["task_type"])}
    return named if is_known else {**named, "idempotency_key": new_key()}


def error_context_of(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """The facts about the submission of a task that its errors need."""
    unique = task.get("unique")
    names = dict(unique) if isinstance(unique, Mapping) else {"key": task.get("idempotency_key")}
    return {"task_type": task["task_type"], **names}


@dataclass(frozen=True, slots=True)
class _PreparedTask:
    """A task as it is sent, and the facts about it that its errors need."""

    content: bytes
    error_context: Mapping[str, Any]


def _prepare(index: int, task: object) -> _PreparedTask | TaskframeworkError:
    if not isinstance(task, Mapping):
        wrong = f"Item {index} of submit_many is a {type(task).__name__}, not a dictionary"
        raise TypeError(f"{wrong}; give a list of such: {_EXAMPLE}.")
    try:
        submission = with_idempotency_key(task)
        return _PreparedTask(as_json(submission), error_context_of(submission))
    except SubmissionError as error:
        return error


def _group_by_request(prepared_tasks: Iterable[_PreparedTask | TaskframeworkError]) -> Iterator[list[_PreparedTask]]:
    """Groups of tasks that fit into one request each; a task that is too large by itself is a group of its own."""
    group: list[_PreparedTask] = []
    size = 0
    for task in prepared_tasks:
        if not isinstance(task, _PreparedTask):
            continue
        if group and (len(group) == MAX_ITEMS_PER_REQUEST or size + len(task.content) > MAX_BODY_BYTES):
            yield group
            group, size = [], 0
        group.append(task)
        size += len(task.content) + 1
    if group:
        yield group


def _outcome_of(task: _PreparedTask, item: Mapping[str, Any]) -> RemoteTask | TaskframeworkError:
    return read(RemoteTask, item["task"]) if item["error"] is None else error_of(item["error"], task.error_context)


async def _submit_group(api: ApiConnection, group: list[_PreparedTask]) -> Sequence[RemoteTask | TaskframeworkError]:
    body = b'{"tasks":[' + b",".join(task.content for task in group) + b"]}"
    answer = read(Page, await api.ask(Call("POST", "/tasks/bulk", headers=JSON, body=body)))
    return [_outcome_of(task, item) for task, item in zip(group, answer.items, strict=True)]
