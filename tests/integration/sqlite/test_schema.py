"""The schema of the migrations has what the drivers need: a column and an index for each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from taskframework.model.drivers import DRIVERS, Driver
from taskframework.stores.sqlite.migrate import migrations
from taskframework.stores.sqlite.rows import DRIVER_COLUMNS, FIXED, MOVING, UNUSUAL_FIXED, UNUSUAL_MOVING


@pytest.fixture
def schema() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as schema:
        for script in migrations():
            schema.executescript(script)
        yield schema


def test_the_columns_are_those_that_are_written(schema: sqlite3.Connection) -> None:
    columns = [name for _, name, *_ in schema.execute("PRAGMA table_info(tasks)")]
    assert sorted(columns) == sorted(("number", *FIXED, *UNUSUAL_FIXED, *MOVING, *UNUSUAL_MOVING))


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_each_driver_has_an_index_of_the_tasks_that_wait_for_it(schema: sqlite3.Connection, driver: Driver) -> None:
    column = DRIVER_COLUMNS[driver.name]
    definitions = [sql for (sql,) in schema.execute("SELECT sql FROM sqlite_master WHERE type = 'index' AND sql <> ''")]
    wanted = f"ON tasks ({column}) WHERE {column} IS NOT NULL"
    assert sum(definition.endswith(wanted) for definition in definitions) == 1, definitions
