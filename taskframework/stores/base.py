"""The store port: everything the framework asks of a database.

A store keeps one document per task and changes it only by the transitions of `taskframework.model`, each one guarded
write. Its own clock decides every lease and due time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from taskframework.model.marks import Mark, ReserveDispatch
from taskframework.model.query import DeadMessage, Page, TaskFilter
from taskframework.model.status import Priority, TaskStatus
from taskframework.model.task import CancelRequest, Task
from taskframework.model.transitions import Fence, Transition
from taskframework.tasks.declared import TaskDeclaration


@dataclass(frozen=True, slots=True)
class Inserted:
    """The result of an insert: the task that is there now, and whether this call put it there."""

    task: Task
    is_new: bool


@dataclass(frozen=True, slots=True)
class Renewal:
    """A lease that was extended, and whether somebody wants the task to stop."""

    cancel: CancelRequest | None


@dataclass(frozen=True, slots=True)
class DueTask:
    """A task that is due for dispatch: what the sweeper needs to judge and reserve it."""

    task_id: str
    task_type: str
    lane: Priority
    dispatch_epoch: int
    #: How often it was dispatched or left alone in this epoch; 0 means that no message is known to be there.
    dispatches: int
    next_dispatch_at: datetime
    not_before: datetime


@dataclass(frozen=True, slots=True)
class ExpiredLease:
    """A running task whose lease is over."""

    task_id: str
    fencing_token: int
    crashes: int


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What `doctor` shows of a store: facts, and problems with their remedy."""

    facts: dict[str, str]
    problems: tuple[str, ...]


class TaskStore(Protocol):
    """A database that holds tasks.

    Every method raises `StoreUnavailableError` when the database cannot be reached in time. A write that raised may
    still have been applied. With a worker's transition the caller finds out: it asks for the same one again, and after
    None `Transition.won` tells from the task, by its claim id, whether the first was applied. A store may repeat a
    write and read it back before it raises; nobody relies on that.
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

    async def insert(self, task: Task) -> Inserted:
        """Store a new task durably (majority).

        A task with the same id, or of the same user with the same idempotency key, is returned instead. Concurrent
        calls are written together.
        """
        ...

    async def insert_many(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        """`insert` for many at once: for each, in the order given, its result or what `insert` would have raised."""
        ...

    async def apply(self, transition: Transition) -> Task | None:
        """Make one guarded move.

        Concurrent calls of one group are written together.

        Returns:
            The task after the move, or None when the guard refused it.
        """
        ...

    async def mark(self, *marks: Mark) -> None:
        """Move drivers of tasks, together where that is possible; says nothing about whether they still applied.

        Raises:
            ValueNotStorableError: if one of them can never be written; the others may be.
        """
        ...

    async def renew(self, worker_id: str, fences: Sequence[Fence], lease: timedelta) -> dict[str, Renewal]:
        """Extend all leases of a worker with one write and one read.

        Returns:
            By task id, the leases that are still held. What is missing is lost.
        """
        ...

    async def cancel_requests(self, fences: Sequence[Fence]) -> dict[str, CancelRequest]:
        """Which of these attempts somebody wants to stop, by task id; one cheap read, asked every second.

        Says nothing about leases: an attempt that lost its own is missing, as are those that may go on.
        """
        ...

    async def get(self, task_id: str, *, owner: str | None = None) -> Task | None:
        """Read a task; with an owner, another user's task is not there."""
        ...

    async def list_tasks(self, filter: TaskFilter, *, limit: int, cursor: str | None = None) -> Page[Task]:
        """Tasks from the newest to the oldest.

        Raises:
            CursorInvalidError: if the cursor is not one of this list.
        """
        ...

    async def due_for_dispatch(self, limit: int) -> Sequence[DueTask]:
        """Tasks whose `next_dispatch_at` and `not_before` have passed, the longest due first."""
        ...

    async def reserve(self, *reservations: ReserveDispatch) -> Sequence[Task]:
        """Reserve due tasks for dispatch, together where that is possible.

        Returns:
            Those that are reserved now. Of two calls at the same moment both may get a task: that costs a message.
        """
        ...

    async def newest_running(self, task_type: str, lane: Priority) -> datetime | None:
        """Since when the youngest running task of this queue could be claimed (its `not_before`); None: none runs."""
        ...

    async def expired_leases(self, grace: timedelta, limit: int) -> Sequence[ExpiredLease]:
        """Running tasks whose lease ended more than `grace` ago."""
        ...

    async def past_deadline(self, limit: int) -> Sequence[str]:
        """Ids of live tasks whose deadline has passed and that are not yet asked to stop."""
        ...

    async def unpublished(self, limit: int) -> Sequence[Task]:
        """Tasks with events whose relay time has come, the longest due first."""
        ...

    async def count_by_status(self) -> dict[TaskStatus, int]:
        """How many tasks there are in each status. COMPLETED may be the estimate of a server after a crash."""
        ...

    async def count_undriven(self) -> int:
        """Live tasks that nothing would ever move on; must be 0. May read every live task: not to be asked often."""
        ...

    async def forget_dispatches(self) -> None:
        """Make every claimable task due at its `not_before` again: the messages that were sent are known to be gone."""
        ...

    async def purge(self, *, finished: timedelta | None, dead_letters: timedelta | None, limit: int) -> int:
        """Delete what ended longer ago than it is kept: completed and cancelled tasks after `finished`, failed ones
        and kept messages after `dead_letters`; None keeps for ever. A task with unpublished events stays.

        Returns:
            How many were deleted, at most `limit`.
        """
        ...

    async def declare_task_types(self, declarations: Sequence[TaskDeclaration]) -> None:
        """Keep what is declared of these task types, instead of what was before."""
        ...

    async def task_types(self, names: Sequence[str] | None = None) -> Sequence[TaskDeclaration]:
        """What is declared of the types of these names, in any order; None asks for all."""
        ...

    async def keep_dead_message(self, message: DeadMessage) -> None:
        """Keep a message that nobody can read or that has no task. The same id is kept once.

        Concurrent calls are written together.
        """
        ...

    async def list_dead_tasks(self, *, owner: str | None, limit: int, cursor: str | None) -> Page[Task]:
        """Tasks that are FAILED or DEAD_LETTER, by the time they ended, newest first."""
        ...

    async def list_dead_messages(self, *, limit: int, cursor: str | None) -> Page[DeadMessage]:
        """Kept messages, newest first."""
        ...

    async def get_dead_message(self, message_id: str) -> DeadMessage | None: ...

    async def delete_dead_message(self, message_id: str) -> bool:
        """Forget a kept message; False when it was not there."""
        ...
