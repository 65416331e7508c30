"""What the SQLite store remembers of tasks: never more than it may, never what a user could have changed."""

from __future__ import annotations

from typing import Any

import pytest

from taskframework.stores.sqlite import known as module
from taskframework.stores.sqlite.known import KnownTasks
from taskframework.stores.sqlite.rows import TaskRow, new_row
from taskframework.testing.conformance.comparison import differences
from taskframework.testing.factories import new_task


def _kept(known: KnownTasks, **fields: Any) -> TaskRow:
    row = new_row(new_task(**fields))
    text = str(row.moving()[-1])
    known.keep(row.task, text)
    return TaskRow(row.task.task_id, row.task.user_id, None, 0, 0, text, row.parameters)


def test_a_known_task_is_as_it_was_whatever_was_done_with_the_one_before() -> None:
    known = KnownTasks()
    row = _kept(known, parameters={"n": [1]}, result={"r": [1]}, progress={"p": [1]})
    first = known.read(row).task
    for value in (first.parameters["n"], first.result["r"], first.progress["p"]):
        value.append("changed in place")
    again = known.read(row).task
    assert (again.parameters, again.result, again.progress) == ({"n": [1]}, {"r": [1]}, {"p": [1]})
    assert differences(known.read(row, with_parameters=False).task, again.evolve(parameters=None)) == []


def test_another_text_is_read_anew() -> None:
    known = KnownTasks()
    row = _kept(known)
    other = row._replace(document=row.document.replace('"alice"', '"somebody"'))
    assert other != row
    assert known.read(other).task.user_id == "somebody"


def test_only_so_many_and_nothing_long_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 3)
    known = KnownTasks()
    rows = [_kept(known) for _ in range(5)]
    assert list(known._tasks) == [row.task_id for row in rows[2:]]
    _kept(known, result="x" * 100_000)
    assert list(known._tasks) == [row.task_id for row in rows[2:]]
    with_parameters = _kept(known, parameters="x" * 100_000)
    _, task = known._tasks[with_parameters.task_id]
    assert task.parameters is None
