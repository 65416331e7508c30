"""Deleting what is over: the queries say what has to stay all the same."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from taskframework.stores.retention import Piece, Place, Walk
from taskframework.stores.sqlite import queries
from taskframework.stores.sqlite.connection import Database
from taskframework.stores.sqlite.records import forget_keys
from taskframework.stores.sqlite.rows import milliseconds, moment, to_json

#: A place before every task: none has ended before 1970.
_BEFORE_ALL = {"at": -1, "tie": 0}


class Purge:
    """Deletes ended tasks with their idempotency keys, and kept messages."""

    def __init__(self, database: Database) -> None:
        """Prepare; nothing is read yet."""
        self._database = database
        self._done = Walk[int]()
        self._dead = Walk[str]()
        self._own = Walk[int]()

    async def __call__(
        self, now: datetime, finished: timedelta | None, dead_letters: timedelta | None, limit: int
    ) -> int:
        """Delete at most `limit` of what is over for longer than it is kept; None keeps for ever."""
        done, dead = (None if kept is None else milliseconds(now - kept) for kept in (finished, dead_letters))
        values = {"done": done, "dead": dead, "now": milliseconds(now)}
        removed = await self._own.go_on(
            partial(self._look, queries.OVER_BEFORE, {**values, "until": values["now"]}), limit
        )
        if done is not None:
            look = partial(self._look, queries.DONE_BEFORE, {**values, "until": done})
            removed += await self._done.go_on(look, limit - removed)
        if dead is not None:
            look = partial(self._look, queries.DEAD_BEFORE, {**values, "until": dead})
            removed += await self._dead.go_on(look, limit - removed)
            removed += await self._database.execute(queries.PURGE_MESSAGES, (dead, limit - removed))
        return removed

    async def _look(self, query: str, values: dict[str, int | None], place: Place[Any] | None, most: int) -> Piece[Any]:
        begin = _BEFORE_ALL if place is None else {"at": milliseconds(place.at), "tie": place.tie}
        return await self._database.write(partial(_purge, query, {**values, **begin, "limit": most}))


def _purge(query: str, values: dict[str, Any], raw: sqlite3.Connection) -> Piece[Any]:
    found = raw.execute(query, values).fetchall()
    gone = [task for *task, _, _, has_to_stay in found if not has_to_stay]
    forget_keys(raw, [keyed for _, *keyed in gone])
    removed = raw.execute(queries.DELETE_TASKS, [to_json([number for number, *_ in gone])]).rowcount
    if len(found) < values["limit"]:
        return Piece(removed, None)
    *_, at, tie, _ = found[-1]
    return Piece(removed, Place(moment(at), tie))
