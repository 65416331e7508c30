"""Fills a store past the framework, as weeks of work would leave it: ready documents, straight into the database."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from taskframework.clock import whole_milliseconds
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task, new_task_id
from taskframework.model.task_fields import HistoryEntry, ParentLink
from taskframework.stores.mongo.documents import document_of
from taskframework.stores.sqlite import queries
from taskframework.stores.sqlite.rows import StoredTask, new_row
from taskframework.testing.factories import new_task

OWNERS, TYPES, CHILDREN = 20, 10, 500
#: The parent of the first `CHILDREN` tasks.
PARENT = "parent-0"
_BATCH = 1_000
#: Of a hundred finished tasks.
_ENDS = [TaskStatus.COMPLETED] * 94 + [TaskStatus.FAILED, TaskStatus.DEAD_LETTER, TaskStatus.CANCELLED] * 2
_SECOND = timedelta(seconds=1)
_MONTH = timedelta(days=30)

Document = dict[str, Any]


class Filler(Protocol):
    """Puts tasks into a database."""

    def insert(self, tasks: Iterable[Task]) -> None: ...

    def settle(self) -> None:
        """Return when the database has written down what was inserted, so that it does so beside no measurement."""


def owner(number: int) -> str:
    return f"user-{number % OWNERS}"


def task_type(number: int) -> str:
    return f"type-{number % TYPES}"


def finished(count: int, *, first: int, age: timedelta = timedelta(hours=1)) -> Iterator[Task]:
    """Tasks that ended within a month before `age` ago, told to everybody.

    Args:
        count: how many.
        first: number of the first one; owners, types and statuses follow from the numbers.
        age: how long the youngest is over.
    """
    now = whole_milliseconds(datetime.now(UTC)) - age
    kinds = [_ended(status, now) for status in _ENDS]
    for at, number in enumerate(range(first, first + count)):
        ended = now - whole_duration(_MONTH * (count - at) / count)
        yield kinds[number % len(kinds)].evolve(
            **_identity(number),
            parent=ParentLink(PARENT, 0, number) if number < CHILDREN else None,
            created_at=ended - 2 * _SECOND,
            not_before=ended - 2 * _SECOND,
            started_at=ended - _SECOND,
            finished_at=ended,
            updated_at=ended,
        )


def waiting(count: int) -> Iterator[Task]:
    """Tasks that wait for a worker, their message sent and nothing due."""
    now = whole_milliseconds(datetime.now(UTC))
    kind = new_task(now=now, next_dispatch_at=now + timedelta(hours=2), dispatches=5, publish_at=None)
    for number in range(count):
        created = now - whole_duration(timedelta(hours=1) * (count - number) / count)
        yield kind.evolve(
            **_identity(number), published_sequence=1, created_at=created, not_before=created, updated_at=created
        )


def due(count: int) -> Iterator[Task]:
    """Tasks of which nothing was ever sent, due for the sweeper."""
    now = whole_milliseconds(datetime.now(UTC)) - _SECOND
    for number in range(count):
        yield new_task(now=now, next_dispatch_at=now, published_sequence=1, publish_at=None).evolve(**_identity(number))


def whole_duration(duration: timedelta) -> timedelta:
    return timedelta(milliseconds=duration // timedelta(milliseconds=1))


class MongoFiller:
    """Fills a collection whose indexes are there. Without a disk write for each batch."""

    def __init__(self, url: str) -> None:
        self._url = url

    def insert(self, tasks: Iterable[Task]) -> None:
        with MongoClient[Document](self._url, w="majority", journal=False) as client:
            collection = client.get_default_database()["tasks"]
            for batch in _batches(tasks):
                documents = [RawBSONDocument(bson.encode(document_of(task))) for task in batch]
                collection.insert_many(documents, ordered=False)

    def settle(self) -> None:
        with MongoClient[Document](self._url) as client:
            client.admin.command("fsync")


class SqliteFiller:
    """Fills a file whose schema is there, without a disk write for each batch."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def insert(self, tasks: Iterable[Task]) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            for batch in _batches(tasks):
                connection.execute("BEGIN IMMEDIATE")
                rows = [new_row(task) for task in batch]
                for whole in (False, True):
                    _insert([row for row in rows if row.is_usual is not whole], connection, whole=whole)
                connection.execute("COMMIT")

    def settle(self) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with self._path.open("rb+") as file:
            os.fsync(file)


def _insert(rows: Sequence[StoredTask], connection: sqlite3.Connection, *, whole: bool) -> None:
    for at in range(0, len(rows), queries.MAX_ROWS):
        part = rows[at : at + queries.MAX_ROWS]
        connection.execute(*queries.insert_tasks([row.inserted() for row in part], whole=whole))
        connection.execute(*queries.insert_parameters([(row.task.task_id, row.parameters) for row in part]))


def _identity(number: int) -> Document:
    return {"task_id": new_task_id(), "user_id": owner(number), "task_type": task_type(number)}


def _ended(status: TaskStatus, at: datetime) -> Task:
    events = ("submitted", "started", status.value.lower())
    history = tuple(HistoryEntry(n, event, at, 1, "worker-1", None) for n, event in enumerate(events, start=1))
    return new_task(now=at, next_dispatch_at=None, publish_at=None).evolve(
        status=status,
        attempts=1,
        fencing_token=1,
        revision=2,
        result={"n": 1} if status is TaskStatus.COMPLETED else None,
        history=history,
        sequence=3,
        published_sequence=3,
    )


def _batches(tasks: Iterable[Task]) -> Iterator[Sequence[Task]]:
    tasks = iter(tasks)
    while batch := list(itertools.islice(tasks, _BATCH)):
        yield batch
