"""The task types that can be submitted: registered in this process, or declared in the store by a worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from taskframework.errors import UnknownTaskTypeError
from taskframework.model.values import Json
from taskframework.stores.base import TaskStore
from taskframework.tasks.declared import TaskDeclaration
from taskframework.tasks.registry import TASK_TYPE, Registration, TaskRegistry


class Submittable(Protocol):
    """What a submission needs of a task type: a `Registration`, or a `TaskDeclaration`."""

    @property
    def task_type(self) -> str: ...

    @property
    def priority(self) -> str: ...

    @property
    def max_attempts(self) -> int | None: ...

    def accept(self, value: Any) -> tuple[Json, bytes]: ...


class TaskTypes:
    """Looks task types up; what is registered here counts more than what the store knows."""

    def __init__(self, registry: TaskRegistry, store: TaskStore) -> None:
        self._registry = registry
        self._store = store
        #: Made once, since a schema takes a millisecond.
        self._own: dict[str, TaskDeclaration] = {}

    def registered(self, task_type: str) -> Registration:
        """A type of this process.

        Raises:
            UnknownTaskTypeError: if it is none.
        """
        return self._registry.require(task_type)

    async def find(self, names: Iterable[str]) -> Mapping[str, Submittable | UnknownTaskTypeError]:
        """For each of these names its type, or what to tell whoever asked for it."""
        found: dict[str, Submittable | UnknownTaskTypeError] = {}
        missing = []
        for name in names:
            if (registration := self._registry.get(name)) is not None:
                found[name] = registration
            else:
                missing.append(name)
        if not missing:
            return found
        declared = await self._store.task_types([name for name in missing if TASK_TYPE.fullmatch(name)])
        found |= {declaration.task_type: declaration for declaration in declared}
        if unknown := [name for name in missing if name not in found]:
            known = [declaration.task_type for declaration in await self.known()]
            found |= {name: UnknownTaskTypeError(name, known) for name in unknown}
        return found

    async def known(self) -> list[TaskDeclaration]:
        """Every type that can be submitted, by name."""
        known = {declaration.task_type: declaration for declaration in await self._store.task_types()}
        for own in self._declarations():
            there = known.get(own.task_type)
            known[own.task_type] = own if there is None else replace(own, declared_at=there.declared_at)
        return [known[name] for name in sorted(known)]

    async def declare(self) -> None:
        """Tell other processes of the types that this one executes."""
        now = self._store.now()
        await self._store.declare_task_types([replace(own, declared_at=now) for own in self._declarations()])

    def _declarations(self) -> list[TaskDeclaration]:
        for registration in self._registry:
            if registration.task_type not in self._own:
                self._own[registration.task_type] = TaskDeclaration.of(registration)
        return list(self._own.values())
