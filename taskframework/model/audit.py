"""The audit: a record for each action that an operator requested, in the order of time."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from taskframework.clock import to_milliseconds
from taskframework.model.records import Record, RecordKind
from taskframework.model.values import Json

#: Ids count down from here, in milliseconds, so that the newest entry is the first one of its kind.
_MAX_MILLISECONDS = 10**15 - 1


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who requested which action, when and why. It is stored before the action, so no action is without an entry."""

    at: datetime
    by: str
    #: The kind of target and what was done to it, such as `queue.pause`.
    action: str
    #: The name or id of the target; None for an action on everything that a filter finds.
    target: str | None
    reason: str | None
    details: Json
    #: Why the action was refused. None: it was done, or the process died while it did the action.
    refusal: str | None = None


AUDIT = RecordKind("audit", AuditEntry)


def audit_record(entry: AuditEntry, kept: timedelta | None) -> Record:
    """The record of a new entry.

    Args:
        entry: the content of the record.
        kept: how long the record is kept; None: forever.
    """
    place = f"{_MAX_MILLISECONDS - to_milliseconds(entry.at):015d}-{secrets.token_hex(6)}"
    return AUDIT.new(place, content=entry, expires_at=None if kept is None else entry.at + kept)


def cursor_of(record: Record) -> str:
    """The cursor of an entry in the list of all entries."""
    return record.id.removeprefix(f"{AUDIT.name}/")
