"""Parameters of stored tasks: whether they still fit their type, and other parameters to replace them."""

from __future__ import annotations

from taskframework.errors import InvalidParametersError, SubmissionError, UnknownTaskTypeError
from taskframework.model.interventions import NewParameters
from taskframework.model.task import Task
from taskframework.model.values import MAX_PARAMETERS_BYTES, Json, check_storable, problem
from taskframework.model.wording import pluralize
from taskframework.submission.types import Submittable, TaskTypes


class Edits:
    """Checks parameters as a submission of the same type would."""

    def __init__(self, types: TaskTypes) -> None:
        self._types = types

    async def find_misfit(self, task: Task) -> SubmissionError | None:
        """Return why the parameters of a task no longer fit its type; None if they fit, or if the type is unknown."""
        try:
            await self.accept(task, task.parameters)
        except UnknownTaskTypeError:
            return None
        except SubmissionError as error:
            return error
        return None

    async def accept(self, task: Task, parameters: Json) -> NewParameters:
        """Accept other parameters for a task. For a chunk of a batch they are a list with as many items as it has.

        Raises:
            SubmissionError: if the parameters do not fit, or the type is unknown.
        """
        found = await self._types.require(task.task_type)
        if task.parent is not None and task.parent.is_chunk:
            return _accepted_items(found, task, parameters)
        return NewParameters(found.accept(parameters)[0])


def _accepted_items(kind: Submittable, task: Task, parameters: Json) -> NewParameters:
    if not isinstance(parameters, list) or len(parameters) != len(task.parameters):
        item_problem = problem(
            (), f"must be a list of {pluralize(len(task.parameters), 'item')}, like this part of the batch"
        )
        raise InvalidParametersError(task.task_type, [item_problem])
    items = [kind.accept(item)[0] for item in parameters]
    check_storable(items, "parameters", MAX_PARAMETERS_BYTES)
    return NewParameters(items)
