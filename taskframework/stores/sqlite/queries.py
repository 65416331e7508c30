"""Every query of the store. Each one is answered by an index of the schema; a test looks at the plans."""

from __future__ import annotations

from collections.abc import Iterable

from taskframework.model.query import Cursor, TaskFilter
from taskframework.stores.sqlite.rows import FIXED, MOVING, TaskRow, Value, milliseconds

_TASKS = f"SELECT {', '.join(TaskRow._fields)} FROM tasks t JOIN task_parameters p USING (number)"

#: Ids travel as one JSON array: the text of the statement stays the same, and no limit on their number.
TASKS_BY_ID = f"{_TASKS} WHERE t.task_id IN (SELECT value FROM json_each(?))"
TASK = f"{_TASKS} WHERE t.task_id = ?1 AND (?2 IS NULL OR t.user_id = ?2)"

INSERT_TASK = f"INSERT INTO tasks ({', '.join((*FIXED, *MOVING))}) VALUES ({', '.join('?' * len((*FIXED, *MOVING)))})"
INSERT_PARAMETERS = "INSERT INTO task_parameters SELECT number, ? FROM tasks WHERE task_id = ?"
UPDATE_TASK = f"UPDATE tasks SET {', '.join(f'{name} = ?' for name in MOVING)} WHERE task_id = ?"

# The status lists stand here letter for letter as in the partial indexes; SQLite uses those for the same words only.
_CLAIMABLE = "status IN ('QUEUED', 'RETRYING')"
_DEAD = "status IN ('FAILED', 'DEAD_LETTER')"

DUE_FOR_DISPATCH = (
    "SELECT task_id, task_type, lane, dispatch_epoch FROM tasks "
    f"WHERE next_dispatch_at <= ?1 AND not_before <= ?1 AND +{_CLAIMABLE} ORDER BY next_dispatch_at LIMIT ?2"
)
COUNT_DUE = f"SELECT count(*) FROM tasks WHERE {_CLAIMABLE} AND task_type = ? AND lane = ? AND not_before <= ?"
EXPIRED_LEASES = (
    "SELECT task_id, fencing_token, crashes FROM tasks WHERE lease_expires_at <= ? ORDER BY lease_expires_at LIMIT ?"
)
PAST_DEADLINE = "SELECT task_id FROM tasks WHERE deadline_at <= ? ORDER BY deadline_at LIMIT ?"
UNPUBLISHED = f"{_TASKS} WHERE t.publish_at <= ? ORDER BY t.publish_at LIMIT ?"
COUNT_BY_STATUS = "SELECT status, count(*) FROM tasks GROUP BY status"
COUNT_UNDRIVEN = (
    f"SELECT count(*) FROM tasks WHERE ({_CLAIMABLE} AND next_dispatch_at IS NULL) "
    "OR (status = 'RUNNING' AND lease_expires_at IS NULL)"
)

_MESSAGES = "SELECT id, body, headers, queue, reason, at, task_id, task_type FROM dead_messages"
KEEP_MESSAGE = (
    "INSERT INTO dead_messages (id, body, headers, queue, reason, at, task_id, task_type) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
)
MESSAGE = f"{_MESSAGES} WHERE id = ?"
DELETE_MESSAGE = "DELETE FROM dead_messages WHERE id = ?"

Query = tuple[str, list[Value]]


def tasks_by_key(keys: Iterable[tuple[str, str]]) -> Query:
    """The tasks of some idempotency keys, each one with its user."""
    values = [value for key in keys for value in key]
    pairs = ", ".join(["(?, ?)"] * (len(values) // 2))
    wanted = f"(t.user_id, t.idempotency_key) IN (VALUES {pairs})"
    return f"{_TASKS} WHERE {wanted} AND t.idempotency_key IS NOT NULL", list(values)


def list_tasks(filter: TaskFilter, limit: int, cursor: str | None) -> Query:
    """One entry more than the page: it tells whether another page follows."""
    wanted: dict[str, Value] = {
        "t.user_id = ?": filter.owner,
        "t.status = ?": filter.status.value if filter.status else None,
        "t.task_type = ?": filter.task_type,
        "t.parent_task_id = ?": filter.parent_task_id,
    }
    return _page(_TASKS, wanted, ("t.created_at", "t.task_id"), limit, cursor)


def list_dead_tasks(owner: str | None, limit: int, cursor: str | None) -> Query:
    return _page(f"{_TASKS} WHERE t.{_DEAD}", {"t.user_id = ?": owner}, ("t.finished_at", "t.task_id"), limit, cursor)


def list_dead_messages(limit: int, cursor: str | None) -> Query:
    return _page(_MESSAGES, {}, ("at", "id"), limit, cursor)


def _page(select: str, wanted: dict[str, Value], order: tuple[str, str], limit: int, cursor: str | None) -> Query:
    conditions = {condition: value for condition, value in wanted.items() if value is not None}
    clauses, values = list(conditions), list(conditions.values())
    if cursor is not None:
        place = Cursor.decode(cursor)
        clauses.append(f"({', '.join(order)}) < (?, ?)")
        values += [milliseconds(place.at), place.id]
    glue = " AND " if " WHERE " in select else " WHERE "
    where = glue + " AND ".join(clauses) if clauses else ""
    ordering = ", ".join(f"{name} DESC" for name in order)
    return f"{select}{where} ORDER BY {ordering} LIMIT ?", [*values, limit + 1]
