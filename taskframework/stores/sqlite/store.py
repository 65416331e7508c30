"""`SqliteStore`: the store port over one SQLite file."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

from taskframework.clock import Clock, SystemClock, from_milliseconds, to_milliseconds
from taskframework.errors import TaskUnreadableError
from taskframework.grouping import Grouping
from taskframework.leaving_out import leave_out
from taskframework.model.drivers import Driver
from taskframework.model.letters import DeadCount
from taskframework.model.marks import Mark, RenewLease
from taskframework.model.query import DeadMessage, MessageOutline, Page, RoundOfSubtasks, StreamTimes, TaskFilter
from taskframework.model.records import Record, RecordChange, id_range
from taskframework.model.scope import Scope
from taskframework.model.status import LANES, Priority, TaskStatus
from taskframework.model.streams import STREAMS, PassTurn, StreamKey, TakePositions, Turn, stream_key_of
from taskframework.model.task import Task
from taskframework.model.task_fields import CancelRequest
from taskframework.model.traffic import CountedTasks, LaneCounts
from taskframework.model.transitions import Fence, Transition
from taskframework.stores.base import SEARCH_PAGE_SIZE
from taskframework.stores.reading import turn_of
from taskframework.stores.replies import DueTask, Inserted, StoreReport
from taskframework.stores.sqlite import lists, queries, traffic
from taskframework.stores.sqlite.connection import Database, Row
from taskframework.stores.sqlite.groups import Change, GroupWriter, Inserts, Marks, Reply, Request
from taskframework.stores.sqlite.inspection import inspect
from taskframework.stores.sqlite.pages import (
    cancels_of,
    message_of,
    message_page,
    message_row,
    search_page,
    task_page,
    tasks_of,
)
from taskframework.stores.sqlite.records import WriteRecords, changed, record_of
from taskframework.stores.sqlite.retention import Purge
from taskframework.stores.sqlite.rows import TaskRow, Value, read_row, to_json

#: How many tasks are remembered as they were last written, of some five kilobytes each: tasks that workers run now are
#: written again within moments.
_MAX_REMEMBERED_TASKS = 10_000
#: A time in milliseconds that is later than all others.
_MAX_TIME = 2**62
#: Most requests of a group. This many take about ten milliseconds, and the next group waits for this time.
_MAX_GROUP_REQUESTS = 200
#: Most marks and tasks of one request, so that no caller makes a group much slower.
_MAX_MARKS_PER_REQUEST, _MAX_INSERTS_PER_REQUEST = 200, 100


class SqliteStore:
    """Tasks in one file; implements `TaskStore`. Any number of processes on this machine may have it open."""

    def __init__(
        self,
        path: Path | str,
        *,
        clock: Clock | None = None,
        remembered: int = _MAX_REMEMBERED_TASKS,
        syncs: bool = True,
    ) -> None:
        """Prepare a store; nothing is opened yet.

        Args:
            path: the file; it is created if it does not exist.
            clock: decides every lease and due time. Tests pass one; all processes of a file must have the same clock.
            remembered: how many tasks are remembered as they were last written, so that they are not read; 0 for none.
            syncs: whether writes also survive a power cut. Tests with a temporary file do not need this.
        """
        self._path = Path(path)
        self._clock = clock or SystemClock()
        self._database = Database(self._path, syncs=syncs)
        write = GroupWriter(self._database, self._clock, remembered)
        self._group: Grouping[Request, Reply] = Grouping(write, limit=_MAX_GROUP_REQUESTS)
        self._purge = Purge(self._database)
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

    async def insert(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        replies: list[Inserted | Exception] = []
        for at in range(0, len(tasks), _MAX_INSERTS_PER_REQUEST):
            request = Inserts.of(tasks[at : at + _MAX_INSERTS_PER_REQUEST])
            try:
                replies += cast("list[Inserted | Exception]", await self._group(request))
            except Exception as error:
                replies += [error] * len(request.inserts)
        return replies

    async def apply(self, transition: Transition) -> Task | None:
        return cast(Task | None, await self._group(Change.of(transition)))

    async def mark(self, *marks: Mark) -> None:
        for at in range(0, len(marks), _MAX_MARKS_PER_REQUEST):
            await self._group(Marks.of(marks[at : at + _MAX_MARKS_PER_REQUEST]))

    async def renew(self, fences: Sequence[Fence], lease: timedelta) -> dict[Fence, CancelRequest | None]:
        changes = [Change.of(RenewLease(fence, lease)) for fence in fences]
        replies = await asyncio.gather(*(self._group(change) for change in changes), return_exceptions=True)
        held: dict[Fence, CancelRequest | None] = {}
        for fence, reply in zip(fences, replies, strict=True):
            if isinstance(reply, TaskUnreadableError):  # only its own attempt loses its lease
                leave_out(reply)
            elif isinstance(reply, BaseException):
                raise reply
            elif isinstance(reply, Task):
                held[fence] = reply.cancel
        return held

    async def cancel_requests(self, fences: Sequence[Fence]) -> dict[Fence, CancelRequest]:
        task_ids = to_json([fence.task_id for fence in fences])
        asked = cancels_of(await self._database.fetch(queries.CANCEL_REQUESTS, [task_ids]))
        return {fence: asked[fence] for fence in fences if fence in asked}

    async def claims_of(self, task_ids: Collection[str]) -> dict[str, str]:
        return dict(await self._database.fetch(queries.CLAIMS_OF, [to_json(list(task_ids))]))

    async def get(self, task_id: str, scope: Scope) -> Task | None:
        rows = await self._database.fetch(queries.TASK, (task_id, scope.owner))
        return read_row(TaskRow._make(rows[0])).task if rows else None

    async def get_many(self, task_ids: Collection[str], scope: Scope) -> dict[str, Task]:
        rows = await self._database.fetch(queries.TASKS_IN_SCOPE, (to_json(list(task_ids)), scope.owner))
        return {task.task_id: task for task in (read_row(TaskRow._make(row)).task for row in rows)}

    async def list_tasks(
        self, scope: Scope, filter: TaskFilter, *, limit: int, cursor: str | None = None
    ) -> Page[Task]:
        rows = await self._database.fetch(*lists.list_tasks(scope, filter, limit, cursor))
        return task_page(rows, limit, filter)

    async def search_tasks(
        self, scope: Scope, filter: TaskFilter, *, limit: int, cursor: str | None = None
    ) -> Page[Task]:
        rows = await self._database.fetch(*lists.search_tasks(scope, filter, SEARCH_PAGE_SIZE, cursor))
        ids, next_cursor = search_page(rows, limit, SEARCH_PAGE_SIZE, filter)
        whole = tasks_of(await self._database.fetch(queries.TASKS_BY_ID, [to_json(ids)]))
        found = {task.task_id: task for task in whole}
        return Page(tuple([found[task_id] for task_id in ids if task_id in found]), next_cursor)

    async def count_dead(self, scope: Scope, filter: TaskFilter, *, most: int) -> Sequence[DeadCount]:
        rows = await self._database.fetch(*lists.count_dead(scope, filter, to_milliseconds(self._clock.now()), most))
        return [
            DeadCount(
                cause, task_type, hours, count, from_milliseconds(first), from_milliseconds(last), error_type, message
            )
            for cause, task_type, hours, count, first, last, error_type, message in rows
        ]

    async def count_subtasks(self, round: RoundOfSubtasks) -> dict[TaskStatus, int]:
        counts: dict[str, int] = dict(await self._database.fetch(queries.COUNT_SUBTASKS, _round_values(round)))
        return {TaskStatus(status): count for status, count in counts.items() if count}

    async def list_subtasks(
        self,
        round: RoundOfSubtasks,
        *,
        limit: int,
        after_slot: int = -1,
        statuses: Collection[TaskStatus] | None = None,
    ) -> Sequence[Task]:
        values = _round_values(round) | {"after": after_slot, "limit": limit}
        if statuses is None:
            return tasks_of(await self._database.fetch(queries.LIST_SUBTASKS, values))
        values |= {f"status_{n}": status.value for n, status in enumerate(statuses)}
        return tasks_of(await self._database.fetch(queries.list_subtasks(len(statuses)), values))

    async def list_stream(self, stream: StreamKey, *, limit: int, after_position: int = -1) -> Sequence[Task]:
        return tasks_of(await self._database.fetch(queries.LIST_STREAM, _stream_values(stream, after_position, limit)))

    async def stream_times(self, stream: StreamKey, *, limit: int, after_position: int = -1) -> Sequence[StreamTimes]:
        rows = await self._database.fetch(queries.STREAM_TIMES, _stream_values(stream, after_position, limit))
        return [
            StreamTimes(at, from_milliseconds(created), None if end is None else from_milliseconds(end))
            for at, created, end in rows
        ]

    async def next_blocked(self, streams: Collection[StreamKey]) -> dict[StreamKey, Turn]:
        found: dict[StreamKey, Turn] = {}
        for stream in streams:
            for row in await self._database.fetch(queries.NEXT_BLOCKED, {"user": stream.user_id, "key": stream.key}):
                found[stream] = turn_of(*row)
        return found

    async def count_blocked(self, stream: StreamKey) -> int:
        [(count,)] = await self._database.fetch(queries.COUNT_BLOCKED, {"user": stream.user_id, "key": stream.key})
        return int(count)

    async def halted_streams(self, limit: int) -> Sequence[StreamKey]:
        rows = await self._database.fetch(queries.HALTED_STREAMS, (*id_range(STREAMS.name), limit))
        return [stream_key_of(name) for (name,) in rows]

    async def due(self, driver: Driver, limit: int, grace: timedelta = timedelta(0)) -> Sequence[DueTask]:
        now = self._clock.now()
        values = {"now": to_milliseconds(now), "before": to_milliseconds(now - grace), "limit": limit}
        return [_due_of(row) for row in await self._database.fetch(queries.DUE[driver.name], values)]

    async def upcoming(self, driver: Driver, limit: int) -> Sequence[DueTask]:
        values = {"now": to_milliseconds(self._clock.now()), "limit": limit}
        return [_due_of(row) for row in await self._database.fetch(queries.UPCOMING[driver.name], values)]

    async def put_off(self, task_type: str, since: datetime, until: datetime, limit: int) -> Sequence[DueTask]:
        times = {"since": to_milliseconds(since), "until": to_milliseconds(until)}
        values = {**times, "type": task_type, "limit": limit}
        return [_due_of(row) for row in await self._database.fetch(queries.PUT_OFF, values)]

    async def waiting_for(self, limit: str, most: int) -> Sequence[DueTask]:
        found: list[DueTask] = []
        for lane in LANES:
            if len(found) < most:
                values = {"limit": limit, "lane": lane.value, "most": most - len(found)}
                found += map(_due_of, await self._database.fetch(queries.WAITING_FOR, values))
        return found

    async def undriven(self, limit: int) -> Sequence[str]:
        return [task_id for (task_id,) in await self._database.fetch(queries.UNDRIVEN, (limit,))]

    async def newest_running(self, task_type: str, lane: Priority) -> datetime | None:
        rows = await self._database.fetch(queries.NEWEST_RUNNING, (task_type, lane.value))
        return from_milliseconds(rows[0][0]) if rows else None

    async def count_by_status(self) -> dict[TaskStatus, int]:
        counts: dict[str, int] = dict(await self._database.fetch(queries.COUNT_BY_STATUS))
        return {status: counts.get(status.value, 0) for status in TaskStatus}

    async def count_lanes(
        self,
        selection: CountedTasks,
        most: int,
        *,
        due_before: datetime,
        since: datetime | None = None,
        queue: tuple[str, Priority] | None = None,
    ) -> LaneCounts:
        values = traffic.values_of(most, due_before, since, queue)
        rows = await self._database.fetch(traffic.query(selection, of_queue=queue is not None), values)
        return traffic.lane_counts_of(rows, most)

    async def purge(self, *, finished: timedelta | None, dead_letters: timedelta | None, limit: int) -> int:
        return await self._purge(self._clock.now(), finished, dead_letters, limit)

    async def finished_at(self, task_ids: Collection[str]) -> dict[str, datetime | None]:
        rows = await self._database.fetch(queries.FINISHED_AT, [to_json(list(task_ids))])
        return {task_id: None if end is None else from_milliseconds(end) for task_id, end in rows}

    async def read_records(self, ids: Collection[str]) -> dict[str, Record]:
        rows = await self._database.fetch(queries.RECORDS_BY_ID, [to_json(list(ids))])
        return {record.id: record for record in map(record_of, rows)}

    async def write_records(self, records: Sequence[Record]) -> Sequence[Record | None]:
        request = WriteRecords.of(records)
        return cast("list[Record | None]", await self._group(request)) if records else []

    async def change_record(self, change: RecordChange) -> Record:
        now = self._clock.now
        return await self._database.write(lambda raw: changed(raw, change, now()), ("record.reply",))

    async def take_positions(self, takes: Sequence[TakePositions]) -> Sequence[Record]:
        now = self._clock.now
        return await self._database.write(lambda raw: [changed(raw, take, now()) for take in takes], ("record.reply",))

    async def pass_turns(self, passes: Sequence[PassTurn]) -> Sequence[bool]:
        now = self._clock.now
        return await self._database.write(
            lambda raw: [pass_.was_applied(changed(raw, pass_, now())) for pass_ in passes], ("record.reply",)
        )

    async def delete_records(self, records: Sequence[Record]) -> int:
        if not records:
            return 0
        ids, revisions = [record.id for record in records], [record.revision for record in records]
        return await self._database.execute(
            queries.DELETE_RECORDS, [to_json(ids), to_json(revisions)], ("record.reply",)
        )

    async def list_records(self, kind: str, *, limit: int, after: str = "") -> Sequence[Record]:
        place = (*id_range(kind, after), limit)
        return [record_of(row) for row in await self._database.fetch(queries.LIST_RECORDS, place)]

    async def expired_records(self, limit: int) -> Sequence[Record]:
        until = (to_milliseconds(self._clock.now()), limit)
        return [record_of(row) for row in await self._database.fetch(queries.EXPIRED_RECORDS, until)]

    async def keep_dead_message(self, message: DeadMessage) -> None:
        await self._keep(message_row(message))

    async def _keep_all(self, rows: Sequence[tuple[Value | bytes, ...]]) -> Sequence[None]:
        await self._database.write(lambda raw: raw.executemany(queries.KEEP_MESSAGE, rows), ("keep.reply",))
        return [None] * len(rows)

    async def list_dead_messages(self, *, limit: int, cursor: str | None) -> Page[DeadMessage]:
        return message_page(await self._database.fetch(*lists.list_dead_messages(limit, cursor)), limit)

    async def outline_dead_messages(self, *, limit: int) -> Sequence[MessageOutline]:
        rows = await self._database.fetch(queries.OUTLINE_MESSAGES, (_MAX_TIME, limit))
        return [MessageOutline(name, reason, task_type, from_milliseconds(at)) for name, reason, task_type, at in rows]

    async def delete_dead_message(self, message_id: str) -> bool:
        return await self._database.execute(queries.DELETE_MESSAGE, [message_id]) == 1

    async def get_dead_message(self, message_id: str) -> DeadMessage | None:
        rows = await self._database.fetch(queries.MESSAGE, (message_id,))
        return message_of(rows[0]) if rows else None


def _round_values(round: RoundOfSubtasks) -> dict[str, Value]:
    return {"parent": round.parent_id, "generation": round.generation, "round": round.round}


def _stream_values(stream: StreamKey, after_position: int, limit: int) -> dict[str, Value]:
    return {"user": stream.user_id, "key": stream.key, "after": after_position, "limit": limit}


def _due_of(row: Row) -> DueTask:
    task_id, task_type, lane, status, epoch, dispatches, token, crashes, not_before, due = row
    return DueTask(
        task_id,
        task_type,
        Priority(lane),
        TaskStatus(status),
        epoch,
        dispatches,
        token,
        crashes,
        from_milliseconds(not_before),
        from_milliseconds(due),
    )
