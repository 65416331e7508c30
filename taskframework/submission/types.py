"""The task types that can be submitted: registered in this process, or declared in the store by a worker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from taskframework.errors import StoreError, UnknownTaskTypeError
from taskframework.model.options import KeptFor, StartLimit
from taskframework.model.records import Record
from taskframework.model.values import Json
from taskframework.model.workers import PRESENCE
from taskframework.names import NAME
from taskframework.stores.base import Records, TaskStore
from taskframework.stores.reading import read_all_contents
from taskframework.tasks.declarations import DECLARATION, TaskDeclaration
from taskframework.tasks.registry import Registration, TaskRegistry
from taskframework.urls import redacted, scheme_of, sqlite_file

logger = logging.getLogger(__name__)

#: A declaration of another worker is not replaced before it is this old: a worker declares its types a moment before
#: its presence can be seen.
_LEFT_ALONE_FOR = timedelta(minutes=1)


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


class NamingStore:
    """Adds to the error of an unknown task type in which store the type was searched: it may be the wrong store.

    Use this only for people who may know the address of the store. Callers over HTTP may not know it.
    """

    def __init__(self, url: str) -> None:
        """Take the address of the store; its secrets are left out."""
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, UnknownTaskTypeError):
            is_file = scheme_of(self._url) == "sqlite"
            store = sqlite_file(self._url).absolute() if is_file else redacted(self._url)
            error.hint = f"{error.hint} This store is {store}."


class TaskTypes:
    """Finds task types, first among the types of this process, then among the types declared in the store."""

    def __init__(self, registry: TaskRegistry, store: TaskStore) -> None:
        self._registry = registry
        self._store = store
        #: Declarations of the types of this process, kept here because making a schema takes a millisecond.
        self._own_declarations: dict[str, TaskDeclaration] = {}
        #: Which worker declared them and when, once it did.
        self._declared: tuple[str, datetime] | None = None

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
        declared = await self._store.read_records([DECLARATION.id_of(name) for name in missing if NAME.fullmatch(name)])
        found |= {known.task_type: known for known in map(DECLARATION.content, declared.values())}
        if unknown := [name for name in missing if name not in found]:
            known = await self.names()
            found |= {name: UnknownTaskTypeError(name, known) for name in unknown}
        return found

    async def require(self, name: str) -> Submittable:
        """Return the type of this name.

        Raises:
            UnknownTaskTypeError: if the type is unknown.
            StoreUnavailableError: if the type is not registered here and the store does not answer.
        """
        found = (await self.find([name]))[name]
        if isinstance(found, UnknownTaskTypeError):
            raise found
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

    async def declare(self, worker_id: str) -> None:
        """Tell other processes which types this worker executes. Call this when its start cannot fail any more.

        If several processes start at the same moment, the declaration of any of them may stay.
        """
        self._declared = worker_id, self._store.now()
        declarations = self._declarations_to_write()
        stored = await self._store.read_records(declarations)
        for record_id, record in stored.items():
            _warn_of_other_parameters(declarations[record_id], record)
        await self._write(declarations, stored)

    async def keep_declared(self) -> None:
        """Declare types again whose declaration was lost, or was made by a worker that no longer runs.

        A restored backup may lack declarations. And a new release that was tried for a while leaves its declarations:
        submissions would be checked by them although no worker of that release runs.
        """
        if self._declared is None:
            return
        declarations = self._declarations_to_write()
        stored = await self._store.read_records(declarations)
        now = self._store.now()
        others = {
            id: present.declared_by
            for id, present in DECLARATION.contents(stored.values()).items()
            if _is_by_another(declarations[id], present, now - _LEFT_ALONE_FOR)
        }
        workers = await read_all_contents(self._store, PRESENCE) if others else []
        live = {worker.worker_id for worker in workers if not worker.is_lost(now)}
        left = {id for id, worker_id in others.items() if worker_id not in live}
        if wanted := {id: each for id, each in declarations.items() if id not in stored or id in left}:
            names = ", ".join(sorted(each.task_type for each in wanted.values()))
            logger.warning("declared again, because the declaration was lost or its worker is gone: %s", names)
            await self._write(wanted, stored)

    def _declarations_to_write(self) -> dict[str, TaskDeclaration]:
        assert self._declared is not None, "a worker has declared"
        by, at = self._declared
        return {
            DECLARATION.id_of(each.task_type): replace(each, declared_by=by, declared_at=at)
            for each in self._declarations()
        }

    async def _write(self, declarations: Mapping[str, TaskDeclaration], stored: Mapping[str, Record]) -> None:
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


def _is_by_another(own: TaskDeclaration, present: TaskDeclaration, latest: datetime) -> bool:
    """Return whether a known worker declared a type differently, at this time or before."""
    if present.declared_by is None or present.declared_at is None or present.declared_at > latest:
        return False
    return not own.is_same(present)


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
