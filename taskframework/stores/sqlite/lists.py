"""The queries of lists, and where a page begins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple

from taskframework.clock import to_milliseconds
from taskframework.model.letters import TREND_HOURS
from taskframework.model.limits import limit_ids
from taskframework.model.query import Cursor, SlotCursor, TaskFilter
from taskframework.model.scope import Scope
from taskframework.stores.sqlite.queries import DOCUMENT, MESSAGE_COLUMNS, Query, indexed
from taskframework.stores.sqlite.rows import DEAD as _DEAD
from taskframework.stores.sqlite.rows import Value, to_json


def list_tasks(scope: Scope, filter: TaskFilter, limit: int, cursor: str | None) -> Query:
    """A page of tasks, each with the values of its order; and one more row, which shows that another page follows."""
    return _list(lambda index: indexed(index, *_order(filter)), scope, filter, limit, cursor)


def search_tasks(scope: Scope, filter: TaskFilter, most: int, cursor: str | None) -> Query:
    """For the next `most` tasks of a list: whether each meets all conditions, its id, and the values of its order."""
    order, sought = ", ".join(_order(filter)), _unindexed_conditions(filter)
    is_found = " AND ".join(clause for clause, _ in sought)

    def head(index: str) -> str:
        return f"SELECT coalesce({is_found}, 0), t.task_id, {order} FROM tasks t INDEXED BY {index}"

    text, values = _list(head, scope, filter.indexed, most - 1, cursor)
    return text, [*(value for _, value in sought), *values]


def _unindexed_conditions(filter: TaskFilter) -> list[tuple[str, Value]]:
    """The conditions without an index, each with its value."""
    limits = None if filter.waits_for_limit is None else to_json(limit_ids(filter.waits_for_limit))
    clauses = {
        f"json_extract({DOCUMENT}, '$.correlation_id') = ?": filter.correlation_id,
        "t.idempotency_key = ?": filter.idempotency_key,
        "t.waits_for IN (SELECT value FROM json_each(?))": limits,
        f"json_extract({DOCUMENT}, '$.error.fingerprint') = ?": filter.fingerprint,
        f"instr(lower(json_extract({DOCUMENT}, '$.error.message')), lower(?)) > 0": filter.error,
    }
    found: list[tuple[str, Value]] = [(clause, value) for clause, value in clauses.items() if value is not None]
    return found + ([] if filter.dead else _finished_bounds(filter))


def _finished_bounds(filter: TaskFilter) -> list[tuple[str, Value]]:
    """Conditions on the time of the end, each with its value."""
    bounds = {"<=": filter.ended_by, ">=": filter.finished_after, "<": filter.finished_before}
    return [(f"t.finished_at {than} ?", to_milliseconds(time)) for than, time in bounds.items() if time is not None]


def _list(head: Callable[[str], str], scope: Scope, filter: TaskFilter, limit: int, cursor: str | None) -> Query:
    """A page of a list; `head` gives the beginning of the query for an index."""
    wanted: dict[str, Value] = {
        "t.parent_task_id": filter.parent_task_id,
        "t.stream_key": filter.stream,
        "t.user_id": scope.owner,
        "t.task_type": filter.task_type,
        "t.status": filter.status.value if filter.status else None,
    }
    given: dict[str, Value] = {column: value for column, value in wanted.items() if value is not None}
    index = "tasks_batches" if filter.batches else _index_for(given.keys())
    given |= _created_bounds(filter)
    select = f"{head('tasks_dead')} WHERE t.{_DEAD}" if filter.dead else head(index)
    # Exactly the same text as in the partial index of the batches.
    select += f"{' AND' if filter.dead else ' WHERE'} t.is_batch = {int(filter.batches)}"
    given |= dict(_further_conditions(filter))
    if filter.is_in_slot_order:
        place = None if cursor is None else astuple(SlotCursor.decode(cursor))
        return _page(select, given, _order(filter), limit, place)
    return _page(select, given, _order(filter), limit, _time_and_id(cursor))


def _order(filter: TaskFilter) -> tuple[str, ...]:
    """The columns by which a list is ordered."""
    if filter.is_in_slot_order:
        return "t.parent_generation", "t.parent_round", "t.parent_slot"
    return f"t.{filter.order}", "t.task_id"


def _created_bounds(filter: TaskFilter) -> dict[str, Value]:
    """Conditions on the time of the submission, each with its value."""
    bounds = {"t.created_at >= ?": filter.created_after, "t.created_at < ?": filter.created_before}
    return {clause: to_milliseconds(time) for clause, time in bounds.items() if time is not None}


def _further_conditions(filter: TaskFilter) -> list[tuple[str, Value]]:
    """The conditions without an index; in a list of dead letters, also that the task is not discarded, and the bounds
    of its end. Each with its value.
    """
    clauses = _unindexed_conditions(filter)
    if filter.dead:
        clauses += [(f"coalesce(json_type({DOCUMENT}, '$.discarded'), 'null') = ?", "null"), *_finished_bounds(filter)]
    return clauses


def count_dead(scope: Scope, filter: TaskFilter, now: int, most: int) -> Query:
    """Dead tasks counted by cause, type and hour. The index finds the newest `most`, and only these are read."""
    newest = f"SELECT number FROM tasks INDEXED BY tasks_dead WHERE {_DEAD} ORDER BY finished_at DESC, task_id DESC"
    clauses: list[tuple[str, Value]] = [("t.is_batch = ?", 0), *_further_conditions(filter)]
    clauses += [("t.user_id = ?", scope.owner)] if scope.owner is not None else []
    clauses += [("t.task_type = ?", filter.task_type)] if filter.task_type is not None else []
    text = (
        f"SELECT json_extract({DOCUMENT}, '$.error.fingerprint') cause, t.task_type, "
        "min(max(? - t.finished_at, 0) / 3600000, ?) hours, count(*), min(t.finished_at), max(t.finished_at), "
        f"json_extract({DOCUMENT}, '$.error.type'), json_extract({DOCUMENT}, '$.error.message') "
        f"FROM ({newest} LIMIT ?) f CROSS JOIN tasks t USING (number) "
        f"WHERE {' AND '.join(clause for clause, _ in clauses)} GROUP BY cause, t.task_type, hours"
    )
    return text, [now, TREND_HOURS, most, *(value for _, value in clauses)]


def _index_for(columns: Collection[str]) -> str:
    """The most selective index for a list with these conditions."""
    return next(index for index, needed in _LIST_INDEXES.items() if needed <= set(columns))


_LIST_INDEXES = {
    "tasks_planned_in_status": {"t.parent_task_id", "t.status"},
    "tasks_planned": {"t.parent_task_id"},
    "tasks_of_stream": {"t.stream_key"},
    "tasks_of_user_and_status": {"t.user_id", "t.status"},
    "tasks_of_user": {"t.user_id"},
    "tasks_of_type": {"t.task_type"},
    "tasks_of_status": {"t.status"},
    "tasks_newest": set[str](),
}


def list_dead_messages(limit: int, cursor: str | None) -> Query:
    head = f"SELECT {', '.join(MESSAGE_COLUMNS)} FROM dead_messages"
    return _page(head, {}, ("at", "id"), limit, _time_and_id(cursor))


def _time_and_id(cursor: str | None) -> tuple[int, str] | None:
    place = None if cursor is None else Cursor.decode(cursor)
    return None if place is None else (to_milliseconds(place.at), place.id)


def _page(
    select: str, given: dict[str, Value], order: Sequence[str], limit: int, place: Sequence[Value] | None
) -> Query:
    clauses = [column if "?" in column else f"{column} = ?" for column in given]
    values = list(given.values())
    if place is not None:
        clauses.append(f"({', '.join(order)}) < ({', '.join('?' * len(place))})")
        values += place
    glue = " AND " if " WHERE " in select else " WHERE "
    where = glue + " AND ".join(clauses) if clauses else ""
    ordering = ", ".join(f"{name} DESC" for name in order)
    return f"{select}{where} ORDER BY {ordering} LIMIT ?", [*values, limit + 1]
