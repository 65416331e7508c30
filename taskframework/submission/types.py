"""The task types that can be submitted: registered in this process, or declared in the store by a worker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

from taskframework.errors import StoreError, UnknownTaskTypeError
from taskframework.model.options import KeptFor, StartLimit
from taskframework.model.records import Record
from taskframework.model.values import Json
from taskframework.stores.base import Records, TaskStore
from taskframework.stores.reading import read_all_contents
from taskframework.tasks.declarations import DECLARATION, TaskDeclaration
from taskframework.tasks.registry import TASK_TYPE, Registration, TaskRegistry
from taskframework.urls import redacted, scheme_of, sqlite_file

logger = logging.getLogger(__name__)


class Submittable(Protocol):
    """The part of a task type that a submission needs: a `Registration`, or a `TaskDeclaration`."""

    @property
    def task_type(self) -> str: ...

    @property
    def priority(self) -> str: ...

    @property
    def max_attempts(self) -> int | None: ...

    @property
    def max_chunk_size(self) -> int: ...

    @property
    def finishes_batches(self) -> bool: ...

    @property
    def bucket(self) -> str | None: ...

    @property
    def start_limit(self) -> StartLimit | None: ...

    @property
    def retention(self) -> KeptFor | None: ...

    def accept(self, value: Any) -> tuple[Json, bytes]: ...


@contextmanager
def naming_store(url: str) -> Iterator[None]:
    """Add to the error of an unknown task type in which store the type was searched: it may be the wrong store.

    Use this only for people who may know the address of the store. Callers over HTTP may not know it.

    Args:
        url: the address of the store; its secrets are left out.
    """
    try:
        yield
    except UnknownTaskTypeError as error:
        store = sqlite_file(url).absolute() if scheme_of(url) == "sqlite" else redacted(url)
        error.hint = f"{error.hint} This store is {store}."
        raise


class TaskTypes:
    """Finds task types, first among the types of this process, then among the types declared in the store."""

    def __init__(self, registry: TaskRegistry, store: TaskStore) -> None:
        self._registry = registry
        self._store = store
        #: Declarations of the types of this process, kept here because making a schema takes a millisecond.
        self._own_declarations: dict[str, TaskDeclaration] = {}

    def registered(self, task_type: str) -> Registration:
        """Return a type that is registered in this process.

        Raises:
            UnknownTaskTypeError: if the type is not registered here.
        """
        return self._registry.require(task_type)

    async def find(self, names: Iterable[str]) -> Mapping[str, Submittable | UnknownTaskTypeError]:
        """Return for each of these names its type, or the error that the type is unknown."""
        found: dict[str, Submittable | UnknownTaskTypeError] = {}
        missing = []
        for name in names:
            if (registration := self._registry.get(name)) is not None:
                found[name] = registration
            else:
                missing.append(name)
        if not missing:
            return found
        declared = await self._store.read_records(
            [DECLARATION.id_of(name) for name in missing if TASK_TYPE.fullmatch(name)]
        )
        found |= {known.task_type: known for known in map(DECLARATION.content, declared.values())}
        if unknown := [name for name in missing if name not in found]:
            known = await self.names()
            found |= {name: UnknownTaskTypeError(name, known) for name in unknown}
        return found

    async def buckets(self, names: Iterable[str]) -> Mapping[str, str | None]:
        """Return, for each known type of these, the bucket that all its tasks share."""
        found = await self.find(names)
        return {name: kind.bucket for name, kind in found.items() if not isinstance(kind, UnknownTaskTypeError)}

    async def list_known(self) -> list[TaskDeclaration]:
        """Return every type that can be submitted, in the order of their names."""
        known = {declaration.task_type: declaration for declaration in await declared_types(self._store)}
        for own in self._declarations():
            stored = known.get(own.task_type)
            known[own.task_type] = own if stored is None else replace(own, declared_at=stored.declared_at)
        return [known[name] for name in sorted(known)]

    async def names(self) -> list[str]:
        """Return the names of all types that can be submitted."""
        return [known.task_type for known in await self.list_known()]

    async def declare(self) -> None:
        """Tell other processes which types this process executes.

        If several processes start at the same moment, the declaration of any of them may stay.
        """
        now = self._store.now()
        declarations = {
            DECLARATION.id_of(each.task_type): replace(each, declared_at=now) for each in self._declarations()
        }
        stored = await self._store.read_records(declarations)
        for record_id, record in stored.items():
            _warn_of_other_parameters(declarations[record_id], record)
        await self._store.write_records(
            [
                DECLARATION.changed(stored[record_id], each)
                if record_id in stored
                else DECLARATION.new(each.task_type, content=each)
                for record_id, each in declarations.items()
            ]
        )

    def _declarations(self) -> list[TaskDeclaration]:
        for registration in self._registry:
            if registration.task_type not in self._own_declarations:
                self._own_declarations[registration.task_type] = TaskDeclaration.of(registration)
        return list(self._own_declarations.values())


def _warn_of_other_parameters(own: TaskDeclaration, record: Record) -> None:
    """Warn if the type was declared with other parameters: two programs may use one name for different tasks."""
    with suppress(StoreError):  # a newer release declared it in a way that this one cannot read
        before = DECLARATION.content(record)
        if before.parameters_schema != own.parameters_schema:
            logger.warning(
                "the parameters of task type %s differ from those that a worker declared at %s. That is right after a "
                "change of the type; if two programs have a type of this name, rename one of them",
                own.task_type,
                before.declared_at,
            )


async def declared_types(records: Records) -> list[TaskDeclaration]:
    """Return the declarations of all task types."""
    return await read_all_contents(records, DECLARATION)
