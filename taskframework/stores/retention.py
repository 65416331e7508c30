"""A walk through ended tasks, piece by piece.

Not every old task may be deleted: a sub-task stays while its parent does. If each look began at the oldest task, it
would find the tasks that stay again and again, and never reach the tasks after them. So each look begins where the last
look ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

#: Most pieces that one call looks at, so that it ends soon even if very many tasks have to stay.
_MAX_PIECES_PER_CALL = 30
#: How many families are remembered.
_MAX_FAMILIES = 10_000

Tie = TypeVar("Tie", int, str)


@dataclass(frozen=True, slots=True)
class Place(Generic[Tie]):
    """The place of a task in the order of ended tasks: a time, and a value that decides between tasks of equal time."""

    at: datetime
    tie: Tie


@dataclass(frozen=True, slots=True)
class Piece(Generic[Tie]):
    """The result of one look: how many tasks were deleted, and where it stopped; None if there are no more tasks."""

    removed: int
    end: Place[Tie] | None


class Walk(Generic[Tie]):
    """Goes through the ended tasks again and again, and remembers its place."""

    def __init__(self) -> None:
        self._place: Place[Tie] | None = None

    async def continue_walk(self, look: Callable[[Place[Tie] | None, int], Awaitable[Piece[Tie]]], limit: int) -> int:
        """Delete at most `limit` tasks.

        Args:
            look: looks at a number of tasks after a place (None: the oldest tasks), and deletes the tasks that may go.
            limit: the most tasks to delete.

        Returns:
            How many were deleted. If fewer than `limit`, no other task may go, or very many tasks have to stay.
        """
        removed, can_restart = 0, self._place is not None
        for _ in range(_MAX_PIECES_PER_CALL):
            if removed == limit:
                break
            piece = await look(self._place, limit - removed)
            removed += piece.removed
            self._place = piece.end
            if piece.end is None:
                if not can_restart:
                    break
                can_restart = False
        return removed


class FamiliesOver:
    """The parents below which the time of every task is over, as far as this process has found out.

    To find that out, all tasks of a family are read. They are deleted in many steps, and each step needs to know it. It
    stays true until the parent ends again: no task of an ended family begins again unless its parent does.
    """

    def __init__(self) -> None:
        self._ends = set[tuple[str, object]]()
        self._times: object = None

    def start_look(self, times: object) -> None:
        """Forget all, if the times for which tasks are kept have changed, or very many families are known."""
        if times != self._times or len(self._ends) > _MAX_FAMILIES:
            self._ends.clear()
        self._times = times

    def knows(self, parent: str, finished_at: object) -> bool:
        """Return whether this is known of the family of a parent that ended at this time."""
        return (parent, finished_at) in self._ends

    def add(self, parent: str, finished_at: object) -> None:
        self._ends.add((parent, finished_at))
