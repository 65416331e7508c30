"""Versions of one key: of the tasks that still wait only the newest begins, and a version never goes back.

The record of a key names its newest task. It is written after that task is stored, and only with a higher version, or
with a later run of the same version. Any process that finds a task newer than the record writes the task into the
record: if the submitter died before this, the worker that gets the task does it. So no repair is needed.
`tests/models/versions.pml` is a model of this protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from uuid import NAMESPACE_OID, uuid5

from taskframework.model.idempotency import GRACE
from taskframework.model.options import Unique
from taskframework.model.records import Record, RecordKind
from taskframework.model.status import LIVE, SUCCEEDED
from taskframework.model.task import Task

#: How many older tasks of a key a record names. Rarely more than one of them still runs.
_MAX_OLDER = 20
#: Only the message of a task with a version has this header: `version/run/key`. So other tasks cost a worker nothing.
UNIQUE_HEADER = "x-unique"


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest task of a key."""

    task_id: str
    version: int
    run: int
    #: The task that was the newest before, or None; and whether that task is asked to stop if it runs.
    before: str | None = None
    stops_older: bool = False
    #: Tasks that were the newest before that one and were not asked to stop, the newest first. Some may still run, and
    #: a version that stops older ones asks them too.
    older: tuple[str, ...] = ()

    @property
    def superseded(self) -> tuple[str, ...]:
        """The tasks that this one supersedes. Older ones that have not begun were superseded before this."""
        before = () if self.before is None else (self.before,)
        return before + self.older if self.stops_older else before


VERSIONS = RecordKind("unique", Newest)


def record_id(user_id: str, key: str) -> str:
    """The id of the record of a user's key."""
    return VERSIONS.id_of(user_id, key)


def versioned_id(user_id: str, unique: Unique) -> str:
    """The id of the one task of this version and run."""
    return str(uuid5(NAMESPACE_OID, f"{record_id(user_id, unique.key)}/{unique.version}/{unique.run}"))


def is_newer(unique: Unique, newest: Newest | None) -> bool:
    """Return whether a task is newer than the task that the record names."""
    return newest is None or (unique.version, unique.run) > (newest.version, newest.run)


def is_older(unique: Unique, newest: Newest | None) -> bool:
    """Return whether a task is older than the task that the record names."""
    return newest is not None and (unique.version, unique.run) < (newest.version, newest.run)


def answers_resubmission(task: Task) -> bool:
    """Return whether another submission of the same version gets this task: it is live, or has succeeded."""
    return task.status in LIVE | SUCCEEDED


def after_newest(task_id: str, unique: Unique, newest: Newest | None) -> Newest:
    """The content of the record after this task has become the newest."""
    if newest is None:
        return Newest(task_id, unique.version, unique.run, None, unique.stops_older)
    # A version that stops older ones has asked all of them before this.
    not_asked = () if newest.stops_older or newest.before is None else (newest.before, *newest.older)
    return Newest(task_id, unique.version, unique.run, newest.task_id, unique.stops_older, not_asked[:_MAX_OLDER])


def newest_record(task: Task, unique: Unique, existing: Record | None, kept: timedelta) -> Record:
    """The record that names this task.

    Args:
        task: a task that is stored.
        unique: which version and run it is.
        existing: the record that was read; None if there was no record.
        kept: the shortest time for which the record is kept, counted from the time at which the task can begin.
    """
    content = after_newest(task.task_id, unique, None if existing is None else VERSIONS.content(existing))
    expires_at = max(task.not_before, task.created_at) + kept + GRACE
    if existing is None:
        return VERSIONS.new(task.user_id, unique.key, content=content, expires_at=expires_at)
    return VERSIONS.changed(existing, content, expires_at=expires_at)


def to_header(unique: Unique) -> str:
    return f"{unique.version}/{unique.run}/{unique.key}"


def from_headers(headers: Mapping[str, str]) -> Unique | None:
    """The version of a message's task, as its headers say; None for a task without a version."""
    if (text := headers.get(UNIQUE_HEADER)) is None:
        return None
    try:
        version, run, key = text.split("/", 2)
        return Unique(key, int(version), int(run))
    except ValueError:  # this framework did not write the header
        return None
