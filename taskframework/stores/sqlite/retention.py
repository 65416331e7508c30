"""Deletion of ended tasks and kept messages after their time, and the rules for ended tasks that have to stay."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from taskframework.clock import from_milliseconds, to_milliseconds
from taskframework.model.status import DEAD, FINAL, LIVE
from taskframework.stores.retention import FamiliesOver, Piece, Place, Walk
from taskframework.stores.sqlite.connection import Database
from taskframework.stores.sqlite.records import forget_keys
from taskframework.stores.sqlite.rows import DEAD as _DEAD
from taskframework.stores.sqlite.rows import DONE as _DONE
from taskframework.stores.sqlite.rows import to_json

#: The condition that the time of a task is over.
_IS_DUE = (
    "coalesce(CASE WHEN t.finished_at IS NULL THEN 0 WHEN t.purge_at IS NOT NULL THEN t.purge_at <= :now "
    f"ELSE t.finished_at <= CASE WHEN t.{_DEAD} THEN :dead ELSE :done END END, 0)"
)
_HAS_SUBTASKS = "EXISTS (SELECT 1 FROM tasks s WHERE s.parent_task_id = t.task_id)"
#: Each parent of the given ids that is stored: its end, its own parent, and whether its time is over.
_PARENTS = (
    f"SELECT t.task_id, t.finished_at, t.parent_task_id, {_IS_DUE} FROM tasks t "
    "WHERE t.task_id IN (SELECT value FROM json_each(:ids))"
)
_BELOW = "FROM tasks t INDEXED BY tasks_planned_in_status WHERE t.parent_task_id = :parent"
#: Whether the time of some sub-task is not over. In families that stay, most often one that failed or is live stays, so
#: these are looked for first.
_HAS_UNDUE_SUBTASK = [
    f"SELECT EXISTS (SELECT 1 {_BELOW} AND t.status IN ({', '.join(map(repr, sorted(map(str, statuses))))}) "
    f"AND NOT {_IS_DUE})"
    for statuses in (LIVE | DEAD, FINAL - DEAD)
]
_PARENTS_BELOW = f"SELECT t.task_id, t.finished_at {_BELOW} AND {_HAS_SUBTASKS}"
# A task of a stream stays while an earlier task is live, because no reader of the results can have read it yet.
_FOLLOWS_LIVE_TASK = (
    "(t.stream_key IS NOT NULL AND EXISTS (SELECT 1 FROM tasks e INDEXED BY tasks_in_stream "
    "WHERE e.user_id = t.user_id AND e.stream_key = t.stream_key AND e.stream_position < t.stream_position "
    "AND e.finished_at IS NULL))"
)


def _ended_tasks_query(time: str, tie: str, index: str, *, only: str, stays: str) -> str:
    """Ended tasks with published events only, in the order of a time, after a place; and whether each must stay."""
    return (
        f"SELECT number, task_id, user_id, idempotency_key, parent_task_id, {time}, {tie}, "
        f"{stays} OR {_HAS_SUBTASKS} OR {_FOLLOWS_LIVE_TASK} "
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
        self._families = FamiliesOver()

    async def __call__(
        self, now: datetime, finished: timedelta | None, dead_letters: timedelta | None, limit: int
    ) -> int:
        """Delete at most `limit` tasks and messages that are over for longer than they are kept; None keeps forever."""
        done, dead = (None if kept is None else to_milliseconds(now - kept) for kept in (finished, dead_letters))
        self._families.start_look((finished, dead_letters))
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
        return await self._database.write(partial(_purge, query, {**values, **begin, "limit": most}, self._families))


def _purge(query: str, values: dict[str, Any], families: FamiliesOver, raw: sqlite3.Connection) -> Piece[Any]:
    found = raw.execute(query, values).fetchall()
    staying = _staying(raw, {parent for *_, parent, _, _, _ in found if parent is not None}, values, families)
    gone = [task for *task, parent, _, _, has_to_stay in found if not (has_to_stay or parent in staying)]
    forget_keys(raw, [keyed for _, *keyed in gone])
    removed = raw.execute(DELETE_TASKS, [to_json([number for number, *_ in gone])]).rowcount
    if len(found) < values["limit"]:
        return Piece(removed, None)
    *_, at, tie, _ = found[-1]
    return Piece(removed, Place(from_milliseconds(at), tie))


def _staying(raw: sqlite3.Connection, parents: set[str], values: dict[str, Any], families: FamiliesOver) -> set[str]:
    """Those of these parents that are stored and stay: the time of some task of their family is not over."""
    if not parents:
        return set()
    stored = raw.execute(_PARENTS, {**values, "ids": to_json(sorted(parents))}).fetchall()
    above = _staying(raw, {parent for *_, parent, _ in stored if parent is not None}, values, families)
    return {
        task_id
        for task_id, finished_at, parent, is_due in stored
        if not is_due or parent in above or not _is_over(raw, task_id, finished_at, values, families)
    }


def _is_over(
    raw: sqlite3.Connection, parent: str, finished_at: int, values: dict[str, Any], families: FamiliesOver
) -> bool:
    """Return whether the time of every task below this one, which ended at `finished_at`, is over."""
    if families.knows(parent, finished_at):
        return True
    below = {**values, "parent": parent}
    if any(raw.execute(query, below).fetchone()[0] for query in _HAS_UNDUE_SUBTASK):
        return False
    parents = raw.execute(_PARENTS_BELOW, below).fetchall()
    if not all(_is_over(raw, task_id, ended_at, values, families) for task_id, ended_at in parents):
        return False
    families.add(parent, finished_at)
    return True
