"""Every query of the store. An index of the schema answers each query; a test checks the query plans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from taskframework.model.drivers import DISPATCH, DRIVERS, Driver
from taskframework.model.status import TaskStatus
from taskframework.stores.sqlite.rows import (
    DRIVER_COLUMNS,
    FIXED,
    MOVING,
    UNUSUAL_FIXED,
    UNUSUAL_MOVING,
    TaskRow,
    Value,
)

_WHOLE_TASK = f"SELECT {', '.join(TaskRow._fields)} FROM"
_TASKS = f"{_WHOLE_TASK} tasks t JOIN task_parameters p USING (number)"


def indexed(index: str, *more: str) -> str:
    """Whole tasks by this index, with more columns. It is named so that statistics never change the plan."""
    columns = ", ".join((*TaskRow._fields, *more))
    return f"SELECT {columns} FROM tasks t INDEXED BY {index} JOIN task_parameters p USING (number)"


def _json(column: str) -> str:
    """The JSON of a column. A damaged text counts as empty: otherwise it would end every query that reads its row."""
    return f"CASE WHEN json_valid({column}) THEN {column} ELSE '{{}}' END"


DOCUMENT, _DATA = _json("document"), _json("data")
#: Ids are passed as one JSON array, so that the text of the statement is always the same and their number has no limit.
TASKS_BY_ID = f"{_TASKS} WHERE t.task_id IN (SELECT value FROM json_each(?))"
_IN_SCOPE = "AND t.user_id = coalesce(?, t.user_id)"
TASKS_IN_SCOPE = f"{TASKS_BY_ID} {_IN_SCOPE}"
TASK = f"{_TASKS} WHERE t.task_id = ? {_IN_SCOPE}"
_CANCEL, _CLAIM = f"json_extract({DOCUMENT}, '$.cancel')", f"json_extract({DOCUMENT}, '$.lease.claim_id')"
_DISPATCHES = f"json_extract({DOCUMENT}, '$.dispatches')"
CANCEL_REQUESTS = (
    f"SELECT task_id, fencing_token, {_CLAIM}, {_CANCEL} FROM tasks "
    f"WHERE task_id IN (SELECT value FROM json_each(?)) AND {_CANCEL} IS NOT NULL"
)

#: Most rows of one statement: before SQLite 3.32 a statement may have only 999 values.
MAX_ROWS = 48
#: The numbers of rows for which statements exist. Other numbers use the next larger statement, filled up with nulls. So
#: there are few different texts.
_ROW_COUNTS = (1, 4, 16, MAX_ROWS)

# Many rows go into one statement: after each statement the thread has to get Python's lock again, and may wait 5 ms for
# it while the event loop is busy. The `WHERE` excludes the rows that only fill up.
_ROWS = "(VALUES {rows}) v"
INSERT_PARAMETERS = (
    f"INSERT INTO task_parameters SELECT t.number, v.column2 FROM {_ROWS} CROSS JOIN tasks t ON t.task_id = v.column1"
)

REPLACE_PARAMETERS = (
    "UPDATE task_parameters SET parameters = ? WHERE number = (SELECT number FROM tasks WHERE task_id = ?)"
)


def _insert(columns: Sequence[str]) -> str:
    return f"INSERT INTO tasks ({', '.join(columns)}) SELECT * FROM {_ROWS} WHERE v.column1 IS NOT NULL"


def _update(columns: Sequence[str], *, keeps_status: bool) -> str:
    # An insert that always conflicts, because `UPDATE ... FROM` needs SQLite 3.33, which older systems do not have.
    there = ", ".join(f"t.{name}" for name in FIXED)
    new = ", ".join(f"v.column{number}" for number in range(2, len(columns) + 2))
    changed = [name for name in columns if not keeps_status or name not in ("status", "finished_at")]
    return (
        f"INSERT INTO tasks ({', '.join((*FIXED, *columns))}) SELECT {there}, {new} "
        f"FROM {_ROWS} CROSS JOIN tasks t ON t.task_id = v.column1 WHERE true "
        f"ON CONFLICT (task_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in changed)}"
    )


# A column that a statement does not name causes no write to its indexes. The second statement of each pair also names
# the unusual columns.
_INSERTS = (_insert((*FIXED, *MOVING)), _insert((*FIXED, *UNUSUAL_FIXED, *UNUSUAL_MOVING, *MOVING)))
_UPDATES, _UPDATES_IN_STATUS = (
    (_update(MOVING, keeps_status=keeps_status), _update((*UNUSUAL_MOVING, *MOVING), keeps_status=keeps_status))
    for keeps_status in (False, True)
)

CLAIMS_OF = (
    f"SELECT task_id, {_CLAIM} FROM tasks WHERE task_id IN (SELECT value FROM json_each(?)) AND status = 'RUNNING'"
)
NEWEST_RUNNING = (
    "SELECT not_before FROM tasks INDEXED BY tasks_of_status "
    "WHERE status = 'RUNNING' AND task_type = ? AND lane = ? ORDER BY created_at DESC, task_id DESC LIMIT 1"
)
COUNT_BY_STATUS = "SELECT status, count(*) FROM tasks GROUP BY status"
UNDRIVEN = "SELECT task_id FROM tasks INDEXED BY tasks_undriven WHERE undriven = 1 LIMIT ?"


def _due_tasks(time: str) -> str:
    """The columns of due tasks, with this time."""
    columns = "task_id, task_type, lane, status, dispatch_epoch"
    return f"SELECT {columns}, {_DISPATCHES}, fencing_token, crashes, not_before, {time} FROM tasks"


def _due_query(driver: Driver, comparison: str) -> str:
    """Tasks by the time of a driver. Only its partial index can answer this, so the index is not named."""
    column = DRIVER_COLUMNS[driver.name]
    held_back = f"AND {driver.also_passed} <= :now " if driver.also_passed else ""
    return f"{_due_tasks(column)} WHERE {column} {comparison} {held_back}ORDER BY {column} LIMIT :limit"


DUE = {driver.name: _due_query(driver, "<= :before") for driver in DRIVERS}
UPCOMING = {driver.name: _due_query(driver, "> :now") for driver in DRIVERS}

_DISPATCH_AT = DRIVER_COLUMNS[DISPATCH.name]
PUT_OFF = (
    f"{_due_tasks(_DISPATCH_AT)} INDEXED BY tasks_to_dispatch "
    f"WHERE {_DISPATCH_AT} >= :since AND {_DISPATCH_AT} <= :until AND task_type = :type "
    f"AND {_DISPATCH_AT} > not_before AND {_DISPATCHES} = 0 "
    f"ORDER BY {_DISPATCH_AT} LIMIT :limit"
)

#: In the index each lane has its own part, in this order.
WAITING_FOR = (
    f"{_due_tasks(_DISPATCH_AT)} INDEXED BY tasks_waiting_for "
    "WHERE waits_for = :limit AND lane = :lane ORDER BY not_before LIMIT :most"
)

_THIS_ROUND = "parent_task_id = :parent AND parent_generation = :generation AND parent_round = :round"
#: Each status is counted by itself, which takes half as long as a group by status.
COUNT_SUBTASKS = " UNION ALL ".join(
    f"SELECT '{status}', count(*) FROM tasks INDEXED BY tasks_planned_in_status "
    f"WHERE {_THIS_ROUND} AND status = '{status}'"
    for status in sorted(TaskStatus)
)
LIST_SUBTASKS = (
    f"{indexed('tasks_planned')} WHERE {_THIS_ROUND} AND parent_slot > :after ORDER BY parent_slot LIMIT :limit"
)

_THIS_STREAM = "user_id = :user AND stream_key = :key"
LIST_STREAM = (
    f"{indexed('tasks_in_stream')} WHERE {_THIS_STREAM} AND stream_position > :after "
    "ORDER BY stream_position LIMIT :limit"
)
STREAM_TIMES = (
    "SELECT stream_position, created_at, finished_at FROM tasks INDEXED BY tasks_in_stream "
    f"WHERE {_THIS_STREAM} AND stream_position > :after ORDER BY stream_position LIMIT :limit"
)
_BLOCKED = f"FROM tasks INDEXED BY tasks_blocked WHERE {_THIS_STREAM} AND unblock_at IS NOT NULL"
NEXT_BLOCKED = (
    f"SELECT task_id, json_extract({DOCUMENT}, '$.generation'), stream_position "
    f"{_BLOCKED} ORDER BY stream_position LIMIT 1"
)
COUNT_BLOCKED = f"SELECT count(*) {_BLOCKED}"

FINISHED_AT = "SELECT task_id, finished_at FROM tasks WHERE task_id IN (SELECT value FROM json_each(?))"

MESSAGE_COLUMNS = ("id", "body", "headers", "queue", "reason", "at", "task_id", "task_type")
KEEP_MESSAGE = (
    "INSERT INTO dead_messages (id, body, headers, queue, reason, at, task_id, task_type) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
)
MESSAGE = f"SELECT {', '.join(MESSAGE_COLUMNS)} FROM dead_messages WHERE id = ?"
OUTLINE_MESSAGES = (
    "SELECT id, reason, task_type, at FROM dead_messages INDEXED BY dead_messages_newest "
    "WHERE at <= ? ORDER BY at DESC, id DESC LIMIT ?"
)
DELETE_MESSAGE = "DELETE FROM dead_messages WHERE id = ?"

_RECORDS = "SELECT id, kind, data, revision, expires_at FROM records"
RECORDS_BY_ID = f"{_RECORDS} WHERE id IN (SELECT value FROM json_each(?))"
LIST_RECORDS = f"{_RECORDS} WHERE id > ? AND id < ? ORDER BY id LIMIT ?"
HALTED_STREAMS = f"SELECT id FROM records WHERE id > ? AND id < ? AND json_extract({_DATA}, '$.is_halted') LIMIT ?"
EXPIRED_RECORDS = f"{_RECORDS} INDEXED BY records_expiring WHERE expires_at <= ? ORDER BY expires_at LIMIT ?"
#: Each row ends with the revision that was read. For a new record it is null; the join also gives null if no record
#: exists.
WRITE_RECORDS = (
    "INSERT INTO records (id, kind, data, revision, expires_at) "
    "SELECT v.column1, v.column2, v.column3, v.column4, v.column5 "
    f"FROM {_ROWS} LEFT JOIN records r ON r.id = v.column1 WHERE v.column1 IS NOT NULL AND r.revision IS v.column6 "
    "ON CONFLICT (id) DO UPDATE "
    "SET data = excluded.data, revision = excluded.revision, expires_at = excluded.expires_at"
)
_THESE_RECORDS = "DELETE FROM records WHERE id IN (SELECT value FROM json_each(?))"
DELETE_RECORDS = f"{_THESE_RECORDS} AND revision IN (SELECT value FROM json_each(?))"
FORGET_KEYS = f"{_THESE_RECORDS} AND json_extract({_DATA}, '$.task_id') IN (SELECT value FROM json_each(?))"

Query = tuple[str, list[Value]]


def insert_tasks(rows: Sequence[Sequence[Value]], *, whole: bool) -> Query:
    """Store new tasks.

    Args:
        rows: the result of `StoredTask.inserted` for each task.
        whole: whether the rows have every column; if not, they have only the columns that a usual task needs.
    """
    return _fill_rows(_INSERTS[whole], rows)


def insert_parameters(rows: Sequence[Sequence[Value]]) -> Query:
    """Store the parameters of new tasks, by task id."""
    return _fill_rows(INSERT_PARAMETERS, rows)


def update_tasks(rows: Sequence[Sequence[Value]], *, keeps_status: bool, whole: bool) -> Query:
    """Change stored tasks; ids without a stored task are ignored.

    Args:
        rows: the id of each task, then its columns `MOVING`.
        keeps_status: whether all of them keep their status.
        whole: whether the columns `UNUSUAL_MOVING` come between the id and these columns.
    """
    return _fill_rows((_UPDATES_IN_STATUS if keeps_status else _UPDATES)[whole], rows)


def write_records(rows: Sequence[Sequence[Value]]) -> Query:
    """Write records. Each row has the columns of a record, and then the revision that it must have in the file."""
    return _fill_rows(WRITE_RECORDS, rows)


def _fill_rows(text: str, rows: Sequence[Sequence[Value]]) -> Query:
    width = len(rows[0])
    size = next(size for size in _ROW_COUNTS if size >= len(rows))
    values = [value for row in rows for value in row]
    values += [None] * (width * (size - len(rows)))
    return _statement(text, size, width), values


@cache
def _statement(text: str, size: int, width: int) -> str:
    row = f"({', '.join('?' * width)})"
    return text.format(rows=", ".join([row] * size))


@cache
def list_subtasks(statuses: int) -> str:
    """Sub-tasks in a number of statuses, in slot order. Each status is read by itself and only up to the limit, so that
    few rows have to be sorted.
    """
    one = "SELECT number, parent_slot FROM tasks INDEXED BY tasks_planned_in_status "
    first = [
        f"SELECT * FROM ({one} WHERE {_THIS_ROUND} AND status = :status_{n} AND parent_slot > :after "
        "ORDER BY parent_slot LIMIT :limit)"
        for n in range(statuses)
    ]
    found = f"({' UNION ALL '.join(first)} ORDER BY parent_slot LIMIT :limit) f"
    return (
        f"{_WHOLE_TASK} {found} CROSS JOIN tasks t USING (number) JOIN task_parameters p USING (number) "
        "ORDER BY f.parent_slot"
    )
