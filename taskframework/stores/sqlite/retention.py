"""Deletion of ended tasks and kept messages after their time, and the rules for ended tasks that have to stay."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from taskframework.clock import from_milliseconds, to_milliseconds
from taskframework.stores.retention import Piece, Place, Walk
from taskframework.stores.sqlite.connection import Database
from taskframework.stores.sqlite.records import forget_keys
from taskframework.stores.sqlite.rows import DEAD as _DEAD
from taskframework.stores.sqlite.rows import DONE as _DONE
from taskframework.stores.sqlite.rows import to_json

# A sub-task stays while its parent is stored and not due to be deleted; a parent stays while it has sub-tasks.
_PARENT_STAYS = (
    "EXISTS (SELECT 1 FROM tasks p WHERE p.task_id = t.parent_task_id AND NOT coalesce("
    "CASE WHEN p.finished_at IS NULL THEN 0 WHEN p.purge_at IS NOT NULL THEN p.purge_at <= :now "
    f"ELSE p.finished_at <= CASE WHEN p.{_DEAD} THEN :dead ELSE :done END END, 0))"
)
_HAS_SUBTASKS = "EXISTS (SELECT 1 FROM tasks s WHERE s.parent_task_id = t.task_id)"
# A task of a stream stays while an earlier task is live, because no reader of the results can have read it yet.
_FOLLOWS_LIVE_TASK = (
    "(t.stream_key IS NOT NULL AND EXISTS (SELECT 1 FROM tasks e INDEXED BY tasks_in_stream "
    "WHERE e.user_id = t.user_id AND e.stream_key = t.stream_key AND e.stream_position < t.stream_position "
    "AND e.finished_at IS NULL))"
)


def _ended_tasks_query(time: str, tie: str, index: str, *, only: str, stays: str) -> str:
    """Ended tasks with published events only, in the order of a time, after a place; and whether each must stay."""
    return (
        f"SELECT number, task_id, user_id, idempotency_key, {time}, {tie}, "
        f"{stays} OR {_PARENT_STAYS} OR {_HAS_SUBTASKS} OR {_FOLLOWS_LIVE_TASK} "
        f"FROM tasks t INDEXED BY {index} WHERE {only} AND {time} <= :until AND publish_at IS NULL "
        f"AND ({time}, {tie}) > (:at, :tie) ORDER BY {time}, {tie} LIMIT :limit"
    )


_HAS_OWN_TIME = "purge_at IS NOT NULL"
DONE_BEFORE = _ended_tasks_query("finished_at", "number", "tasks_done", only=_DONE, stays=_HAS_OWN_TIME)
DEAD_BEFORE = _ended_tasks_query("finished_at", "task_id", "tasks_dead", only=_DEAD, stays=_HAS_OWN_TIME)
OVER_BEFORE = _ended_tasks_query("purge_at", "number", "tasks_to_purge", only="finished_at IS NOT NULL", stays="0")
DELETE_TASKS = "DELETE FROM tasks WHERE number IN (SELECT value FROM json_each(?))"
PURGE_MESSAGES = (
    "DELETE FROM dead_messages WHERE id IN "
    "(SELECT id FROM dead_messages INDEXED BY dead_messages_newest WHERE at <= ? LIMIT ?)"
)

#: A place before every task, because no task has ended before 1970.
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
        """Delete at most `limit` tasks and messages that are over for longer than they are kept; None keeps forever."""
        done, dead = (None if kept is None else to_milliseconds(now - kept) for kept in (finished, dead_letters))
        values = {"done": done, "dead": dead, "now": to_milliseconds(now)}
        removed = await self._own.continue_walk(
            partial(self._look, OVER_BEFORE, {**values, "until": values["now"]}), limit
        )
        if done is not None:
            look = partial(self._look, DONE_BEFORE, {**values, "until": done})
            removed += await self._done.continue_walk(look, limit - removed)
        if dead is not None:
            look = partial(self._look, DEAD_BEFORE, {**values, "until": dead})
            removed += await self._dead.continue_walk(look, limit - removed)
            removed += await self._database.execute(PURGE_MESSAGES, (dead, limit - removed))
        return removed

    async def _look(self, query: str, values: dict[str, int | None], place: Place[Any] | None, most: int) -> Piece[Any]:
        begin = _BEFORE_ALL if place is None else {"at": to_milliseconds(place.at), "tie": place.tie}
        return await self._database.write(partial(_purge, query, {**values, **begin, "limit": most}))


def _purge(query: str, values: dict[str, Any], raw: sqlite3.Connection) -> Piece[Any]:
    found = raw.execute(query, values).fetchall()
    gone = [task for *task, _, _, has_to_stay in found if not has_to_stay]
    forget_keys(raw, [keyed for _, *keyed in gone])
    removed = raw.execute(DELETE_TASKS, [to_json([number for number, *_ in gone])]).rowcount
    if len(found) < values["limit"]:
        return Piece(removed, None)
    *_, at, tie, _ = found[-1]
    return Piece(removed, Place(from_milliseconds(at), tie))
