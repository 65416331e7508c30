"""Brings a file to the schema of this release, in numbered steps within one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

from taskframework.errors import StoreMisconfiguredError

#: Marks a file as one of this framework ("task" in ASCII), so that another program's database is never changed.
APPLICATION_ID = 0x7461736B


def migrate(connection: sqlite3.Connection, path: Path, scripts: Sequence[str]) -> None:
    """Apply the migrations that a file does not have yet.

    Raises:
        StoreMisconfiguredError: if the file belongs to another program or a newer release.
    """
    if check_schema_version(connection, path, newest=len(scripts)) == len(scripts):
        return
    try:
        connection.execute("BEGIN IMMEDIATE")
        # Again, under the lock: another process may have been faster.
        version = check_schema_version(connection, path, newest=len(scripts))
        for number, script in enumerate(scripts[version:], start=version + 1):
            for statement in _statements(script):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def check_schema_version(connection: sqlite3.Connection, path: Path, *, newest: int) -> int:
    """The schema version of a file, if this release may work with it.

    Raises:
        StoreMisconfiguredError: if it may not.
    """
    [(version,)] = connection.execute("PRAGMA user_version")
    # Read before the id: otherwise, while another process creates the file, there might be tables without an id.
    [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_master")
    [(application,)] = connection.execute("PRAGMA application_id")
    if tables and application != APPLICATION_ID:
        raise StoreMisconfiguredError(
            f"{path} is the SQLite file of another program.", hint="Name another file in store.url."
        )
    if version > newest:
        raise StoreMisconfiguredError(
            f"{path} has schema version {version}, this release knows versions up to {newest}.",
            hint="A newer release has written it: upgrade taskframework here too, or name another file in store.url.",
        )
    return int(version)


def migrations() -> list[str]:
    """The scripts in their order; the first script leads to version 1."""
    folder = resources.files("taskframework.stores.sqlite.migrations")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [file.read_text(encoding="utf-8") for file in files]


def _statements(script: str) -> Iterator[str]:
    """The statements of a script. `executescript` would commit the transaction, and the step would not be atomic."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
