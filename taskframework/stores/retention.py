"""Going through what has ended, a piece at a time.

Not everything that is old may go: a sub-task stays while its parent does. A look from the oldest on would find those
that stay again and again, and never what is behind them. So each look begins where the last one ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

#: Pieces of one call, so that it ends soon however many have to stay.
_PIECES = 10

Tie = TypeVar("Tie", int, str)


@dataclass(frozen=True, slots=True)
class Place(Generic[Tie]):
    """A task among those that have ended, by a time; the other value decides between two of one time."""

    at: datetime
    tie: Tie


@dataclass(frozen=True, slots=True)
class Piece(Generic[Tie]):
    """What one look did: how many are deleted, and where the next one begins; None if this was the end."""

    removed: int
    end: Place[Tie] | None


class Walk(Generic[Tie]):
    """Goes through the ended tasks again and again, and remembers how far it is."""

    def __init__(self) -> None:
        self._place: Place[Tie] | None = None

    async def go_on(self, look: Callable[[Place[Tie] | None, int], Awaitable[Piece[Tie]]], limit: int) -> int:
        """Delete at most `limit` tasks.

        Args:
            look: looks at so many tasks behind a place (None: at the oldest ones) and deletes what may go.
            limit: how many to delete.

        Returns:
            How many were deleted. Fewer than `limit` mean that nothing else may go, or that very many have to stay.
        """
        removed, may_begin_anew = 0, self._place is not None
        for _ in range(_PIECES):
            if removed == limit:
                break
            piece = await look(self._place, limit - removed)
            removed += piece.removed
            self._place = piece.end
            if piece.end is None:
                if not may_begin_anew:
                    break
                may_begin_anew = False
        return removed
