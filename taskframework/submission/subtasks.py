"""Checks the sub-tasks that an attempt plans in the same way as a submission."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from taskframework.model.options import KeptFor, StartLimit
from taskframework.model.subtasks import SUBTASK_OPTIONS
from taskframework.model.task import record_to_document
from taskframework.model.values import Json
from taskframework.submission.acceptance import accept_options, accept_times, refuse_unknown
from taskframework.submission.new_tasks import defaults_of
from taskframework.submission.options import SubmissionOptions
from taskframework.submission.types import Submittable, TaskTypes
from taskframework.tasks.kinds import type_name


@dataclass(frozen=True, slots=True)
class SubtaskKind:
    """The task type and the options that sub-tasks planned together have in common."""

    #: The fields of the group of these sub-tasks in the plan, except the items.
    header: Mapping[str, Json]
    type: Submittable

    def accept(self, parameters: Any) -> tuple[Json, bytes]:
        """Accept parameters, as `Submittable.accept`."""
        return self.type.accept(parameters)


class SubtaskKinds:
    """Finds and checks the task types and options of sub-tasks."""

    def __init__(self, types: TaskTypes, now: Callable[[], datetime], max_attempts: int) -> None:
        """Prepare; `now` returns the store's time, `max_attempts` is for task types without this option."""
        self._types = types
        self._now = now
        self._max_attempts = max_attempts

    async def find(self, task_type: object, options: Mapping[str, Any]) -> SubtaskKind:
        """Return the kind of these sub-tasks.

        Raises:
            SubmissionError: if the type is unknown, or an option is wrong.
            TypeError: for an option that sub-tasks do not have.
            StoreUnavailableError: if the type is not registered here and the store does not answer.
        """
        given = accept_subtask_options(options, self._now())
        name = type_name(task_type)
        kind = await self._types.require(name)
        header = {**defaults_of(kind, self._max_attempts), **given}
        return SubtaskKind({"task_type": name, **{key: _json(value) for key, value in header.items()}}, kind)


def accept_subtask_options(options: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the options that are given, as `accept_options` does.

    Raises:
        InvalidRequestError: if an option is wrong.
        TypeError: for an option that sub-tasks do not have.
    """
    refuse_unknown("a sub-task", options, SUBTASK_OPTIONS)
    given = accept_options(cast(SubmissionOptions, options))
    accept_times(given, now)
    return given


def _json(value: Any) -> Json:
    match value:
        case datetime():
            return value.isoformat()
        case str():
            return str(value)  # a lane is a `Priority`, of which only the text is stored
        case StartLimit() | KeptFor():
            return record_to_document(value)
    return value
