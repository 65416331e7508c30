"""The audit: a record for each thing that an operator asked for, in the order of time."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from taskframework.model.records import Record, RecordKind
from taskframework.model.values import Json

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Ids count down from here, in milliseconds, so that the newest entry is the first one of its kind.
_END = 10**15 - 1


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who asked for what, when and why. It is stored before it is done, so nothing is done without an entry."""

    at: datetime
    by: str
    #: The kind of target and what was done to it, such as `queue.pause`.
    action: str
    #: The name or id of what it was done to; None for an action on all that a filter finds.
    target: str | None
    reason: str | None
    details: Json
    #: Why it was refused. None: it was done, or the process died while it did it.
    refusal: str | None = None


AUDIT = RecordKind("audit", AuditEntry)


def entry_of(entry: AuditEntry, kept: timedelta | None) -> Record:
    """The record of a new entry.

    Args:
        entry: what it says.
        kept: how long; None: for ever.
    """
    place = f"{_END - (entry.at - _EPOCH) // timedelta(milliseconds=1):015d}-{secrets.token_hex(6)}"
    return AUDIT.new(place, content=entry, expires_at=None if kept is None else entry.at + kept)


def place_of(record: Record) -> str:
    """Where an entry is in the list of all, as a cursor."""
    return record.id.removeprefix(f"{AUDIT.name}/")
