"""Every query of the SQLite store is answered by an index, whatever the file holds."""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from taskframework.model.query import Cursor, SlotCursor, TaskFilter
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import DEAD, FINAL, TaskStatus
from taskframework.model.traffic import CountedTasks
from taskframework.stores.sqlite import lists, queries, retention, rows, traffic
from taskframework.stores.sqlite.migrate import migrations
from taskframework.stores.sqlite.rows import FIXED, MOVING, UNUSUAL_FIXED, UNUSUAL_MOVING, Value

CURSOR = Cursor(datetime(2026, 1, 1, tzinfo=UTC), "id").encode()

#: Statements of one text, by name.
STATEMENTS = {
    name: text
    for name, text in (vars(queries) | vars(retention)).items()
    if name.isupper() and name[0] != "_" and isinstance(text, str) and "{" not in text
}
STATEMENTS |= {f"due by {name}": text for name, text in queries.DUE.items()}
STATEMENTS |= {f"upcoming by {name}": text for name, text in queries.UPCOMING.items()}
#: Statements for several rows.
STATEMENTS |= {
    "insert_parameters": queries.insert_parameters([[None, None]] * 2)[0],
    "write_records": queries.write_records([[None] * 6] * 2)[0],
}
STATEMENTS |= {f"list_subtasks in {number}": queries.list_subtasks(number) for number in range(1, len(TaskStatus) + 1)}
STATEMENTS |= {f"count_lanes of {group.name}": traffic.query(group) for group in CountedTasks}
STATEMENTS |= {
    f"count_lanes of one queue, {group.name}": traffic.query(group, of_queue=True)
    for group in (CountedTasks.WAITING, CountedTasks.RETRYING)
}
for whole, unusual in ((False, ()), (True, UNUSUAL_MOVING)):
    fixed = (*FIXED, *UNUSUAL_FIXED) if whole else FIXED
    new: list[list[Value]] = [[None] * len((*fixed, *unusual, *MOVING))] * 2
    changed: list[list[Value]] = [[None] * len(("task_id", *unusual, *MOVING))] * 2
    STATEMENTS[f"insert_tasks, {whole=}"] = queries.insert_tasks(new, whole=whole)[0]
    for keeps_status in (False, True):
        update, _ = queries.update_tasks(changed, keeps_status=keeps_status, whole=whole)
        STATEMENTS[f"update_tasks, {keeps_status=}, {whole=}"] = update
#: What a statement brings itself, each row of which is looked at; newer releases of SQLite have another name for it.
GIVEN = re.compile(
    r"SCAN v$|SCAN \d+ CONSTANT ROWS$|SCAN \d+-ROW VALUES CLAUSE$|json_each|SCAN f$|SCAN \(subquery-\d+\)$"
)
#: It looks at every entry, which is what it is for.
WHOLE = {"COUNT_BY_STATUS"}
#: Sorts a page, or what it counts up to its bound, and no more.
SORTS_A_PAGE = re.compile("list_subtasks in|count_lanes of")


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as database:
        for script in migrations():
            database.executescript(script)
        yield database


def plan(database: sqlite3.Connection, text: str) -> list[str]:
    values = dict.fromkeys(re.findall(r":(\w+)", text), 1) or [None] * text.count("?")
    return [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {text}", values)]


def test_there_are_statements_to_look_at() -> None:
    assert len(STATEMENTS) > 12


@pytest.mark.parametrize("name", [name for name in STATEMENTS if "_tasks, " in name])
def test_a_statement_has_a_place_for_each_value(database: sqlite3.Connection, name: str) -> None:
    database.execute(STATEMENTS[name], [None] * STATEMENTS[name].count("?"))


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - WHOLE))
def test_no_statement_reads_a_whole_table(database: sqlite3.Connection, name: str) -> None:
    steps = plan(database, STATEMENTS[name])
    assert [step for step in steps if step.startswith("SCAN") and not GIVEN.search(step)] == []
    if not SORTS_A_PAGE.match(name):
        assert [step for step in steps if "TEMP B-TREE" in step] == []


def test_statuses_are_counted_in_an_index_alone(database: sqlite3.Connection) -> None:
    [step] = plan(database, queries.COUNT_BY_STATUS)
    assert step.endswith("USING COVERING INDEX tasks_of_status")


def test_the_tasks_of_a_queue_are_counted_in_an_index_alone(database: sqlite3.Connection) -> None:
    index = "COVERING INDEX tasks_waiting (task_type=? AND lane=? AND status=?)"
    found = searches(database, traffic.query(CountedTasks.WAITING, of_queue=True), "tasks")
    assert found == {f"SEARCH tasks USING {index}"}


def searches(database: sqlite3.Connection, text: str, table: str) -> set[str]:
    """How the entries of a table are found, without what is read around that."""
    return {step for step in plan(database, text) if step.startswith(f"SEARCH {table} ")}


_ROUND = "parent_generation=? AND parent_round=?"


def test_subtasks_are_counted_in_an_index_alone(database: sqlite3.Connection) -> None:
    index = f"COVERING INDEX tasks_planned_in_status (parent_task_id=? AND status=? AND {_ROUND})"
    assert searches(database, queries.COUNT_SUBTASKS, "tasks") == {f"SEARCH tasks USING {index}"}


def test_a_list_of_subtasks_begins_at_its_slot(database: sqlite3.Connection) -> None:
    index = f"INDEX tasks_planned (parent_task_id=? AND {_ROUND} AND parent_slot>?)"
    assert searches(database, queries.LIST_SUBTASKS, "t") == {f"SEARCH t USING {index}"}


@pytest.mark.parametrize("statuses", [1, 5])
def test_a_list_of_subtasks_in_some_statuses_begins_at_its_slot(database: sqlite3.Connection, statuses: int) -> None:
    index = f"INDEX tasks_planned_in_status (parent_task_id=? AND status=? AND {_ROUND} AND parent_slot>?)"
    text = queries.list_subtasks(statuses)
    assert searches(database, text, "tasks") == {f"SEARCH tasks USING COVERING {index}"}
    assert searches(database, text, "t") == {"SEARCH t USING INTEGER PRIMARY KEY (rowid=?)"}


@pytest.mark.parametrize("scope", [EVERYONE, Scope.of("alice")], ids=["everyone", "owner"])
@pytest.mark.parametrize("status", [None, TaskStatus.FAILED, TaskStatus.RUNNING])
def test_the_list_of_a_parent_begins_at_its_place(
    database: sqlite3.Connection, scope: Scope, status: TaskStatus | None
) -> None:
    wanted, place = TaskFilter(status=status, parent_task_id="parent"), SlotCursor(1, 2, 3).encode()
    index = (
        "tasks_planned (parent_task_id=?"
        if status is None
        else "tasks_planned_in_status (parent_task_id=? AND status=?"
    )
    for cursor, begins in ((None, ")"), (place, " AND (parent_generation,parent_round,parent_slot)<(?,?,?))")):
        text, _ = lists.list_tasks(scope, wanted, 10, cursor)
        assert searches(database, text, "t") == {f"SEARCH t USING INDEX {index}{begins}"}


@pytest.mark.parametrize("cursor", [None, CURSOR], ids=["first page", "next page"])
def test_no_list_sorts_or_reads_more_than_it_must(database: sqlite3.Connection, cursor: str | None) -> None:
    choices = itertools.product([None, TaskStatus.FAILED], [None, "type"], [None, "parent"], [False, True])
    statements = {
        f"{scope} {filter}": lists.list_tasks(scope, filter, 10, _cursor_for(filter) if cursor else None)
        for filter in itertools.starmap(TaskFilter, choices)
        for scope in (EVERYONE, Scope.of("alice"))
    }
    statements |= {
        f"search of {filter}": lists.search_tasks(
            EVERYONE,
            replace(filter, correlation_id="id", idempotency_key="key", error="text", fingerprint="fingerprint"),
            10,
            _cursor_for(filter) if cursor else None,
        )
        for filter in (TaskFilter(), TaskFilter(dead=True), TaskFilter(parent_task_id="parent"))
    }
    now = datetime.now(UTC)
    in_time = TaskFilter(created_after=now, created_before=now)
    statements["in time"] = lists.list_tasks(EVERYONE, in_time, 10, CURSOR if cursor else None)
    statements["messages"] = lists.list_dead_messages(10, cursor)
    for name, (text, values) in statements.items():
        assert text.count("?") == len(values)
        steps = plan(database, text)
        assert [step for step in steps if "TEMP B-TREE" in step] == [], name
        # In the order of an index: a scan that stops after one page.
        assert [step for step in steps if step.startswith("SCAN") and "USING" not in step] == [], name
        if cursor is not None:
            assert [step for step in steps if step.startswith("SCAN")] == [], name


def test_the_conditions_of_partial_indexes_name_the_statuses_of_the_model() -> None:
    for condition, statuses in ((rows.DEAD, DEAD), (rows.DONE, FINAL - DEAD)):
        said = f"change {condition!r} in rows.py, and make its index anew in a migration: docs/adding/status.md"
        assert set(re.findall("'(.*?)'", condition)) == statuses, said


def _cursor_for(filter: TaskFilter) -> str:
    return SlotCursor(1, 2, 3).encode() if filter.is_in_slot_order else CURSOR
