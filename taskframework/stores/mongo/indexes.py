"""The indexes, as data: created when the store opens, and compared with the existing indexes.

A changed definition gets a new name, so that an older release that runs beside this release finds its own index.

An index costs time when its keys change. An index that tasks enter, change or leave with each move takes MongoDB about
20 µs of 290 µs for each task. An index that never contains ordinary tasks costs little, but not nothing: MongoDB checks
with each write whether the document belongs to it. Fifteen such indexes take a tenth of MongoDB's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from taskframework.errors import StoreMisconfiguredError
from taskframework.model.drivers import DRIVERS, Driver
from taskframework.model.status import CLAIMABLE, TaskStatus
from taskframework.stores.mongo.collection import Collection
from taskframework.stores.mongo.documents import Document

#: How long `open` may take to build an index on a large collection. The usual time limit would make every attempt fail.
INDEX_BUILD = timedelta(hours=1)

SUBTASKS = "subtasks_by_status"
WAITING = "waiting"
WAITING_FOR_LIMIT = "waiting_for_limit"
STREAM = "stream"
TURNS = "turns"
LIST_BY_STATUS, LIST_BY_OWNER, LIST_BY_TYPE = "list_by_status", "list_by_owner", "list_by_type"
LIST_BY_STREAM, LIST_BATCHES, ENDED, PURGE = "list_by_stream", "list_batches", "ended", "purge"
DEAD_MESSAGES, EXPIRING = "list", "expiring"

_NEWEST_FIRST = {"created_at": -1, "_id": -1}
_SUBTASKS: Document = {"parent.task_id": {"$exists": True}}
_POSITIONS = {"user_id": 1, "stream.key": 1, "stream.position": 1}
_OF_STREAMS: Document = {"stream.key": {"$exists": True}}


@dataclass(frozen=True, slots=True)
class Index:
    """One index: its keys, and which documents it contains (`only`). No index is unique; only ids are."""

    name: str
    keys: Mapping[str, int]
    only: Document | None = None

    def differences(self, found: Mapping[str, Any]) -> list[str]:
        """The differences between an existing index of this name and this definition."""
        wanted = {"key": list(self.keys.items()), "partialFilterExpression": self.only}
        names = ("key", "partialFilterExpression", "unique", "expireAfterSeconds")
        return [
            f"{name} is {found.get(name)!r} instead of {wanted.get(name)!r}"
            for name in names
            if found.get(name) != wanted.get(name)
        ]

    def definition(self) -> dict[str, Any]:
        """The index in the form that `Collection.create_indexes` takes."""
        partial = {} if self.only is None else {"partialFilterExpression": self.only}
        return {"keys": list(self.keys.items()), "name": self.name, **partial}


def _status(statuses: Iterable[TaskStatus]) -> Document:
    return {"status": {"$in": sorted(status.value for status in statuses)}}


def _index_of(driver: Driver) -> Index:
    """The index of a driver. It contains tasks without the time only if every task in these statuses needs the time, so
    that undriven tasks are found.
    """
    only = {} if driver.covers_every_status else _status(driver.statuses)
    if not driver.is_always_needed:
        only |= {driver.field: {"$type": "date"}}
    return Index(driver.index, {driver.field: 1}, only)


TASK_INDEXES = (
    # For each driver an index with only the tasks that it drives.
    *map(_index_of, DRIVERS),
    # For lists. An index with the status in its key also serves lists of all statuses, as a merge of ten short scans.
    Index(LIST_BY_STATUS, {"status": 1, **_NEWEST_FIRST}),
    Index(LIST_BY_OWNER, {"user_id": 1, "status": 1, **_NEWEST_FIRST}),
    Index(LIST_BY_TYPE, {"task_type": 1, **_NEWEST_FIRST}),
    # The sub-tasks of a task by status, and within a status in the order of the plan: of one round, or of all.
    Index(
        SUBTASKS,
        {"parent.task_id": 1, "status": 1, "parent.generation": 1, "parent.round": 1, "parent.slot": 1},
        _SUBTASKS,
    ),
    # Tasks that wait for a worker, by lane: a full lane does not hide those of another.
    Index(WAITING, {"task_type": 1, "priority": 1, "status": 1, "not_before": 1}, _status(CLAIMABLE)),
    # Tasks that a limit did not let begin. The query ignores entries of an older epoch.
    Index(
        WAITING_FOR_LIMIT,
        {"waits_for_limit.limit": 1, "priority": 1, "not_before": 1},
        {**_status(CLAIMABLE), "waits_for_limit.limit": {"$type": "string"}},
    ),
    # The tasks of a stream by their positions; the tasks that wait for their turn; and a list of a stream's tasks.
    Index(STREAM, _POSITIONS, _OF_STREAMS),
    # The status is constant here, but because it is in the key, the next tasks of 100 streams are found in 100 steps.
    Index(TURNS, {"status": 1, **_POSITIONS}, {"status": TaskStatus.BLOCKED.value}),
    Index(LIST_BY_STREAM, {"stream.key": 1, **_NEWEST_FIRST}, _OF_STREAMS),
    Index(LIST_BATCHES, _NEWEST_FIRST, {"batch": {"$type": "object"}}),
    # Partial by the time, not by the status: MongoDB 6 does not merge scans of some statuses in an index that is
    # partial by the status.
    Index(ENDED, {"status": 1, "finished_at": -1, "_id": -1}, {"finished_at": {"$type": "date"}}),
    # Tasks whose type says how long they stay.
    Index(PURGE, {"purge_at": 1, "_id": 1}, {"purge_at": {"$type": "date"}}),
)
DEAD_MESSAGE_INDEXES = (Index(DEAD_MESSAGES, {"at": -1, "_id": -1}),)
RECORD_INDEXES = (Index(EXPIRING, {"expires_at": 1}, {"expires_at": {"$type": "date"}}),)


async def find_index_differences(collection: Collection, indexes: Iterable[Index]) -> list[str]:
    """The differences between the indexes in the database and these definitions, one sentence for each index."""
    found = await collection.indexes()
    if not found:  # no collection yet; the first start makes it with all its indexes
        return []
    problems = []
    for index in indexes:
        if index.name not in found:
            remedy = "Every command that opens the store creates it, such as `taskframework tasks list`."
            problems.append(f"index {index.name!r} is missing. {remedy}")
        elif differences := index.differences(found[index.name]):
            remedy = f"Drop it (dropIndex({index.name!r})); it is created again at the next start."
            problems.append(f"index {index.name!r}: {' and '.join(differences)}. {remedy}")
    return problems


async def create_missing_indexes(collection: Collection, indexes: Sequence[Index]) -> list[str]:
    """Create the missing indexes, and return their names.

    Raises:
        StoreMisconfiguredError: if an index of the same name has another definition.
    """
    found = await collection.indexes()
    for index in indexes:
        if index.name in found and (differences := index.differences(found[index.name])):
            raise StoreMisconfiguredError(
                f"Index {index.name!r} in MongoDB has another definition: {' and '.join(differences)}.",
                hint=f"Drop it (dropIndex({index.name!r})); it is created again at the next start.",
            )
    if missing := [index for index in indexes if index.name not in found]:
        await collection.create_indexes([index.definition() for index in missing])
    return [index.name for index in missing]
