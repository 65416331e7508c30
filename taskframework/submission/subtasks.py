"""Sub-tasks that an attempt plans, checked as a submission is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from taskframework.errors import SubmissionError
from taskframework.model.options import KeptFor, StartLimit
from taskframework.model.subtasks import SUBTASK_OPTIONS
from taskframework.model.task import plain
from taskframework.model.values import Json
from taskframework.submission.new_tasks import defaults_of
from taskframework.submission.options import SubmissionOptions, accepted, accepted_times, refuse_unknown
from taskframework.submission.types import Submittable, TaskTypes
from taskframework.tasks.kinds import type_name


@dataclass(frozen=True, slots=True)
class SubtaskKind:
    """What sub-tasks that are planned together have in common: a task type and options."""

    #: The fields of their group in the plan, except the items.
    header: Mapping[str, Json]
    type: Submittable

    def accept(self, parameters: Any) -> tuple[Json, bytes]:
        """`Submittable.accept`."""
        return self.type.accept(parameters)


class SubtaskKinds:
    """Looks up what attempts want to plan."""

    def __init__(self, types: TaskTypes, now: Callable[[], datetime], max_attempts: int) -> None:
        """Prepare; `now` tells the store's time, `max_attempts` is for task types that do not say."""
        self._types = types
        self._now = now
        self._max_attempts = max_attempts

    async def find(self, task_type: object, options: Mapping[str, Any]) -> SubtaskKind:
        """The kind of these sub-tasks.

        Raises:
            SubmissionError: if the type is unknown, or an option wrong.
            TypeError: for an option that sub-tasks do not have.
            StoreUnavailableError: if the type is not registered here and the store cannot be asked.
        """
        refuse_unknown("a sub-task", options, SUBTASK_OPTIONS)
        name = type_name(task_type)
        kind = (await self._types.find([name]))[name]
        if isinstance(kind, SubmissionError):
            raise kind
        given = accepted(cast(SubmissionOptions, options))
        accepted_times(given, self._now())
        header = {**defaults_of(kind, self._max_attempts), **given}
        return SubtaskKind({"task_type": name, **{key: _json(value) for key, value in header.items()}}, kind)


def _json(value: Any) -> Json:
    match value:
        case datetime():
            return value.isoformat()
        case str():
            return str(value)  # a lane is more than its text
        case StartLimit() | KeptFor():
            return plain(value)
    return value
