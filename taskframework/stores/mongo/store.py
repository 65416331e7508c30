"""The store port on MongoDB 6 or newer, as a replica set."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from collections.abc import Collection as Several
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from taskframework.errors import StoreClosedError, StoreError, StoreUnavailableError
from taskframework.grouping import Grouping
from taskframework.model.drivers import DISPATCH, Driver
from taskframework.model.marks import Mark, RenewLease
from taskframework.model.query import DeadMessage, Page, RoundOfSubtasks, TaskFilter
from taskframework.model.scope import Scope
from taskframework.model.status import LANES, Priority, TaskStatus, lane_of
from taskframework.model.task import SHAPE, UNREADABLE, Task
from taskframework.model.task_fields import CancelRequest
from taskframework.model.transitions import Fence, Transition
from taskframework.stores.mongo import deployment, lists, queries
from taskframework.stores.mongo.client import Connection, MongoDriver, TlsFiles, connect, time_limit
from taskframework.stores.mongo.codec import encode_document
from taskframework.stores.mongo.collection import BY_ID, Collection
from taskframework.stores.mongo.dead_letters import DeadLetterCalls
from taskframework.stores.mongo.documents import (
    Document,
    dead_message_document,
    dead_message_of,
    held_of,
    read_documents,
    task_of,
    with_utc,
)
from taskframework.stores.mongo.earlier_release import EarlierRelease
from taskframework.stores.mongo.expressions import has_passed, in_scope
from taskframework.stores.mongo.faults import DuplicateDocumentError
from taskframework.stores.mongo.indexes import DEAD_MESSAGES, LIST_BY_STATUS, SUBTASKS, WAITING_FOR_LIMIT
from taskframework.stores.mongo.inserts import Inserter, insert_tasks
from taskframework.stores.mongo.records import RECORD_FAILPOINT, RecordCalls
from taskframework.stores.mongo.retention import Purge
from taskframework.stores.mongo.search import search_tasks
from taskframework.stores.mongo.server_clock import ServerClock
from taskframework.stores.mongo.stream_reads import StreamCalls
from taskframework.stores.mongo.traffic import TrafficCalls
from taskframework.stores.mongo.transitions import build_write
from taskframework.stores.mongo.writer import TaskWriter
from taskframework.stores.reading import unreadable
from taskframework.stores.replies import DueTask, Inserted, StoreReport

Entry = TypeVar("Entry", Task, DeadMessage)

_PING_TIMEOUT = timedelta(seconds=2)
#: Heartbeats have connections of their own, so that a slow list or a flood of writes does not delay them. They always
#: use pymongo: the calls of all motor clients share a few threads.
_HEARTBEAT_CONNECTIONS = 4
#: How many running attempts are remembered: more than a process usually runs at once, including some whose lease it
#: lost. The ends of further attempts are read back.
_MAX_REMEMBERED_ATTEMPTS = 1_000
_DISPATCH_FIELDS = (*queries.DUE_FIELDS, DISPATCH.field)


@dataclass(frozen=True, slots=True)
class _Opened:
    """The parts of an open store."""

    connection: Connection
    heartbeats: Connection
    earlier: EarlierRelease
    indexes: deployment.IndexRepair
    tasks: Inserter
    records: Inserter
    writer: TaskWriter
    purge: Purge
    #: Writes messages, as documents, to the collection of dead messages.
    keep: Grouping[Any, None]


class MongoStore(RecordCalls, StreamCalls, DeadLetterCalls, TrafficCalls):
    """Tasks in a MongoDB database; implements `TaskStore`."""

    def __init__(
        self,
        url: str,
        *,
        driver: MongoDriver = "motor",
        timeout: timedelta = timedelta(seconds=10),
        pool_size: int = 100,
        remembered: int = _MAX_REMEMBERED_ATTEMPTS,
        tls: TlsFiles = TlsFiles(),  # noqa: B008 - frozen
    ) -> None:
        """Prepare a store; nothing is sent before `open` or `inspect`.

        Args:
            url: `mongodb://…/database`; an option in it cannot weaken the promises.
            driver: which of the two drivers.
            timeout: longest wait for one operation.
            pool_size: most connections.
            remembered: how many running attempts are remembered, so that their ends are not read back; 0 for none.
            tls: files for TLS.
        """
        super().__init__()
        self._url = url
        self._driver: MongoDriver = driver
        self._timeout = timeout
        self._pool_size = pool_size
        self._remembered = remembered
        self._tls = tls
        self._opened: _Opened | None = None
        self._clock = ServerClock(self._server_time)

    async def open(self) -> None:
        connection = self._connect(self._pool_size)
        heartbeats = connect(self._url, "pymongo", self._timeout, _HEARTBEAT_CONNECTIONS, self._tls)
        limits: Any = {"timeout": self._timeout.total_seconds(), "on_timeout": self._timeout_error}
        earlier = EarlierRelease(connection, self, self._clock.now)
        self._opened = _Opened(
            connection,
            heartbeats,
            earlier,
            deployment.IndexRepair(connection),
            Inserter(
                connection.tasks, "submit.reply", self._retry_time, find_duplicates=earlier.find_by_keys, **limits
            ),
            Inserter(connection.records, RECORD_FAILPOINT, self._retry_time, **limits),
            TaskWriter(connection.tasks, self._retry_time, self._remembered, **limits),
            Purge(connection.tasks, connection.records),
            Grouping(partial(_insert_messages, connection.dead_messages), **limits),
        )
        try:
            await deployment.prepare(connection)
            await self._clock.start()
            await earlier.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._opened is None:
            return
        opened, self._opened = self._opened, None
        await opened.earlier.stop()
        await self._clock.stop()
        await opened.indexes.stop()
        await opened.tasks.drain()
        await opened.records.drain()
        await opened.writer.drain()
        await opened.keep.drain()
        await opened.connection.close()
        await opened.heartbeats.close()

    async def ping(self) -> None:
        with time_limit(min(_PING_TIMEOUT, self._timeout)):
            if not (await self._heartbeats.hello())["isWritablePrimary"]:
                raise StoreUnavailableError("MongoDB has no primary at present.")

    async def inspect(self) -> StoreReport:
        connection = self._connect(1)
        try:
            return await deployment.inspect(connection, self._driver)
        finally:
            await connection.close()

    def now(self) -> datetime:
        return self._clock.now()

    async def insert(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        return await insert_tasks(self._parts.tasks, tasks)

    async def apply(self, transition: Transition) -> Task | None:
        return await self._parts.writer.apply(transition)

    async def mark(self, *marks: Mark) -> None:
        await self._parts.writer.mark(marks)

    async def renew(self, fences: Sequence[Fence], lease: timedelta) -> dict[Fence, CancelRequest | None]:
        if not fences:
            return {}
        # If two fences belong to one task, only the newer claim can still be valid.
        newest = {fence.task_id: fence for fence in sorted(fences, key=lambda fence: fence.fencing_token)}
        renewal = build_write([RenewLease(fence, lease) for fence in newest.values()])
        tasks = self._heartbeats.tasks
        await tasks.update_by_ids(renewal.guard, renewal.stages, ("renew.reply",))
        found = await tasks.find(renewal.guard, fields=("fencing_token", "lease", "cancel"), index=BY_ID)
        return dict(read_documents(found, held_of))

    async def cancel_requests(self, fences: Sequence[Fence]) -> dict[Fence, CancelRequest]:
        if not fences:
            return {}
        fields = ("fencing_token", "lease.claim_id", "cancel")
        found = await self._heartbeats.tasks.find(queries.with_cancel_request(fences), fields=fields, index=BY_ID)
        asked = dict(read_documents(found, held_of))
        return {fence: cancel for fence in fences if (cancel := asked.get(fence)) is not None}

    async def claims_of(self, task_ids: Several[str]) -> dict[str, str]:
        claimed = {"status": TaskStatus.RUNNING, "lease.claim_id": {"$type": "string"}}
        running = {**queries.with_ids(task_ids), **claimed}
        found = await self._tasks.find(running, fields=("lease.claim_id",), index=BY_ID)
        return {document["_id"]: document["lease"]["claim_id"] for document in found}

    async def get(self, task_id: str, scope: Scope) -> Task | None:
        document = await self._tasks.find_one(queries.in_scope_by_id(task_id, scope))
        return None if document is None else task_of(document)

    async def get_many(self, task_ids: Several[str], scope: Scope) -> dict[str, Task]:
        found = await self._tasks.find({**queries.with_ids(task_ids), **in_scope(scope)}, index=BY_ID)
        return {task.task_id: task for task in map(task_of, found)}

    async def list_tasks(
        self, scope: Scope, filter: TaskFilter, *, limit: int, cursor: str | None = None
    ) -> Page[Task]:
        wanted, index = lists.listed(scope, filter, cursor), lists.list_index(scope, filter)
        options: dict[str, Any] = {"index": index, "at_one_moment": filter.is_in_slot_order}
        found = await self._tasks.find(wanted, sort=lists.list_order(filter), limit=limit + 1, **options)
        return _page(found, limit, task_of, lambda document: lists.cursor_after(document, filter))

    async def search_tasks(
        self, scope: Scope, filter: TaskFilter, *, limit: int, cursor: str | None = None
    ) -> Page[Task]:
        return await search_tasks(self._tasks, scope, filter, limit, cursor)

    async def count_subtasks(self, round: RoundOfSubtasks) -> dict[TaskStatus, int]:
        options: dict[str, Any] = {"index": SUBTASKS, "at_one_moment": True}
        counted = await self._tasks.aggregate(queries.few_counted_subtasks(round), **options)
        if sum(entry["count"] for entry in counted) == queries.MAX_GROUPED_SUBTASKS:
            counted = await self._tasks.aggregate(queries.counted_subtasks(round), **options)
        return {TaskStatus(entry["_id"]): entry["count"] for entry in counted}

    async def list_subtasks(
        self,
        round: RoundOfSubtasks,
        *,
        limit: int,
        after_slot: int = -1,
        statuses: Several[TaskStatus] | None = None,
    ) -> Sequence[Task]:
        wanted = queries.listed_subtasks(round, after_slot, statuses)
        # The index has each status by itself, and the server reads these lists one beside the other. At different
        # moments it would pass over a sub-task that goes from one status to another meanwhile.
        options: dict[str, Any] = {"index": SUBTASKS, "at_one_moment": True}
        found = await self._tasks.find(wanted, sort={"parent.slot": 1}, limit=limit, **options)
        return read_documents(found, task_of)

    async def due(self, driver: Driver, limit: int, grace: timedelta = timedelta(0)) -> Sequence[DueTask]:
        return await self._find_due_tasks(driver, queries.due(driver, grace), limit)

    async def upcoming(self, driver: Driver, limit: int) -> Sequence[DueTask]:
        return await self._find_due_tasks(driver, queries.upcoming(driver), limit)

    async def put_off(self, task_type: str, since: datetime, until: datetime, limit: int) -> Sequence[DueTask]:
        return await self._find_due_tasks(DISPATCH, queries.put_off(task_type, since, until), limit)

    async def waiting_for(self, limit: str, most: int) -> Sequence[DueTask]:
        # At once, because a slot is idle until its next task is known.
        found = await asyncio.gather(
            *(
                self._tasks.find(
                    queries.waiting_for(limit, lane),
                    sort={"not_before": 1},
                    limit=most,
                    fields=_DISPATCH_FIELDS,
                    index=WAITING_FOR_LIMIT,
                )
                for lane in LANES
            )
        )
        return read_documents(list(itertools.chain(*found))[:most], partial(_due_of, DISPATCH))

    async def _find_due_tasks(self, driver: Driver, filter: Document, limit: int) -> Sequence[DueTask]:
        fields = (*queries.DUE_FIELDS, driver.field)
        order = {driver.field: 1}
        found = await self._tasks.find(filter, sort=order, limit=limit, fields=fields, index=driver.index)
        return read_documents(found, partial(_due_of, driver))

    async def undriven(self, limit: int) -> Sequence[str]:
        return [
            document["_id"] for document in await self._tasks.find(queries.undriven(), limit=limit, fields=("_id",))
        ]

    async def newest_running(self, task_type: str, lane: Priority) -> datetime | None:
        found = await self._tasks.find(
            queries.running_of(task_type, lane),
            sort=lists.newest_first("created_at"),
            limit=1,
            fields=("not_before",),
            index=LIST_BY_STATUS,
        )
        return with_utc(found[0]["not_before"]) if found else None

    async def purge(self, *, finished: timedelta | None, dead_letters: timedelta | None, limit: int) -> int:
        removed = await self._parts.purge(finished, dead_letters, limit)
        if dead_letters is not None and removed < limit:
            old = has_passed("at", by=dead_letters)
            oldest = await self._dead_messages.find(
                old, sort={"at": 1}, limit=limit - removed, fields=["_id"], index=DEAD_MESSAGES
            )
            removed += await self._dead_messages.delete_by_ids([message["_id"] for message in oldest], old)
        return removed

    async def finished_at(self, task_ids: Several[str]) -> dict[str, datetime | None]:
        found = await self._tasks.find(queries.with_ids(task_ids), fields=("finished_at",), index=BY_ID)
        ends = {task["_id"]: task["finished_at"] for task in found}
        return {task_id: None if end is None else with_utc(end) for task_id, end in ends.items()}

    async def keep_dead_message(self, message: DeadMessage) -> None:
        await self._parts.keep(encode_document(dead_message_document(message), "message"))

    async def list_dead_messages(self, *, limit: int, cursor: str | None) -> Page[DeadMessage]:
        order = lists.newest_first("at")
        found = await self._dead_messages.find(
            lists.after(cursor, "at"), sort=order, limit=limit + 1, index=DEAD_MESSAGES
        )
        return _page(found, limit, dead_message_of, lambda document: lists.cursor_by_time(document, "at"))

    @property
    def _retry_time(self) -> timedelta:
        return self._timeout * 0.9  # ends before the callers' own time limit, so that callers get the reason

    def _connect(self, pool_size: int) -> Connection:
        return connect(self._url, self._driver, self._timeout, pool_size, self._tls)

    def _timeout_error(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"MongoDB did not answer within {self._timeout.total_seconds():g} s.")

    async def _server_time(self) -> datetime:
        return with_utc((await self._heartbeats.hello())["localTime"])

    @property
    def _parts(self) -> _Opened:
        if self._opened is None:
            raise StoreClosedError
        return self._opened

    @property
    def _tasks(self) -> Collection:
        return self._parts.connection.tasks

    @property
    def _dead_messages(self) -> Collection:
        return self._parts.connection.dead_messages

    @property
    def _records(self) -> Collection:
        return self._parts.connection.records

    @property
    def _record_inserter(self) -> Inserter:
        return self._parts.records

    @property
    def _heartbeats(self) -> Connection:
        return self._parts.heartbeats


async def _insert_messages(messages: Collection, documents: Sequence[Any]) -> Sequence[StoreError | None]:
    refused = await messages.insert_each(documents, ("keep.reply",))
    replies = [refused.get(place) for place in range(len(documents))]
    return [None if isinstance(reply, DuplicateDocumentError) else reply for reply in replies]


def _page(
    found: Sequence[Document], limit: int, read: Callable[[Document], Entry], cursor: Callable[[Document], str | None]
) -> Page[Entry]:
    """A page of a list. `found` has one entry more than the limit if another page follows."""
    end = cursor(found[limit - 1]) if len(found) > limit else None
    left_out: list[str] = []
    return Page(tuple(read_documents(found[:limit], read, left_out)), end, tuple(left_out))


def _due_of(driver: Driver, document: Document) -> DueTask:
    try:
        if wrong := SHAPE.wrong_in(document):
            raise TypeError(f"a wrong type in {wrong}")
        due: Any = document
        for name in driver.field.split("."):
            due = due[name]
        return DueTask(
            document["_id"],
            document["task_type"],
            lane_of(document["priority"]),
            TaskStatus(document["status"]),
            document["dispatch_epoch"],
            document["dispatches"],
            document["fencing_token"],
            document["crashes"],
            with_utc(document["not_before"]),
            with_utc(due),
        )
    except UNREADABLE as error:
        raise unreadable(document, str(document["_id"]), error) from error
