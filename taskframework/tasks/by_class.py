"""Parameters of a task that is given by its class, where no registry of the program is at hand."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, cast

from taskframework.model.values import Json
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.tasks.kinds import AnyTaskType, kind_of
from taskframework.tasks.registry import Registration, TaskRegistry
from taskframework.tasks.values import storable_parameters


def accept_by_class(task_type: AnyTaskType, parameters: Any) -> Json:
    """Parameters as they are stored: as the class accepts them; by its name alone, any JSON.

    Raises:
        InvalidParametersError: if the class does not accept them.
        ValueNotStorableError: if a store could not keep them.
    """
    registration = _registration_of(cast(Hashable, kind_of(task_type)))
    return storable_parameters(parameters)[0] if registration is None else registration.accept(parameters)[0]


@cache
def _registration_of(kind: Hashable) -> Registration | None:
    try:
        return None if kind is None else TaskRegistry().register(cast("type[BackgroundTaskExecutable[Any, Any]]", kind))
    except Exception:  # a class that its program registers in another way, such as one with arguments
        return None
