"""The store port: everything that the framework needs from a database.

A store keeps one document for each task and changes it only by the transitions and marks of `taskframework.model`, each
as one guarded write. The clock of the store decides every lease and due time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from taskframework.model.drivers import Driver
from taskframework.model.letters import DeadCount
from taskframework.model.marks import Mark
from taskframework.model.query import DeadMessage, MessageOutline, Page, RoundOfSubtasks, StreamTimes, TaskFilter
from taskframework.model.records import Record, RecordChange
from taskframework.model.scope import Scope
from taskframework.model.status import Priority, TaskStatus
from taskframework.model.streams import PassTurn, StreamKey, TakePositions, Turn
from taskframework.model.task import Task
from taskframework.model.task_fields import CancelRequest
from taskframework.model.traffic import CountedTasks, LaneCounts
from taskframework.model.transitions import Fence, Transition
from taskframework.stores.replies import DueTask, Inserted, StoreReport

#: How many tasks one page of a search looks through.
SEARCH_PAGE_SIZE = 5_000


class TaskWrites(Protocol):
    """The writes that store and change tasks.

    A write that raised `StoreUnavailableError` may still have been applied. For a worker's transition the caller can
    find out by making the same transition again: if the second one is refused, `Transition.was_applied` tells from the
    task, by its claim id, whether the first one was applied. A store may repeat a write and read it back before it
    raises, but no caller relies on that.
    """

    async def insert(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        """Store new tasks durably (majority), independently of each other. Concurrent calls with one task are grouped.

        Returns:
            For each task, in the order given, the task that is stored now, or the error why it could not be stored. If
            a task with the same id existed, it is the existing task. While an earlier release still writes to the
            store, it may also be a task with another id and the same idempotency key.
        """
        ...

    async def apply(self, transition: Transition) -> Task | None:
        """Make one guarded move. Concurrent calls of one group are written together.

        Returns:
            The task after the move, or None when the guard refused it. For a repeated move of a worker that was made
            before (`Transition.was_applied`), a store may return the task instead of None.
        """
        ...

    async def mark(self, *marks: Mark) -> None:
        """Make marks, together where possible. The caller does not learn which applied; a task may be unreadable.

        Raises:
            ValueNotStorableError: if one of them can never be written; the others may be.
        """
        ...


class Leases(Protocol):
    """The calls of a worker for the attempts that it runs."""

    async def renew(self, fences: Sequence[Fence], lease: timedelta) -> dict[Fence, CancelRequest | None]:
        """Make `RenewLease` for all attempts of a worker, with one write and one read.

        Returns:
            The fences whose leases are still held, each with the cancel request if there is one. A fence that is
            missing has lost its lease.
        """
        ...

    async def cancel_requests(self, fences: Sequence[Fence]) -> dict[Fence, CancelRequest]:
        """The cancel requests of these attempts; one cheap read, made every second.

        It says nothing about leases: an attempt without a cancel request is missing, with or without its lease.
        """
        ...

    async def claims_of(self, task_ids: Collection[str]) -> dict[str, str]:
        """The claim ids of these tasks, by task id; only for tasks that run."""
        ...


class TaskReads(Protocol):
    """Reads of tasks for a caller."""

    async def get(self, task_id: str, scope: Scope) -> Task | None:
        """Read a task; None if it does not exist, or is outside the scope."""
        ...

    async def get_many(self, task_ids: Collection[str], scope: Scope) -> Mapping[str, Task]:
        """Read tasks; tasks that do not exist, or are outside the scope, are left out.

        Raises:
            TaskUnreadableError: if only a newer release can read one of them.
        """
        ...

    async def list_tasks(
        self, scope: Scope, filter: TaskFilter, *, limit: int, cursor: str | None = None
    ) -> Page[Task]:
        """Tasks from the newest to the oldest, by the time that the filter says.

        Raises:
            CursorInvalidError: if the cursor does not belong to this list.
        """
        ...

    async def search_tasks(
        self, scope: Scope, filter: TaskFilter, *, limit: int, cursor: str | None = None
    ) -> Page[Task]:
        """The same list, for a filter without an index: a page looks through the next `SEARCH_PAGE_SIZE` tasks only.

        So a page may have fewer tasks than `limit`, or none, although more pages follow.

        Raises:
            CursorInvalidError: if the cursor does not belong to this list.
        """
        ...

    async def count_dead(self, scope: Scope, filter: TaskFilter, *, most: int) -> Sequence[DeadCount]:
        """Count dead tasks by cause, type and hour: of the last `most` dead tasks, the ones that the filter selects."""
        ...


class SubtaskReads(Protocol):
    """Reads of the sub-tasks of a task. They need no scope: a caller that may see the task may see its sub-tasks."""

    async def count_subtasks(self, round: RoundOfSubtasks) -> Mapping[TaskStatus, int]:
        """How many sub-tasks of a round are in each status, as a majority knows it; a status without tasks is missing.

        It reads only an index, so the cost grows with the number of sub-tasks and not with their size.
        """
        ...

    async def list_subtasks(
        self,
        round: RoundOfSubtasks,
        *,
        limit: int,
        after_slot: int = -1,
        statuses: Collection[TaskStatus] | None = None,
    ) -> Sequence[Task]:
        """Sub-tasks of a round in slot order, from the first one after `after_slot`; only those in these statuses."""
        ...


class StreamReads(Protocol):
    """Reads of ordered streams and their tasks. They need no scope: the `StreamKey` names the owner."""

    async def list_stream(self, stream: StreamKey, *, limit: int, after_position: int = -1) -> Sequence[Task]:
        """The tasks of a stream by position, from the first one after `after_position`."""
        ...

    async def stream_times(self, stream: StreamKey, *, limit: int, after_position: int = -1) -> Sequence[StreamTimes]:
        """The times of the same tasks, from which a reader decides about gaps before them."""
        ...

    async def next_blocked(self, streams: Collection[StreamKey]) -> Mapping[StreamKey, Turn]:
        """For each stream the turn of its lowest BLOCKED task; a stream without one is missing."""
        ...

    async def count_blocked(self, stream: StreamKey) -> int:
        """How many tasks of a stream wait for their turn."""
        ...

    async def halted_streams(self, limit: int) -> Sequence[StreamKey]:
        """The halted streams of all users. It reads the records of all streams, so it must not be called often."""
        ...


class Repairs(Protocol):
    """Searches for tasks that were interrupted, are wrong or are over. They need no scope: repairs serve all users."""

    async def due(self, driver: Driver, limit: int, grace: timedelta = timedelta(0)) -> Sequence[DueTask]:
        """Tasks whose time of this driver passed more than `grace` ago; the earliest time first."""
        ...

    async def upcoming(self, driver: Driver, limit: int) -> Sequence[DueTask]:
        """Tasks whose time of this driver is still to come and that nothing else holds back; the earliest first."""
        ...

    async def put_off(self, task_type: str, since: datetime, until: datetime, limit: int) -> Sequence[DueTask]:
        """Claimable tasks of a type without a message whose dispatch was put off to a time from `since` to `until`; the
        earliest time first. It reads all tasks, of all types, that are to be dispatched in that time.
        """
        ...

    async def waiting_for(self, limit: str, most: int) -> Sequence[DueTask]:
        """At most `most` tasks that wait in the store because this limit did not let them begin (`waiting_limit`).

        The high lane comes first; within a lane, the task that has been claimable longest. `due` is the time of their
        dispatch.
        """
        ...

    async def undriven(self, limit: int) -> Sequence[str]:
        """Ids of tasks that lack a driver that they need (`missing_drivers`): no process would ever continue them.

        There must be no such task. It may read every live task, so it must not be called often.
        """
        ...

    async def newest_running(self, task_type: str, lane: Priority) -> datetime | None:
        """The `not_before` of the running task of this queue that was created last; None: no task runs."""
        ...

    async def count_by_status(self) -> dict[TaskStatus, int]:
        """How many tasks are in each status. After a crash of the server the number of COMPLETED is an estimate."""
        ...

    async def count_lanes(
        self,
        selection: CountedTasks,
        most: int,
        *,
        due_before: datetime,
        since: datetime | None = None,
        queue: tuple[str, Priority] | None = None,
    ) -> LaneCounts:
        """Count tasks by task type and lane.

        Args:
            selection: which tasks.
            most: at most this many of them are looked at.
            due_before: tasks that could be claimed before this time are also counted separately.
            since: only tasks whose time, by which the selection is ordered, is not before this time.
            queue: only waiting or retried tasks of this type and lane; those that have been claimable longest first.
        """
        ...

    async def purge(self, *, finished: timedelta | None, dead_letters: timedelta | None, limit: int) -> int:
        """Delete tasks and messages after their time: completed and cancelled tasks after `finished`, failed tasks and
        kept messages after `dead_letters`; None keeps them forever. For a task with a `purge_at`, that time decides.

        A task with unpublished events stays. A sub-task stays as long as its parent, a parent as long as one of its
        sub-tasks, and a task of a stream as long as an earlier task of the stream is live. The idempotency key of a
        task is deleted together with the task, or right after it.

        Returns:
            How many tasks and messages were deleted, at most `limit`.
        """
        ...

    async def finished_at(self, task_ids: Collection[str]) -> dict[str, datetime | None]:
        """When these tasks ended; None for a live task. A task that does not exist is missing."""
        ...


class DeadMessages(Protocol):
    """Messages that cannot be read or that have no task. They belong to no user: only operators see them."""

    async def keep_dead_message(self, message: DeadMessage) -> None:
        """Keep a message. The same id is kept once; concurrent calls are written together."""
        ...

    async def list_dead_messages(self, *, limit: int, cursor: str | None) -> Page[DeadMessage]:
        """Kept messages, newest first."""
        ...

    async def outline_dead_messages(self, *, limit: int) -> Sequence[MessageOutline]:
        """Kept messages without their contents, newest first."""
        ...

    async def get_dead_message(self, message_id: str) -> DeadMessage | None: ...

    async def delete_dead_message(self, message_id: str) -> bool:
        """Delete a message; return whether it existed."""
        ...


class Records(Protocol):
    """The small documents that the framework keeps beside the tasks; see `taskframework.model.records`."""

    async def read_records(self, ids: Collection[str]) -> dict[str, Record]:
        """The records of these ids that exist, by id."""
        ...

    async def write_records(self, records: Sequence[Record]) -> Sequence[Record | None]:
        """Write each record if no other process was faster: a new record if none with its id exists, a changed record
        if the stored revision is still the revision that was read. Each write succeeds or fails by itself; concurrent
        calls are written together.

        Returns:
            Each record as it is stored now, with its new revision, or None if another process was faster.

        Raises:
            ValueNotStorableError: if one of them can never be written; then none is written.
        """
        ...

    async def change_record(self, change: RecordChange) -> Record:
        """Make one guarded write on a record, also if other processes write it at the same time.

        If the reply is lost, the change may have been made; a repeated call then makes it twice.

        Returns:
            The record after the write.
        """
        ...

    async def take_positions(self, takes: Sequence[TakePositions]) -> Sequence[Record]:
        """`change_record` for positions in several streams, each by itself.

        Returns:
            For each request its record, read at some time after the change; see `TakePositions.first_in`.
        """
        ...

    async def pass_turns(self, passes: Sequence[PassTurn]) -> Sequence[bool]:
        """`change_record` for turns of several streams, each by itself.

        Returns:
            For each request whether its turn is passed on, by this call or by another call.
        """
        ...

    async def delete_records(self, records: Sequence[Record]) -> int:
        """Delete the records that were not written since they were read; return how many were deleted."""
        ...

    async def list_records(self, kind: str, *, limit: int, after: str = "") -> Sequence[Record]:
        """Records of a kind whose ids come after `after`, in the order of their ids."""
        ...

    async def expired_records(self, limit: int) -> Sequence[Record]:
        """Records whose `expires_at` has passed, the earliest first."""
        ...


class TaskStore(TaskWrites, Leases, TaskReads, SubtaskReads, StreamReads, Repairs, DeadMessages, Records, Protocol):
    """A database that keeps tasks: all the parts above, and opening and closing.

    Every method raises `StoreUnavailableError` when the database cannot be reached in time.
    """

    async def open(self) -> None:
        """Connect, and create missing parts of the schema and missing indexes.

        Raises:
            StoreMisconfiguredError: if the database cannot keep the framework's promises (a standalone MongoDB).
        """
        ...

    async def close(self) -> None: ...

    async def ping(self) -> None:
        """Check quickly that the store can be written to; if not, raise `StoreUnavailableError`."""
        ...

    async def inspect(self) -> StoreReport:
        """Versions, configuration, and differences from the expected indexes, for `doctor`. Works without `open`."""
        ...

    def now(self) -> datetime:
        """The time of the store's clock, UTC in whole milliseconds; an estimate if the clock is on another machine."""
        ...
