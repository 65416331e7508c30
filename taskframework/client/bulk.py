"""Submits many tasks in as few requests as possible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Required

from taskframework.client.answers import Page, RemoteTask, read
from taskframework.client.connection import JSON, ApiConnection, Call, as_json, new_key
from taskframework.client.refusals import error_of
from taskframework.errors import (
    ApiError,
    ApiUnavailableError,
    StoreUnavailableError,
    TaskframeworkError,
    ValueNotStorableError,
)
from taskframework.submission.options import SubmissionOptions
from taskframework.tasks.kinds import AnyTaskType, type_name

#: How many tasks, or items of a batch, the interface accepts in one body.
MOST_TOGETHER = 1_000
#: The most bytes of a body of many tasks; the interface accepts `api.max_body`, by default 1 MiB.
MOST_BYTES = 1_000_000


class NewTask(SubmissionOptions, total=False):
    """A task to be submitted with others."""

    task_type: Required[AnyTaskType]
    parameters: Any


async def submitted(api: ApiConnection, tasks: Iterable[NewTask]) -> list[RemoteTask | TaskframeworkError]:
    """Submit the tasks, and return an outcome for each, in the same order."""
    made = [_prepared(task) for task in tasks]
    outcomes: list[RemoteTask | TaskframeworkError] = []
    lost: TaskframeworkError | None = None
    for group in _groups(made):
        try:
            if lost is None:
                outcomes += await _outcomes(api, group)
        except (ApiUnavailableError, StoreUnavailableError) as error:
            lost = error
        if lost is not None:  # the patience is for all requests together, not for each of them
            outcomes += [lost] * len(group)
    told = iter(outcomes)
    return [next(told) if isinstance(one, _Prepared) else one for one in made]


def with_key(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """A task as it is sent: with an idempotency key, unless another option makes a repetition safe."""
    is_known = any(task.get(name) is not None for name in ("idempotency_key", "unique", "debounce", "throttle"))
    named = {**task, "task_type": type_name(task["task_type"])}
    return named if is_known else {**named, "idempotency_key": new_key()}


def subject_of(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """The facts about the submission of a task that its errors need."""
    unique = task.get("unique")
    names = {"key": task.get("idempotency_key")} if unique is None else dict(unique)
    return {"task_type": task["task_type"], **names}


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A task as it is sent, and the facts about it that its errors need."""

    content: bytes
    about: Mapping[str, Any]


def _prepared(task: NewTask) -> _Prepared | TaskframeworkError:
    whole = with_key(task)
    try:
        return _Prepared(as_json(whole), subject_of(whole))
    except ValueNotStorableError as error:
        return error


def _groups(made: Iterable[_Prepared | TaskframeworkError]) -> Iterator[list[_Prepared]]:
    """Groups of tasks that fit into one request each; a task that is too large by itself is a group of its own."""
    group: list[_Prepared] = []
    size = 0
    for one in made:
        if not isinstance(one, _Prepared):
            continue
        if group and (len(group) == MOST_TOGETHER or size + len(one.content) > MOST_BYTES):
            yield group
            group, size = [], 0
        group.append(one)
        size += len(one.content) + 1
    if group:
        yield group


def _outcome(one: _Prepared, told: Mapping[str, Any]) -> RemoteTask | TaskframeworkError:
    return read(RemoteTask, told["task"]) if told["error"] is None else error_of(told["error"], one.about)


async def _outcomes(api: ApiConnection, group: list[_Prepared]) -> Sequence[RemoteTask | TaskframeworkError]:
    body = b'{"tasks":[' + b",".join(one.content for one in group) + b"]}"
    try:
        answer = read(Page, await api.ask(Call("POST", "/tasks/bulk", headers=JSON, body=body)))
    except ApiError as error:
        if isinstance(error, ApiUnavailableError):
            raise
        return [error] * len(group)
    return [_outcome(one, told) for one, told in zip(group, answer.items, strict=True)]
