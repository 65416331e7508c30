"""`SqliteStore`: the store port over one SQLite file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

from taskframework.clock import Clock, SystemClock
from taskframework.errors import TaskUnreadableError
from taskframework.grouping import Grouping
from taskframework.model.marks import Mark, ReserveDispatch
from taskframework.model.query import DeadMessage, Page, TaskFilter
from taskframework.model.status import Priority, TaskStatus
from taskframework.model.task import CancelRequest, Task
from taskframework.model.transitions import Fence, Transition
from taskframework.stores.base import DueTask, ExpiredLease, Inserted, Renewal, StoreReport
from taskframework.stores.sqlite import queries
from taskframework.stores.sqlite.connection import Database
from taskframework.stores.sqlite.groups import Change, GroupWriter, Insert, Inserts, Marks, Renew, Reply, Request
from taskframework.stores.sqlite.inspection import inspect
from taskframework.stores.sqlite.pages import message_of, message_page, message_row, task_page, tasks_of
from taskframework.stores.sqlite.rows import TaskRow, Value, milliseconds, moment, read_cancel, read_row, to_json
from taskframework.tasks.declared import TaskDeclaration

logger = logging.getLogger(__name__)

_BATCH = 1000
#: Requests of a group: it takes some ten milliseconds then, which is what another one waits for.
_GROUP = 200
_MARKS_IN_A_REQUEST = 200
_INSERTS_IN_A_REQUEST = 100


class SqliteStore:
    """Keeps tasks in one file. Any number of processes on this machine may have it open."""

    def __init__(self, path: Path | str, *, clock: Clock | None = None) -> None:
        """Prepare a store; nothing is opened yet.

        Args:
            path: the file; it is created when it is not there.
            clock: decides every lease and due time. All processes on a file must share one, so only tests pass one.
        """
        self._path = Path(path)
        self._clock = clock or SystemClock()
        self._database = Database(self._path)
        self._group: Grouping[Request, Reply] = Grouping(GroupWriter(self._database, self._clock), limit=_GROUP)
        self._keep: Grouping[tuple[Value | bytes, ...], None] = Grouping(self._keep_all)

    async def open(self) -> None:
        await self._database.open()

    async def close(self) -> None:
        await self._group.drain()
        await self._keep.drain()
        await self._database.close()

    async def ping(self) -> None:
        await self._database.write(lambda _: None)

    async def inspect(self) -> StoreReport:
        return await inspect(self._path)

    def now(self) -> datetime:
        return self._clock.now()

    async def insert(self, task: Task) -> Inserted:
        return cast(Inserted, await self._group(Insert.of(task)))

    async def insert_many(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        encoded = [_encoded(task) for task in tasks]
        inserts = [made for made in encoded if isinstance(made, Insert)]
        replies: list[Inserted | Exception] = []
        for at in range(0, len(inserts), _INSERTS_IN_A_REQUEST):
            replies += await self._insert_some(inserts[at : at + _INSERTS_IN_A_REQUEST])
        answers = iter(replies)
        return [next(answers) if isinstance(made, Insert) else made for made in encoded]

    async def _insert_some(self, inserts: Sequence[Insert]) -> Sequence[Inserted | Exception]:
        try:
            return cast("list[Inserted | Exception]", await self._group(Inserts(tuple(inserts))))
        except Exception as error:
            return [error] * len(inserts)

    async def apply(self, transition: Transition) -> Task | None:
        return cast(Task | None, await self._group(Change.of(transition)))

    async def mark(self, *marks: Mark) -> None:
        for at in range(0, len(marks), _MARKS_IN_A_REQUEST):
            await self._group(Marks.of(marks[at : at + _MARKS_IN_A_REQUEST]))

    async def renew(self, worker_id: str, fences: Sequence[Fence], lease: timedelta) -> dict[str, Renewal]:
        changes = [Change.of(Renew(fence, worker_id, lease)) for fence in fences]
        replies = await asyncio.gather(*(self._group(change) for change in changes))
        held = cast(list[Task | None], replies)
        return {task.task_id: Renewal(task.cancel) for task in held if task is not None}

    async def cancel_requests(self, fences: Sequence[Fence]) -> dict[str, CancelRequest]:
        task_ids = to_json([fence.task_id for fence in fences])
        found = await self._database.fetch(queries.CANCEL_REQUESTS, [task_ids])
        asked = {Fence(*held): read_cancel(cancel) for *held, cancel in found}
        return {fence.task_id: asked[fence] for fence in fences if fence in asked}

    async def get(self, task_id: str, *, owner: str | None = None) -> Task | None:
        rows = await self._database.fetch(queries.TASK, (task_id, owner))
        return read_row(TaskRow._make(rows[0])).task if rows else None

    async def list_tasks(self, filter: TaskFilter, *, limit: int, cursor: str | None = None) -> Page[Task]:
        return task_page(await self._database.fetch(*queries.list_tasks(filter, limit, cursor)), limit)

    async def due_for_dispatch(self, limit: int) -> Sequence[DueTask]:
        now = self._now()
        rows = await self._database.fetch(queries.DUE_FOR_DISPATCH, (now, now, limit))
        return [
            DueTask(task_id, task_type, Priority(lane), epoch, dispatches, moment(due), moment(not_before))
            for task_id, task_type, lane, epoch, dispatches, due, not_before in rows
        ]

    async def reserve(self, *reservations: ReserveDispatch) -> Sequence[Task]:
        replies = await asyncio.gather(
            *(self._group(Change.of(asked)) for asked in reservations), return_exceptions=True
        )
        reserved = []
        for reply in replies:
            if isinstance(reply, Task):
                reserved.append(reply)
            elif isinstance(reply, TaskUnreadableError):  # a newer release wrote it: its own processes dispatch it
                logger.warning("left out: %s", reply.message)
            elif isinstance(reply, BaseException):
                raise reply
        return reserved

    async def newest_running(self, task_type: str, lane: Priority) -> datetime | None:
        rows = await self._database.fetch(queries.NEWEST_RUNNING, (task_type, lane.value))
        return moment(rows[0][0]) if rows else None

    async def expired_leases(self, grace: timedelta, limit: int) -> Sequence[ExpiredLease]:
        before = milliseconds(self._clock.now() - grace)
        return [ExpiredLease(*row) for row in await self._database.fetch(queries.EXPIRED_LEASES, (before, limit))]

    async def past_deadline(self, limit: int) -> Sequence[str]:
        return [task_id for (task_id,) in await self._database.fetch(queries.PAST_DEADLINE, (self._now(), limit))]

    async def unpublished(self, limit: int) -> Sequence[Task]:
        return tasks_of(await self._database.fetch(queries.UNPUBLISHED, (self._now(), limit)))

    async def count_by_status(self) -> dict[TaskStatus, int]:
        counts: dict[str, int] = dict(await self._database.fetch(queries.COUNT_BY_STATUS))
        return {status: counts.get(status.value, 0) for status in TaskStatus}

    async def count_undriven(self) -> int:
        [(count,)] = await self._database.fetch(queries.COUNT_UNDRIVEN)
        return int(count)

    async def forget_dispatches(self) -> None:
        while await self._database.execute(queries.FORGET_DISPATCHES, (_BATCH,)) == _BATCH:
            pass

    async def purge(self, *, finished: timedelta | None, dead_letters: timedelta | None, limit: int) -> int:
        kinds = (
            (queries.PURGE_DONE, finished),
            (queries.PURGE_DEAD, dead_letters),
            (queries.PURGE_MESSAGES, dead_letters),
        )
        purged = 0
        for query, kept in kinds:
            if kept is not None:
                before = milliseconds(self._clock.now() - kept)
                purged += await self._database.execute(query, (before, limit - purged))
        return purged

    async def declare_task_types(self, declarations: Sequence[TaskDeclaration]) -> None:
        rows = [(declaration.task_type, declaration.to_json()) for declaration in declarations]
        await self._database.write(lambda raw: raw.executemany(queries.DECLARE_TASK_TYPE, rows))

    async def task_types(self, names: Sequence[str] | None = None) -> Sequence[TaskDeclaration]:
        wanted = (queries.TASK_TYPES, ()) if names is None else (queries.TASK_TYPES_BY_NAME, [to_json(names)])
        return [TaskDeclaration.from_json(text) for (text,) in await self._database.fetch(*wanted)]

    async def keep_dead_message(self, message: DeadMessage) -> None:
        await self._keep(message_row(message))

    async def _keep_all(self, rows: Sequence[tuple[Value | bytes, ...]]) -> Sequence[None]:
        await self._database.write(lambda raw: raw.executemany(queries.KEEP_MESSAGE, rows), ("keep.reply",))
        return [None] * len(rows)

    async def list_dead_tasks(self, *, owner: str | None, limit: int, cursor: str | None) -> Page[Task]:
        rows = await self._database.fetch(*queries.list_dead_tasks(owner, limit, cursor))
        return task_page(rows, limit, by_end=True)

    async def list_dead_messages(self, *, limit: int, cursor: str | None) -> Page[DeadMessage]:
        return message_page(await self._database.fetch(*queries.list_dead_messages(limit, cursor)), limit)

    async def get_dead_message(self, message_id: str) -> DeadMessage | None:
        rows = await self._database.fetch(queries.MESSAGE, (message_id,))
        return message_of(rows[0]) if rows else None

    async def delete_dead_message(self, message_id: str) -> bool:
        return await self._database.execute(queries.DELETE_MESSAGE, (message_id,)) > 0

    def _now(self) -> int:
        return milliseconds(self._clock.now())


def _encoded(task: Task) -> Insert | Exception:
    try:
        return Insert.of(task)
    except Exception as error:
        return error
