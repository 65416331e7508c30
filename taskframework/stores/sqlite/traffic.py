"""Counts of tasks by type and lane, up to a bound."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

from taskframework.clock import from_milliseconds, to_milliseconds
from taskframework.model.status import Priority
from taskframework.model.traffic import CountedTasks, LaneCount, LaneCounts
from taskframework.stores.sqlite.rows import CLAIMABLE, DEAD, DONE, Value

_COLUMNS = "task_type, lane, not_before"


def values_of(
    most: int, due_before: datetime, since: datetime | None, queue: tuple[str, Priority] | None
) -> dict[str, Value]:
    """The parameters of `query`."""
    task_type, lane = queue or ("", "")
    return {
        "task_type": task_type,
        "lane": str(lane),
        "most": most,
        "due_before": to_milliseconds(due_before),
        "since": 0 if since is None else to_milliseconds(since),
    }


@cache
def query(selection: CountedTasks, *, of_queue: bool = False) -> str:
    """The query that counts a selection, or its tasks of one type and lane."""
    members = _members_of_queue(selection) if of_queue else _members(selection)
    return (
        "SELECT task_type, lane, count(*), total(not_before < :due_before), min(time), min(not_before) "
        f"FROM ({members} LIMIT :most) GROUP BY task_type, lane, typeof(time), typeof(not_before)"
    )


def lane_counts_of(rows: Sequence[Sequence[Any]], most: int) -> LaneCounts:
    """The counts from the rows of the query."""
    counted = tuple(
        LaneCount(task_type, Priority(lane), count, int(due), from_milliseconds(first), from_milliseconds(claimable))
        for task_type, lane, count, due, first, claimable in rows
        if isinstance(first, int) and isinstance(claimable, int)  # not changed by hand
    )
    return LaneCounts(counted, sum(row[2] for row in rows) >= most)


def _members(selection: CountedTasks) -> str:
    """The query for the tasks of a selection in their order, by the index that has this order."""
    order = f"ORDER BY time{' DESC' if selection.is_newest_first else ''}"
    if selection in (CountedTasks.DONE, CountedTasks.DEAD):
        index, only = ("tasks_done", DONE) if selection is CountedTasks.DONE else ("tasks_dead", DEAD)
        return (
            f"SELECT {_COLUMNS}, finished_at AS time FROM tasks INDEXED BY {index} "
            f"WHERE {only} AND finished_at >= :since {order}"
        )
    if selection is CountedTasks.SUBMITTED:
        return (
            f"SELECT {_COLUMNS}, created_at AS time FROM tasks INDEXED BY tasks_newest "
            f"WHERE created_at >= :since {order}"
        )
    of_status = "created_at AS time FROM tasks INDEXED BY tasks_of_status WHERE created_at >= :since AND status ="
    return _merged(selection, of_status)


def _members_of_queue(selection: CountedTasks) -> str:
    """The same for the waiting tasks of one lane, by the index that has all that is counted."""
    of_queue = (
        "not_before AS time FROM tasks INDEXED BY tasks_waiting "
        f"WHERE {CLAIMABLE} AND task_type = :task_type AND lane = :lane AND status ="
    )
    return _merged(selection, of_queue)


def _merged(selection: CountedTasks, of_status: str) -> str:
    """Each status is read by itself and only up to the bound, so that few tasks have to be sorted."""
    each = [
        f"SELECT * FROM (SELECT {_COLUMNS}, {of_status} '{status}' ORDER BY time LIMIT :most)"
        for status in sorted(selection.statuses)
    ]
    return f"{' UNION ALL '.join(each)} ORDER BY time"
