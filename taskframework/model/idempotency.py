"""Idempotency keys: a record for each key of a user, which names the one task that the key stands for.

The record is written before its task, with the id that the task is going to have. A second submission, also one that
finishes the work of a dead process, inserts the task under the same id. Of two inserts, the second finds the task of
the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from taskframework.model.records import Record, RecordKind
from taskframework.model.task import Task

#: How long after the earliest time at which a key may expire the retention looks at it. Most tasks have ended by then,
#: so that one look is enough. It is also how long a process may take from the write of the record to the insert of the
#: task.
GRACE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What a key stands for: a task, and the hash of the type and the parameters that were submitted."""

    task_id: str
    #: `NO_REQUEST` if the request was refused. Then the next request with the key takes the task id, whatever it asks
    #: for. The record stays, because another request may be storing the task at this moment: of all that have the id,
    #: only one is stored.
    request_hash: str

    def is_for(self, task: Task) -> bool:
        """Return whether a task may be stored under this key: it is what the key stands for, or the key is free."""
        return self.request_hash in (task.parameters_hash, NO_REQUEST)


NO_REQUEST = ""
IDEMPOTENCY = RecordKind("idempotency", IdempotencyKey)


def key_id(user_id: str, key: str) -> str:
    """The id of the record of a user's key."""
    return IDEMPOTENCY.id_of(user_id, key)


def with_task_id(task: Task, task_id: str) -> Task:
    """A task that is not stored yet, with another id: the id of the task that its key stands for."""
    correlation_id = task_id if task.correlation_id == task.task_id else task.correlation_id
    return task.evolve(task_id=task_id, correlation_id=correlation_id)


def has_id_from_key(task: Task) -> bool:
    """Return whether the id of a task was made from a key, so that another submission makes the same id.

    Such an id is a UUID of version 5; any other id is of version 7.
    """
    return task.task_id[14:15] == "5"


def key_record(task: Task, kept: timedelta) -> Record:
    """The record of a task's key, for a task that is about to be inserted.

    Args:
        task: a task that has a key.
        kept: how long a key is kept after the end of its task.
    """
    content = IdempotencyKey(task.task_id, task.parameters_hash)
    earliest_end = max(task.not_before, task.created_at)
    return IDEMPOTENCY.new(
        task.user_id, task.idempotency_key or "", content=content, expires_at=earliest_end + kept + GRACE
    )


def kept_until(finished_at: datetime | None, now: datetime, kept: timedelta) -> datetime | None:
    """When to look again at a key whose task is stored; None: the key's time is over.

    Args:
        finished_at: when its task ended; None while the task is live, because a live task keeps its key.
        now: the store's time.
        kept: how long a key is kept after the end of its task.
    """
    if finished_at is None:
        return now + max(kept, GRACE)
    return finished_at + kept if finished_at + kept > now else None
