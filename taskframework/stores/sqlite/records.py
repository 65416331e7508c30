"""Records in SQLite: one row for each record, with the data as JSON."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic_core import from_json

from taskframework.clock import from_milliseconds, to_milliseconds
from taskframework.model.idempotency import key_id
from taskframework.model.records import Record, RecordChange, new_revision
from taskframework.stores.sqlite import queries
from taskframework.stores.sqlite.connection import Row
from taskframework.stores.sqlite.rows import Value, to_json


@dataclass(frozen=True, slots=True)
class WriteRecords:
    """Write records, each only if its stored revision is still the revision that was read."""

    written: tuple[Record, ...]
    rows: tuple[tuple[Value, ...], ...]

    @classmethod
    def of(cls, records: Sequence[Record]) -> WriteRecords:
        written = tuple([replace(record, revision=new_revision()) for record in records])
        pairs = zip(written, records, strict=True)
        return cls(written, tuple([(*_columns(after), before.revision) for after, before in pairs]))

    def replies_for(self, revisions: Collection[str]) -> list[Record | None]:
        """The reply, given the revisions that these records have in the file now."""
        return [record if record.revision in revisions else None for record in self.written]


def write(connection: sqlite3.Connection, requests: Sequence[WriteRecords]) -> set[str]:
    """Write the records of all these requests; return the revisions that the records then have in the file."""
    rows = [row for request in requests for row in request.rows]
    for at in range(0, len(rows), queries.MAX_ROWS):
        connection.execute(*queries.write_records(rows[at : at + queries.MAX_ROWS]))
    ids = [record.id for request in requests for record in request.written]
    return {row[3] for row in connection.execute(queries.RECORDS_BY_ID, [to_json(ids)])} if ids else set()


def changed(connection: sqlite3.Connection, change: RecordChange, now: datetime) -> Record:
    """Run the rule on the record in the file, and write the result."""
    found = [record_of(row) for row in connection.execute(queries.RECORDS_BY_ID, [to_json([change.record_id])])]
    request = WriteRecords.of([change.change(found[0] if found else None, now)])
    connection.execute(*queries.write_records(request.rows))
    return request.written[0]


def forget_keys(connection: sqlite3.Connection, tasks: Iterable[tuple[str, str, str | None]]) -> None:
    """Delete the idempotency keys that stand for these tasks: id, user and key of each."""
    keyed = [(task_id, key_id(user_id, key)) for task_id, user_id, key in tasks if key is not None]
    if keyed:
        task_ids, ids = zip(*keyed, strict=True)
        connection.execute(queries.FORGET_KEYS, [to_json(ids), to_json(task_ids)])


def record_of(row: Row) -> Record:
    identifier, kind, text, revision, expires_at = row
    try:
        data = from_json(text)
    except ValueError:  # damaged: no kind can read null either, and says so
        data = None
    return Record(identifier, kind, data, revision, None if expires_at is None else from_milliseconds(expires_at))


def _columns(record: Record) -> tuple[Value, ...]:
    expires_at = None if record.expires_at is None else to_milliseconds(record.expires_at)
    return record.id, record.kind, record.data_as_json().decode(), record.revision, expires_at
