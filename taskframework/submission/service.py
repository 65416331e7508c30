"""Submission: check the request, store the task, raise `TaskSubmittedEvent`. Accepted means stored."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from taskframework import failpoint
from taskframework.bus import EventBus
from taskframework.errors import InvalidRequestError, StoreError, SubmissionError
from taskframework.model.events import TaskSubmittedEvent
from taskframework.model.options import StreamPlace, Unique
from taskframework.model.task import FAMILY_VERSION, Task
from taskframework.model.values import fingerprint
from taskframework.stores.replies import Inserted
from taskframework.submission.acceptance import accept_options
from taskframework.submission.debounce import DebouncedInserts
from taskframework.submission.keys import NAMING_OPTIONS, check_naming_options, debounce_fields, with_throttle_id
from taskframework.submission.new_tasks import NewTasks
from taskframework.submission.requests import SubmitRequest, refuse_other_items, type_names_of
from taskframework.submission.types import Submittable
from taskframework.submission.versions import VersionedInserts
from taskframework.tasks.kinds import type_name

#: How many requests of `submit_many` are stored together; between two such writes the event loop can do other work.
_STORE_BATCH_SIZE = 1_000
#: Of how many keys versions are stored side by side: about as many calls as one write of the store takes together.
_MAX_KEYS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Submission:
    """An accepted request: its task, and whether this request made it or an earlier one with the same key did."""

    task: Task
    is_new: bool


class TaskSubmissionService:
    """Accepts and stores single tasks; nothing else submits them."""

    def __init__(
        self, bus: EventBus, new_tasks: NewTasks, versions: VersionedInserts, debounced: DebouncedInserts
    ) -> None:
        """Prepare to accept tasks.

        Args:
            bus: gets `TaskSubmittedEvent` after the task is stored.
            new_tasks: finds task types, and makes the fields of new tasks.
            versions: stores tasks that are versions of a key.
            debounced: stores tasks whose parameters later submissions replace.
        """
        self._versions = versions
        self._debounced = debounced
        self._bus = bus
        self._new_tasks = new_tasks

    async def submit(self, request: SubmitRequest) -> Submission:
        """Store a task.

        Returns:
            The task, after it is stored durably. Dispatch continues in the background.

        Raises:
            SubmissionError: if the request is wrong; nothing is stored.
            StoreUnavailableError: if the task could not be stored; submit again, with an idempotency key to be safe.
        """
        task = self._new_task(request, await self._new_tasks.find(request.task_type))
        await failpoint.reached("submit.before_insert")
        [stored] = await self._way_of(task)([task])
        return await self._accept(stored)

    async def submit_many(self, requests: Sequence[SubmitRequest]) -> list[Submission | Exception]:
        """Store many tasks together; each request has its own outcome, in the order given.

        If the store fails, its error is the outcome of the requests that were being stored.

        Raises:
            TypeError: if an item is no SubmitRequest; nothing is stored.
        """
        refuse_other_items(requests)
        outcomes: list[Submission | Exception] = []
        for at in range(0, len(requests), _STORE_BATCH_SIZE):
            outcomes += await self._submit_batch(requests[at : at + _STORE_BATCH_SIZE])
        return outcomes

    def check(self, request: SubmitRequest) -> None:
        """Check a request without a store, for types that are registered here.

        Raises:
            SubmissionError: if `submit` would refuse the request.
        """
        self._new_task(request, self._new_tasks.types.registered(type_name(request.task_type)))

    async def _submit_batch(self, batch: Sequence[SubmitRequest]) -> list[Submission | Exception]:
        try:
            kinds = await self._new_tasks.types.find(type_names_of(batch))
        except StoreError as error:
            return [error] * len(batch)
        tasks = [self._try_to_make(request, kinds) for request in batch]
        await failpoint.reached("submit.before_insert")
        stored = iter(await self._insert([task for task in tasks if isinstance(task, Task)]))
        return [await self._try_to_accept(next(stored)) if isinstance(task, Task) else task for task in tasks]

    async def _insert(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        """Store tasks in the order of the list, because the tasks of a stream must keep their order.

        An error of the store is the reply to one part of the list only: tasks of the parts before are stored.
        """
        stored: list[Inserted | Exception] = []
        for insert, group in groupby(tasks, self._way_of):
            part = list(group)
            try:
                stored += await insert(part)
            except StoreError as error:
                stored += [error] * len(part)
        return stored

    def _way_of(self, task: Task) -> Callable[[Sequence[Task]], Awaitable[Sequence[Inserted | Exception]]]:
        """Return what stores this task, together with others of its way."""
        return self._new_tasks.inserts.insert if _key_of(task) is None else self._insert_by_key

    async def _insert_by_key(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        """Store versions of keys and debounced tasks: those of one key one after the other, and keys side by side. If
        some belong to streams, all are stored one after the other.
        """
        is_ordered = any(task.stream is not None for task in tasks)
        places = defaultdict[object, list[int]](list)
        for place, task in enumerate(tasks):
            places[None if is_ordered else _key_of(task)].append(place)
        stored: dict[int, Inserted | Exception] = {}
        slots = asyncio.Semaphore(_MAX_KEYS_AT_ONCE)

        async def insert(of_one_key: Sequence[int]) -> None:
            async with slots:
                for place in of_one_key:
                    stored[place] = await self._insert_alone(tasks[place])

        await asyncio.gather(*map(insert, places.values()))
        return [stored[place] for place in range(len(tasks))]

    async def _insert_alone(self, task: Task) -> Inserted | Exception:
        try:
            if task.debounce is not None:
                return await self._debounced.insert(task, task.debounce)
            assert task.unique is not None, "it shares a key"
            return await self._versions.insert(task, task.unique)
        except Exception as error:
            return error

    def _try_to_make(
        self, request: SubmitRequest, kinds: Mapping[str, Submittable | SubmissionError]
    ) -> Task | Exception:
        try:
            return self._new_task(request, kinds[type_name(request.task_type)])
        except Exception as error:
            return error

    async def _try_to_accept(self, stored: Inserted | Exception) -> Submission | Exception:
        try:
            return await self._accept(stored)
        except Exception as error:
            return error

    async def _accept(self, stored: Inserted | Exception) -> Submission:
        """Publish the event of a task that is new."""
        if isinstance(stored, Exception):
            raise stored
        await failpoint.reached("submit.after_insert")
        if stored.is_new:
            await self._bus.publish(TaskSubmittedEvent(stored.task))
        return Submission(stored.task, stored.is_new)

    def _new_task(self, request: SubmitRequest, kind: Submittable | SubmissionError) -> Task:
        if isinstance(kind, SubmissionError):
            raise kind
        parameters, canonical = kind.accept(request.parameters)
        options = accept_options(request.options)
        if not NAMING_OPTIONS.isdisjoint(options):
            check_naming_options(options)
        if "unique" in options:
            options |= _version_fields(options)
        if "debounce" in options:
            options |= debounce_fields(options, self._new_tasks.store.now())
        if "stream" in options:
            options |= _stream_fields(options)
        throttle = options.pop("throttle", None)
        fields = self._new_tasks.fields(kind, request.user_id, options, throttle)
        task = Task.new(fields, parameters=parameters, parameters_hash=fingerprint(kind.task_type, canonical))
        return task if throttle is None else with_throttle_id(task, throttle)


def _key_of(task: Task) -> object | None:
    """What two tasks have in common if they may have the same key; None for a task without a key."""
    if task.unique is None and task.debounce is None:
        return None
    return task.user_id, task.unique and task.unique.key, task.debounce and task.debounce.key


def _version_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a version of a key is stored with."""
    unique = options["unique"]
    is_stopping = unique.get("on_running") == "cancel"
    version = Unique(unique["key"], unique["version"], stops_older=is_stopping)
    return {"unique": version, "schema_version": FAMILY_VERSION}


def _stream_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a task of a stream is stored with; it gets its position when it is stored.

    Raises:
        InvalidRequestError: if options contradict each other.
    """
    if "debounce" in options:
        raise InvalidRequestError(
            "stream", "it cannot be combined with debounce", "Give the tasks of a stream a version instead."
        )
    stream = options["stream"]
    mode, halts = stream.get("mode", "serial"), stream.get("on_failure") == "halt"
    if halts and mode != "serial":
        raise InvalidRequestError(
            "stream", "on_failure halt works only with the mode serial", "Remove on_failure, or use the mode serial."
        )
    deadline = stream.get("deadline", options.get("deadline"))
    if deadline != options.get("deadline", deadline):
        raise InvalidRequestError("stream", "its deadline differs from that of the task", "Give only one of them.")
    fields = {"stream": StreamPlace(stream["key"], mode, halts=halts), "schema_version": FAMILY_VERSION}
    return fields if deadline is None else {**fields, "deadline": deadline}
