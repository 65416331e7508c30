"""The store port: everything the framework asks of a database.

A store keeps one document per task and changes it only by the transitions of `taskframework.model`, each one guarded
write. Its own clock decides every lease and due time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
from taskframework.model.task import CancelRequest, Task
from taskframework.model.traffic import Crowd, Tally
from taskframework.model.transitions import Fence, Transition

#: How many tasks one page of a search looks through.
SEARCHED = 5_000


@dataclass(frozen=True, slots=True)
class Inserted:
    """The result of an insert: the task that is there now, and whether this call put it there."""

    task: Task
    is_new: bool


@dataclass(frozen=True, slots=True)
class DueTask:
    """A task that a driver has found: only the fields that repairs need, so that a look reads no whole tasks."""

    task_id: str
    task_type: str
    #: The lane of its priority; the message of a retry may travel in another one.
    lane: Priority
    status: TaskStatus
    dispatch_epoch: int
    #: How often in this epoch it was dispatched, or left alone because its message seemed to be there. 0: there is no
    #: message.
    dispatches: int
    fencing_token: int
    crashes: int
    not_before: datetime
    #: The time of the driver that found it.
    due: datetime


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What `doctor` shows of a store: facts, and problems with their remedy."""

    facts: dict[str, str]
    problems: tuple[str, ...]


class TaskWrites(Protocol):
    """How tasks come in and change.

    A write that raised `StoreUnavailableError` may still have been applied. For a worker's transition the caller finds
    out by making the same one again: if that is refused, `Transition.won` tells from the task, by its claim id, whether
    the first one was applied. A store may repeat a write and read it back before it raises; nobody relies on that.
    """

    async def insert(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        """Store new tasks durably (majority), each by itself. Concurrent calls with one task are written together.

        Returns:
            For each task, in the order given, the task that is stored now, or why it could not be stored. If there was
            a task with the same id, it is that one. While an earlier release still writes to the store, it may also be
            a task with another id and the same idempotency key.
        """
        ...

    async def apply(self, transition: Transition) -> Task | None:
        """Make one guarded move.

        Concurrent calls of one group are written together.

        Returns:
            The task after the move, or None when the guard refused it. For a repeated move of a worker that was made
            before (`Transition.won`), a store may return the task instead of None.
        """
        ...

    async def mark(self, *marks: Mark) -> None:
        """Make marks, together where that is possible. Does not tell whether they still applied.

        Raises:
            ValueNotStorableError: if one of them can never be written; the others may be.
        """
        ...


class Leases(Protocol):
    """What a worker asks for the attempts it runs."""

    async def renew(self, fences: Sequence[Fence], lease: timedelta) -> dict[Fence, CancelRequest | None]:
        """Make `RenewLease` for all attempts of a worker, with one write and one read.

        Returns:
            The fences whose leases are still held, each with the cancel request if there is one. A fence that is
            missing has lost its lease.
        """
        ...

    async def cancel_requests(self, fences: Sequence[Fence]) -> dict[Fence, CancelRequest]:
        """Which of these attempts somebody wants to stop; one cheap read, made every second.

        Says nothing about leases: attempts that may go on are missing, and those that lost their lease are too.
        """
        ...

    async def claims_of(self, task_ids: Collection[str]) -> dict[str, str]:
        """The claim ids of those of these tasks that run, by task."""
        ...


class TaskReads(Protocol):
    """Looking at tasks, on somebody's behalf."""

    async def get(self, task_id: str, scope: Scope) -> Task | None:
        """Read a task; None if there is none, or it is outside the scope."""
        ...

    async def get_many(self, task_ids: Collection[str], scope: Scope) -> Mapping[str, Task]:
        """Read tasks; those that are not there, or outside the scope, are left out.

        Raises:
            TaskUnreadableError: if only a newer release can read one of them.
        """
        ...

    async def list_tasks(
        self, scope: Scope, filter: TaskFilter, *, limit: int, cursor: str | None = None
    ) -> Page[Task]:
        """Tasks from the newest to the oldest, by the time that the filter says.

        Raises:
            CursorInvalidError: if the cursor is not one of this list.
        """
        ...

    async def search_tasks(
        self, scope: Scope, filter: TaskFilter, *, limit: int, cursor: str | None = None
    ) -> Page[Task]:
        """The same list, for a filter that no index helps with: a page looks through the next `SEARCHED` tasks only.

        So a page may have fewer tasks than `limit`, or none, although more pages follow.

        Raises:
            CursorInvalidError: if the cursor is not one of this list.
        """
        ...

    async def count_dead(self, scope: Scope, filter: TaskFilter, *, most: int) -> Sequence[DeadCount]:
        """Count dead tasks by cause, type and hour: those of the last `most` that the filter lets through."""
        ...


class SubtaskReads(Protocol):
    """Looking at the sub-tasks of a task. Without a scope: whoever may see the task may see them."""

    async def count_subtasks(self, round: RoundOfSubtasks) -> Mapping[TaskStatus, int]:
        """How many sub-tasks of a round are in each status, as a majority knows it; a status without any is missing.

        Reads an index only, so the cost grows with the number of sub-tasks and not with their size.
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
    """Looking at ordered streams and their tasks. Without a scope: the `StreamKey` names the owner."""

    async def list_stream(self, stream: StreamKey, *, limit: int, after_position: int = -1) -> Sequence[Task]:
        """Its tasks by position, from the first one after `after_position`."""
        ...

    async def stream_times(self, stream: StreamKey, *, limit: int, after_position: int = -1) -> Sequence[StreamTimes]:
        """The times of the same tasks, by which gaps before them are judged."""
        ...

    async def next_blocked(self, streams: Collection[StreamKey]) -> Mapping[StreamKey, Turn]:
        """For each stream the turn of its lowest BLOCKED task; a stream without one is missing."""
        ...

    async def count_blocked(self, stream: StreamKey) -> int:
        """How many of its tasks wait for their turn."""
        ...

    async def halted_streams(self, limit: int) -> Sequence[StreamKey]:
        """Streams that halted, whoever's they are. Reads the records of all streams: not to be asked often."""
        ...


class Repairs(Protocol):
    """Finding what was interrupted, what is wrong and what is over. Without a scope: repairs serve all users."""

    async def due(self, driver: Driver, limit: int, grace: timedelta = timedelta(0)) -> Sequence[DueTask]:
        """Tasks whose time of this driver passed more than `grace` ago; the earliest time first."""
        ...

    async def upcoming(self, driver: Driver, limit: int) -> Sequence[DueTask]:
        """Tasks whose time of this driver is to come, and that nothing else holds back; the earliest time first."""
        ...

    async def put_off(self, task_type: str, since: datetime, until: datetime, limit: int) -> Sequence[DueTask]:
        """Tasks of a type that could be claimed and have no message, and whose dispatch was put off to a time from
        `since` to `until`; the earliest time first. Reads what is to be dispatched in that time, of all types.
        """
        ...

    async def waiting_for(self, limit: str, most: int) -> Sequence[DueTask]:
        """At most `most` tasks that wait in the store because this limit did not let them begin (`waiting_limit`).

        The high lane comes first; within a lane, the task that has been claimable longest. `due` is the time of their
        dispatch.
        """
        ...

    async def undriven(self, limit: int) -> Sequence[str]:
        """Ids of tasks that lack a driver they need (`missing_drivers`): nothing would ever move them on.

        There must be none. May read every live task, so it is not to be called often.
        """
        ...

    async def newest_running(self, task_type: str, lane: Priority) -> datetime | None:
        """The `not_before` of the task of this queue that was created last among those that run; None: none runs."""
        ...

    async def count_by_status(self) -> dict[TaskStatus, int]:
        """How many tasks there are in each status. After a crash of the server the number of COMPLETED is estimated."""
        ...

    async def tally(self, crowd: Crowd, most: int, *, due_before: datetime, since: datetime | None = None) -> Tally:
        """Count a crowd by task type and lane.

        Args:
            crowd: which tasks.
            most: at most this many of them are looked at.
            due_before: those that could be claimed before this time are also counted by themselves.
            since: only those whose time, by which the crowd is ordered, is this one or later.
        """
        ...

    async def purge(self, *, finished: timedelta | None, dead_letters: timedelta | None, limit: int) -> int:
        """Delete what ended longer ago than it is kept: completed and cancelled tasks after `finished`, failed ones
        and kept messages after `dead_letters`; None keeps for ever. For a task with a `purge_at` that time counts.

        A task with unpublished events stays. A sub-task stays as long as its parent, a parent as long as one of its
        sub-tasks, and a task of a stream as long as an earlier one of it is live. The idempotency key of a task is
        deleted before the task, so that no key stands for a deleted task.

        Returns:
            How many were deleted, at most `limit`.
        """
        ...

    async def finished_at(self, task_ids: Collection[str]) -> dict[str, datetime | None]:
        """When these tasks ended, None for those that are live; a task that is not there is missing."""
        ...


class DeadMessages(Protocol):
    """Messages that nobody can read or that have no task. They belong to no user: only operators see them."""

    async def keep_dead_message(self, message: DeadMessage) -> None:
        """Keep a message. The same id is kept once; concurrent calls are written together."""
        ...

    async def list_dead_messages(self, *, limit: int, cursor: str | None) -> Page[DeadMessage]:
        """Kept messages, newest first."""
        ...

    async def outline_dead_messages(self, *, limit: int) -> Sequence[MessageOutline]:
        """Kept messages without what was in them, newest first."""
        ...

    async def get_dead_message(self, message_id: str) -> DeadMessage | None: ...

    async def delete_dead_message(self, message_id: str) -> bool:
        """Delete a message; whether it was there."""
        ...


class Records(Protocol):
    """What the framework keeps beside the tasks; see `taskframework.model.records`."""

    async def read_records(self, ids: Collection[str]) -> dict[str, Record]:
        """Those of these records that are there, by id."""
        ...

    async def write_records(self, records: Sequence[Record]) -> Sequence[Record | None]:
        """Write each of these if nobody was faster: a new one if there is none with its id, a changed one if the stored
        revision is still the one that was read. Each is won or lost by itself; concurrent calls are written together.

        Returns:
            Each record as it is stored now, with its new revision, or None where it was lost.

        Raises:
            ValueNotStorableError: if one of them can never be written; then none is.
        """
        ...

    async def change_record(self, change: RecordChange) -> Record:
        """Make one guarded write on a record, whoever else writes it at the same time.

        If the reply is lost, the change may have been made; if it is then repeated, it is made twice.

        Returns:
            The record after it.
        """
        ...

    async def take_positions(self, takes: Sequence[TakePositions]) -> Sequence[Record]:
        """`change_record` for positions in several streams, each by itself.

        Returns:
            For each its record, read at some time after the change; `TakePositions.first_in` says what was taken.
        """
        ...

    async def pass_turns(self, passes: Sequence[PassTurn]) -> Sequence[bool]:
        """`change_record` for turns of several streams, each by itself.

        Returns:
            For each whether the turn is passed on as it says, by this call or by another one.
        """
        ...

    async def delete_records(self, records: Sequence[Record]) -> int:
        """Delete those that nobody has written since they were read; how many those were."""
        ...

    async def list_records(self, kind: str, *, limit: int, after: str = "") -> Sequence[Record]:
        """Records of a kind whose ids come after `after`, in the order of their ids."""
        ...

    async def expired_records(self, limit: int) -> Sequence[Record]:
        """Records whose `expires_at` has come, the longest due first."""
        ...


class TaskStore(TaskWrites, Leases, TaskReads, SubtaskReads, StreamReads, Repairs, DeadMessages, Records, Protocol):
    """A database that holds tasks: all of the parts above, and opening and closing.

    Every method raises `StoreUnavailableError` when the database cannot be reached in time.
    """

    async def open(self) -> None:
        """Connect and make sure of schema and indexes.

        Raises:
            StoreMisconfiguredError: if the database cannot keep the promises (a standalone MongoDB).
        """
        ...

    async def close(self) -> None: ...

    async def ping(self) -> None:
        """Answer if the store can be written to, else raise `StoreUnavailableError`. Quick."""
        ...

    async def inspect(self) -> StoreReport:
        """Versions, set-up and drift, for `doctor`. Works without `open`."""
        ...

    def now(self) -> datetime:
        """The store's clock, UTC in whole milliseconds; an estimate where it is on another machine."""
        ...
