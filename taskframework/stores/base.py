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

#: Tasks that one search looks through.
SEARCHED = 5_000


@dataclass(frozen=True, slots=True)
class Inserted:
    """The result of an insert: the task that is there now, and whether this call put it there."""

    task: Task
    is_new: bool


@dataclass(frozen=True, slots=True)
class DueTask:
    """A task that a driver has found: the little that repairs judge by, so that a look reads no whole tasks."""

    task_id: str
    task_type: str
    #: That of its priority; a retry may travel in another one.
    lane: Priority
    status: TaskStatus
    dispatch_epoch: int
    #: How often it was dispatched or left alone in this epoch; 0 means that no message is known to be there.
    dispatches: int
    fencing_token: int
    crashes: int
    not_before: datetime
    #: The time of the driver.
    due: datetime


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What `doctor` shows of a store: facts, and problems with their remedy."""

    facts: dict[str, str]
    problems: tuple[str, ...]


class TaskWrites(Protocol):
    """How tasks come in and change.

    A write that raised `StoreUnavailableError` may still have been applied. With a worker's transition the caller finds
    out: it asks for the same one again, and after None `Transition.won` tells from the task, by its claim id, whether
    the first was applied. A store may repeat a write and read it back before it raises; nobody relies on that.
    """

    async def insert(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        """Store new tasks durably (majority), each by itself. Concurrent calls with one task are written together.

        Returns:
            For each task, in the order given, the one that is there now, or why it could not be stored. That is a task
            with the same id if there was one; a store that an earlier release still writes to may also return one with
            another id and the same idempotency key.
        """
        ...

    async def apply(self, transition: Transition) -> Task | None:
        """Make one guarded move.

        Concurrent calls of one group are written together.

        Returns:
            The task after the move, or None when the guard refused it. A worker's move that the task shows as made
            already (`Transition.won`) may be answered with the task, since its reply may be what was lost.
        """
        ...

    async def mark(self, *marks: Mark) -> None:
        """Move drivers of tasks, together where that is possible; says nothing about whether they still applied.

        Raises:
            ValueNotStorableError: if one of them can never be written; the others may be.
        """
        ...


class Leases(Protocol):
    """What a worker asks for the attempts it runs."""

    async def renew(self, fences: Sequence[Fence], lease: timedelta) -> dict[Fence, CancelRequest | None]:
        """Make `RenewLease` for all attempts of a worker, with one write and one read.

        Returns:
            The leases that are still held, and who wants to stop them. What is missing is lost.
        """
        ...

    async def cancel_requests(self, fences: Sequence[Fence]) -> dict[Fence, CancelRequest]:
        """Which of these attempts somebody wants to stop; one cheap read, asked every second.

        Says nothing about leases: an attempt that lost its own is missing, as are those that may go on.
        """
        ...

    async def claims_of(self, task_ids: Collection[str]) -> dict[str, str]:
        """The claim ids of those of these tasks that run, by task."""
        ...


class TaskReads(Protocol):
    """Looking at tasks, on somebody's behalf."""

    async def get(self, task_id: str, scope: Scope) -> Task | None:
        """Read a task; one outside the scope is not there."""
        ...

    async def get_many(self, task_ids: Collection[str], scope: Scope) -> Mapping[str, Task]:
        """Read tasks; those that are not there, or outside the scope, are left out.

        Raises:
            TaskUnreadableError: if one of them can be read by a newer release only.
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
        """The same list if what it is filtered by has no index: a page looks through the next `SEARCHED` tasks only.

        So it may have fewer tasks than `limit`, or none, and others behind it.

        Raises:
            CursorInvalidError: if the cursor is not one of this list.
        """
        ...

    async def count_dead(self, scope: Scope, filter: TaskFilter, *, most: int) -> Sequence[DeadCount]:
        """Dead tasks by cause, type and hour: of the `most` that ended last, those that the filter lets through."""
        ...


class SubtaskReads(Protocol):
    """Looking at the sub-tasks of a task. Whoever may see the task may see them, so without a scope."""

    async def count_subtasks(self, round: RoundOfSubtasks) -> Mapping[TaskStatus, int]:
        """How many sub-tasks of a round are in each status, as a majority knows it; what is none is missing.

        One look at an index: it costs the same for each sub-task, however many there are.
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
    """Looking at ordered streams and the tasks of one; whose it is says its key, so without a scope."""

    async def list_stream(self, stream: StreamKey, *, limit: int, after_position: int = -1) -> Sequence[Task]:
        """Its tasks by position, from the first one after `after_position`."""
        ...

    async def stream_times(self, stream: StreamKey, *, limit: int, after_position: int = -1) -> Sequence[StreamTimes]:
        """The little of the same tasks that says how long one waits for those before them."""
        ...

    async def next_blocked(self, streams: Collection[StreamKey]) -> Mapping[StreamKey, Turn]:
        """The turns that the lowest BLOCKED positions of streams would have; of one where none is BLOCKED, nothing."""
        ...

    async def count_blocked(self, stream: StreamKey) -> int:
        """How many of its tasks wait for their turn."""
        ...

    async def halted_streams(self, limit: int) -> Sequence[StreamKey]:
        """Streams that halted, whoever's they are. Reads the records of all streams: not to be asked often."""
        ...


class Repairs(Protocol):
    """Finding what was interrupted, what is wrong and what is over. Nobody's in particular, so without a scope."""

    async def due(self, driver: Driver, limit: int, grace: timedelta = timedelta(0)) -> Sequence[DueTask]:
        """Tasks that this driver has due for longer than `grace`, the longest due first."""
        ...

    async def upcoming(self, driver: Driver, limit: int) -> Sequence[DueTask]:
        """Tasks that this driver has due later, and that nothing else holds back; the soonest first."""
        ...

    async def waiting_for(self, limit: str, most: int) -> Sequence[DueTask]:
        """Tasks that wait in the store because this limit let them not begin (`waiting_limit`), at most so many.

        Those of the high lane first; of a lane those first that have been claimable for longest. `due` is the time of
        their dispatch.
        """
        ...

    async def undriven(self, limit: int) -> Sequence[str]:
        """Ids of tasks that lack a driver they need (`missing_drivers`): nothing would ever move them on.

        There must be none. May read every live task: not to be asked often.
        """
        ...

    async def newest_running(self, task_type: str, lane: Priority) -> datetime | None:
        """Since when the youngest running task of this queue could be claimed (its `not_before`); None: none runs."""
        ...

    async def count_by_status(self) -> dict[TaskStatus, int]:
        """How many tasks there are in each status. COMPLETED may be the estimate of a server after a crash."""
        ...

    async def tally(self, crowd: Crowd, most: int, *, due_before: datetime, since: datetime | None = None) -> Tally:
        """Count a crowd by task type and lane.

        Args:
            crowd: which tasks.
            most: how many of them are looked at.
            due_before: those that could be claimed before this time are counted apart as well.
            since: only those whose time, by which the crowd runs, is not before this one.
        """
        ...

    async def purge(self, *, finished: timedelta | None, dead_letters: timedelta | None, limit: int) -> int:
        """Delete what ended longer ago than it is kept: completed and cancelled tasks after `finished`, failed ones
        and kept messages after `dead_letters`; None keeps for ever. A task that has a `purge_at` goes by that.

        A task with unpublished events stays, and so does a sub-task as long as its parent, and a parent as long as one
        of its sub-tasks. The idempotency key of a task goes before it, so that no key ever stands for a task that was
        deleted.

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
        """Put each of these there if nobody was faster: a new one where there is none, a changed one where the revision
        is still the one that was read. Each is won or lost by itself; concurrent calls are written together.

        Returns:
            Each record as it is stored now, with its new revision, or None where it was lost.

        Raises:
            ValueNotStorableError: if one of them can never be written; then none is.
        """
        ...

    async def change_record(self, change: RecordChange) -> Record:
        """Make one guarded write on a record, whoever else writes it at the same time.

        If its reply is lost it may have been made all the same, and made again it is made twice.

        Returns:
            The record after it.
        """
        ...

    async def take_positions(self, takes: Sequence[TakePositions]) -> Sequence[Record]:
        """`change_record` for positions in several streams, each by itself.

        Returns:
            The record of each some time after it; `TakePositions.first_in` says what was taken.
        """
        ...

    async def pass_turns(self, passes: Sequence[PassTurn]) -> Sequence[bool]:
        """`change_record` for turns of several streams, each by itself.

        Returns:
            For each whether the turn was passed on as it says, by this call or by another one.
        """
        ...

    async def delete_records(self, records: Sequence[Record]) -> int:
        """Delete those that nobody has written since they were read; how many those were."""
        ...

    async def list_records(self, kind: str, *, limit: int, after: str = "") -> Sequence[Record]:
        """Records of a kind by their ids, which follow `after`."""
        ...

    async def expired_records(self, limit: int) -> Sequence[Record]:
        """Records whose `expires_at` has come, the longest due first."""
        ...


class TaskStore(TaskWrites, Leases, TaskReads, SubtaskReads, StreamReads, Repairs, DeadMessages, Records, Protocol):
    """A database that holds tasks: what the parts above say, and its own life.

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
