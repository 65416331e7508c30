"""The record of the repair of an unreadable message, so that the message becomes only one task."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from taskframework.model.records import RecordKind


@dataclass(frozen=True, slots=True)
class MessageRepair:
    """The repair of a message. It is stored before the task and decides the task's owner: a key belongs to a user."""

    user_id: str
    by: str
    at: datetime
    #: None: the task is about to be stored.
    task_id: str | None = None
    #: The hash of the task's type and parameters; None: the task is not stored yet, or an earlier release stored it.
    request_hash: str | None = None


MESSAGE_REPAIR = RecordKind("mended", MessageRepair)


def repair_key(message_id: str) -> str:
    """The idempotency key of the task that a message becomes."""
    return f"dead-letter/{message_id}"
