"""The only way to move a task: the guarded write, its failpoint, and its event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from taskframework import failpoint
from taskframework.bus import EventBus
from taskframework.errors import TaskUnreadableError
from taskframework.leaving_out import leave_out
from taskframework.model.events import EVENT_BY_ENTRY_TYPE, TaskEvent, event_of_move
from taskframework.model.scope import EVERYONE
from taskframework.model.task import Task
from taskframework.model.task_fields import HistoryEntry
from taskframework.model.transitions import Move
from taskframework.stores.base import TaskStore


@dataclass(frozen=True, slots=True)
class Made:
    """A move was made: the task as it was read after the move, and the entry that the move appended to the history.

    If an earlier request with a lost reply made the move, the task may have moved on since.
    """

    task: Task
    entry: HistoryEntry


@dataclass(frozen=True, slots=True)
class NotMade:
    """The guard refused a move, and no earlier request made it either; `present` is the task as it is now."""

    present: Task | None
    #: Whether the task exists, but only a newer release can read it, so that `present` is None.
    is_unreadable: bool = False


class TaskMoves:
    """Makes the moves of tasks; every move goes through here. Inserts, marks and renewals of leases are no moves."""

    def __init__(self, store: TaskStore, bus: EventBus) -> None:
        self._store = store
        self._bus = bus

    async def make(self, move: Move) -> Task | None:
        """Make a move and publish its event.

        Returns:
            The task after the move, or None if the guard refused the move.

        Raises:
            StoreUnavailableError: if the store does not answer; the move may have been made.
        """
        task = await self._apply(move)
        if task is not None and (event := event_of_move(move, task)) is not None:
            await self._publish_event(event)
        return task

    async def make_once(self, move: Move, entry_in: Callable[[Task], HistoryEntry]) -> Made | NotMade:
        """Make a claim or a settlement of a worker, which the worker repeats after a lost reply; otherwise as `make`.

        A move that an earlier request made is recognised by its claim id, and its event is published now.

        Args:
            move: a move that `Move.was_applied` can recognise.
            entry_in: finds the entry that the move appended to the history; the task may have moved on since.

        Raises:
            StoreUnavailableError: as `make`; call again with the same move.
        """
        try:
            task = await self._apply(move)
            if task is None:
                task = await self._store.get(move.task_id, EVERYONE)
                if task is None or not move.was_applied(task):
                    return NotMade(task)
        except TaskUnreadableError:
            return NotMade(None, is_unreadable=True)
        entry = entry_in(task)
        await self._publish_event(EVENT_BY_ENTRY_TYPE[entry.type](task))
        return Made(task, entry)

    async def repair(self, move: Move) -> Task | None:
        """Make a move as `make`, but leave a task of a newer release alone: the processes of that release repair it."""
        try:
            return await self.make(move)
        except TaskUnreadableError as error:
            leave_out(error)
            return None

    async def repair_all(self, moves: Iterable[Move]) -> Sequence[Task | None]:
        """`repair` all at once: thousands may be due together, and each write waits for a majority of the database."""
        return await asyncio.gather(*map(self.repair, moves))

    async def _apply(self, move: Move) -> Task | None:
        task = await self._store.apply(move)
        await failpoint.reached(move.failpoint)
        return task

    async def _publish_event(self, event: TaskEvent) -> None:
        """Publish the event of a move. A process may die before this, so all work of listeners needs a driver too."""
        await self._bus.publish(event)
