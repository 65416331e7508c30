"""The store port on MongoDB 6 or newer, as a replica set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar, cast

from taskframework.errors import StoreError, StoreUnavailableError
from taskframework.grouping import Grouping
from taskframework.model.marks import Mark, ReserveDispatch
from taskframework.model.query import Cursor, DeadMessage, Page, TaskFilter
from taskframework.model.status import CLAIMABLE, DEAD, FINAL, Priority, TaskStatus, lane_of
from taskframework.model.task import CancelRequest, Task
from taskframework.model.transitions import Fence, Transition
from taskframework.stores.base import DueTask, ExpiredLease, Inserted, Renewal, StoreReport
from taskframework.stores.mongo import deployment, queries
from taskframework.stores.mongo.client import (
    BY_ID,
    Collection,
    Connection,
    Driver,
    connect,
    encoded,
    time_limit,
)
from taskframework.stores.mongo.documents import (
    Document,
    dead_message_document,
    dead_message_of,
    moment,
    readable,
    task_of,
)
from taskframework.stores.mongo.expressions import later, passed
from taskframework.stores.mongo.faults import DuplicateDocumentError
from taskframework.stores.mongo.inserts import TaskInserter
from taskframework.stores.mongo.server_clock import ServerClock
from taskframework.stores.mongo.transitions import write_of
from taskframework.stores.mongo.writer import TaskWriter
from taskframework.stores.replies import reply_point
from taskframework.tasks.declared import TaskDeclaration

Entry = TypeVar("Entry", Task, DeadMessage)

_PING = timedelta(seconds=2)
#: For the one write that goes over all waiting tasks.
_ALL_TASKS = timedelta(hours=1)
#: Heartbeats have connections of their own: no slow list and no crowd of writes makes them late. And they are always
#: pymongo's: all calls over motor wait for the same few threads, whichever client they belong to.
_HEARTBEAT_CONNECTIONS = 4
_RESERVED_TOGETHER = 500


@dataclass(frozen=True, slots=True)
class _Opened:
    """What an open store works with."""

    connection: Connection
    heartbeats: Connection
    inserter: TaskInserter
    writer: TaskWriter
    #: Writes messages, as documents, to the dead ones.
    keep: Grouping[Any, None]


class MongoStore:
    """Tasks in a MongoDB database; implements `TaskStore`."""

    def __init__(
        self,
        url: str,
        *,
        driver: Driver = "motor",
        timeout: timedelta = timedelta(seconds=10),
        pool_size: int = 100,
    ) -> None:
        """Prepare a store; nothing is sent before `open` or `inspect`.

        Args:
            url: `mongodb://…/database`; an option in it cannot weaken the promises.
            driver: which of the two drivers.
            timeout: longest wait for one operation.
            pool_size: most connections.
        """
        self._url = url
        self._driver: Driver = driver
        self._timeout = timeout
        self._pool_size = pool_size
        self._opened: _Opened | None = None
        self._clock = ServerClock(self._server_time)

    async def open(self) -> None:
        connection = self._connect(self._pool_size)
        heartbeats = connect(self._url, "pymongo", self._timeout, _HEARTBEAT_CONNECTIONS)
        limits: Any = {"timeout": self._timeout.total_seconds(), "on_timeout": self._too_late}
        patience = self._timeout * 0.9  # so that callers hear the reason before their own time is over
        self._opened = _Opened(
            connection,
            heartbeats,
            TaskInserter(connection.tasks, patience, **limits),
            TaskWriter(connection.tasks, patience, **limits),
            Grouping(partial(_keep_all, connection.dead_messages), **limits),
        )
        try:
            await deployment.prepare(connection)
            await self._clock.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._opened is None:
            return
        opened, self._opened = self._opened, None
        await self._clock.stop()
        await opened.inserter.drain()
        await opened.writer.drain()
        await opened.keep.drain()
        await opened.connection.close()
        await opened.heartbeats.close()

    async def ping(self) -> None:
        with time_limit(min(_PING, self._timeout)):
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

    async def insert(self, task: Task) -> Inserted:
        return await self._parts.inserter.insert(task)

    async def insert_many(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        return await self._parts.inserter.insert_many(tasks)

    async def apply(self, transition: Transition) -> Task | None:
        return await self._parts.writer.apply(transition)

    async def mark(self, *marks: Mark) -> None:
        await self._parts.writer.mark(marks)

    async def renew(self, worker_id: str, fences: Sequence[Fence], lease: timedelta) -> dict[str, Renewal]:
        if not fences:
            return {}
        tasks = self._heartbeats.tasks
        renewal = [{"$set": {"lease.expires_at": later(lease)}}]
        await tasks.update_these(queries.held(worker_id, fences), renewal, ("renew.reply",))
        fields = ("fencing_token", "lease", "cancel")
        found = await tasks.find(queries.held(worker_id, fences), fields=fields, index=BY_ID)
        held = {_fence_of(document): document for document in found}
        renewed = [held.get(fence) for fence in fences]
        return {document["_id"]: Renewal(_cancel_of(document)) for document in renewed if document is not None}

    async def cancel_requests(self, fences: Sequence[Fence]) -> dict[str, CancelRequest]:
        if not fences:
            return {}
        fields = ("fencing_token", "lease.claim_id", "cancel")
        found = await self._heartbeats.tasks.find(queries.asked_to_stop(fences), fields=fields, index=BY_ID)
        asked = {_fence_of(document): cast(CancelRequest, _cancel_of(document)) for document in found}
        return {fence.task_id: asked[fence] for fence in fences if fence in asked}

    async def get(self, task_id: str, *, owner: str | None = None) -> Task | None:
        document = await self._tasks.find_one(queries.one(task_id, owner))
        return None if document is None else task_of(document)

    async def list_tasks(self, filter: TaskFilter, *, limit: int, cursor: str | None = None) -> Page[Task]:
        wanted = queries.listed(filter, _cursor(cursor))
        return await _page(self._tasks, wanted, "created_at", limit, task_of, queries.list_index(filter))

    async def due_for_dispatch(self, limit: int) -> Sequence[DueTask]:
        found = await self._tasks.find(
            queries.due_for_dispatch(),
            sort={"next_dispatch_at": 1},
            limit=limit,
            fields=("task_type", "priority", "dispatch_epoch", "dispatches", "next_dispatch_at", "not_before"),
            index="due",
        )
        return [_due_of(document) for document in found]

    async def reserve(self, *reservations: ReserveDispatch) -> Sequence[Task]:
        reserved: list[Task] = []
        for at in range(0, len(reservations), _RESERVED_TOGETHER):
            reserved += await self._reserve(reservations[at : at + _RESERVED_TOGETHER])
        return reserved

    async def _reserve(self, reservations: Sequence[ReserveDispatch]) -> Sequence[Task]:
        write = write_of(reservations)
        points = [reply_point(reservation) for reservation in reservations]
        if not await self._tasks.update_these(write.guard, write.stages, points):
            return []  # another sweeper was faster
        found = await self._tasks.find(queries.these([asked.task_id for asked in reservations]), index=BY_ID)
        epochs = {asked.task_id: asked.dispatch_epoch for asked in reservations}
        tasks = readable(found, task_of)
        return [task for task in tasks if task.status in CLAIMABLE and task.dispatch_epoch == epochs[task.task_id]]

    async def newest_running(self, task_type: str, lane: Priority) -> datetime | None:
        found = await self._tasks.find(
            queries.running_of(task_type, lane),
            sort=queries.newest_first("created_at"),
            limit=1,
            fields=("not_before",),
            index="list_by_status",
        )
        return moment(found[0]["not_before"]) if found else None

    async def expired_leases(self, grace: timedelta, limit: int) -> Sequence[ExpiredLease]:
        found = await self._tasks.find(
            queries.expired_leases(grace),
            sort={"lease.expires_at": 1},
            limit=limit,
            fields=("fencing_token", "crashes"),
            index="lease",
        )
        return [ExpiredLease(expired["_id"], expired["fencing_token"], expired["crashes"]) for expired in found]

    async def past_deadline(self, limit: int) -> Sequence[str]:
        found = await self._tasks.find(
            queries.past_deadline(), sort={"deadline": 1}, limit=limit, fields=("_id",), index="deadline"
        )
        return [document["_id"] for document in found]

    async def unpublished(self, limit: int) -> Sequence[Task]:
        found = await self._tasks.find(queries.unpublished(), sort={"publish_at": 1}, limit=limit, index="publish")
        return readable(found, task_of)

    async def count_by_status(self) -> dict[TaskStatus, int]:
        total, found = await asyncio.gather(self._tasks.count_all(), self._tasks.aggregate(queries.COUNT_UNCOMPLETED))
        counts = {entry["_id"]: entry["count"] for entry in found}
        completed = {TaskStatus.COMPLETED.value: max(0, total - sum(counts.values()))}
        return {status: (counts | completed).get(status.value, 0) for status in TaskStatus}

    async def count_undriven(self) -> int:
        return await self._tasks.count(queries.undriven())

    async def forget_dispatches(self) -> None:
        with time_limit(_ALL_TASKS):
            await self._tasks.update_many(
                queries.dispatched(), [{"$set": {"next_dispatch_at": "$not_before", "dispatches": 0}}]
            )

    async def purge(self, *, finished: timedelta | None, dead_letters: timedelta | None, limit: int) -> int:
        removed = 0
        for statuses, kept in ((FINAL - DEAD, finished), (DEAD, dead_letters)):
            if kept is not None and removed < limit:
                over = queries.ended(statuses, kept)
                removed += await self._tasks.delete_some(over, "finished_at", limit - removed, "ended")
        if dead_letters is not None and removed < limit:
            over = passed("at", by=dead_letters)
            removed += await self._dead_messages.delete_some(over, "at", limit - removed, "list")
        return removed

    async def declare_task_types(self, declarations: Sequence[TaskDeclaration]) -> None:
        documents = [{"_id": declared.task_type, "declaration": declared.to_json()} for declared in declarations]
        refusals = await self._task_types.put_each(documents) if documents else {}
        for refused in refusals.values():
            if not isinstance(refused, DuplicateDocumentError):  # of two that came first, the other one is there
                raise refused

    async def task_types(self, names: Sequence[str] | None = None) -> Sequence[TaskDeclaration]:
        found = await self._task_types.find({} if names is None else queries.these(names))
        return [TaskDeclaration.from_json(document["declaration"]) for document in found]

    async def keep_dead_message(self, message: DeadMessage) -> None:
        await self._parts.keep(encoded(dead_message_document(message), "the message"))

    async def list_dead_tasks(self, *, owner: str | None, limit: int, cursor: str | None) -> Page[Task]:
        return await _page(self._tasks, queries.dead(owner, _cursor(cursor)), "finished_at", limit, task_of, "ended")

    async def list_dead_messages(self, *, limit: int, cursor: str | None) -> Page[DeadMessage]:
        wanted = queries.after(_cursor(cursor), "at")
        return await _page(self._dead_messages, wanted, "at", limit, dead_message_of, "list")

    async def get_dead_message(self, message_id: str) -> DeadMessage | None:
        document = await self._dead_messages.find_one({"_id": message_id})
        return None if document is None else dead_message_of(document)

    async def delete_dead_message(self, message_id: str) -> bool:
        return await self._dead_messages.delete_one({"_id": message_id})

    def _connect(self, pool_size: int) -> Connection:
        return connect(self._url, self._driver, self._timeout, pool_size)

    def _too_late(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"MongoDB did not answer within {self._timeout.total_seconds():g} s.")

    async def _server_time(self) -> datetime:
        return moment((await self._heartbeats.hello())["localTime"])

    @property
    def _parts(self) -> _Opened:
        if self._opened is None:
            raise StoreError("The store is not open.", hint="Await open() first.")
        return self._opened

    @property
    def _tasks(self) -> Collection:
        return self._parts.connection.tasks

    @property
    def _dead_messages(self) -> Collection:
        return self._parts.connection.dead_messages

    @property
    def _task_types(self) -> Collection:
        return self._parts.connection.task_types

    @property
    def _heartbeats(self) -> Connection:
        return self._parts.heartbeats


async def _keep_all(messages: Collection, documents: Sequence[Any]) -> Sequence[StoreError | None]:
    refused = await messages.insert_each(documents, ("keep.reply",))
    replies = [refused.get(place) for place in range(len(documents))]
    return [None if isinstance(reply, DuplicateDocumentError) else reply for reply in replies]


async def _page(
    collection: Collection,
    filter: Document,
    order: str,
    limit: int,
    read: Callable[[Document], Entry],
    index: str | None,
) -> Page[Entry]:
    """The newest entries by `order`; one more is read, to know whether another page follows."""
    found = await collection.find(filter, sort=queries.newest_first(order), limit=limit + 1, index=index)
    end = Cursor(moment(found[limit - 1][order]), found[limit - 1]["_id"]).encode() if len(found) > limit else None
    return Page(tuple(readable(found[:limit], read)), end)


def _cursor(cursor: str | None) -> Cursor | None:
    return None if cursor is None else Cursor.decode(cursor)


def _due_of(document: Document) -> DueTask:
    return DueTask(
        document["_id"],
        document["task_type"],
        lane_of(document["priority"]),
        document["dispatch_epoch"],
        document["dispatches"],
        moment(document["next_dispatch_at"]),
        moment(document["not_before"]),
    )


def _fence_of(document: Document) -> Fence:
    """The fence that a running task's document is under now."""
    return Fence(document["_id"], document["fencing_token"], document["lease"]["claim_id"])


def _cancel_of(document: Document) -> CancelRequest | None:
    cancel = document["cancel"]
    return None if cancel is None else CancelRequest(cancel["by"], moment(cancel["at"]), cancel["reason"])
