"""Records what operators do, and reads these records."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from taskframework.errors import StoreError, TaskframeworkError
from taskframework.model.audit import AUDIT, AuditEntry, audit_record, cursor_of
from taskframework.model.keys import with_prefixes_only
from taskframework.model.query import CursorInvalidError, Page
from taskframework.model.records import Record
from taskframework.model.values import Json
from taskframework.model.view import format_time
from taskframework.stores.base import Records

logger = logging.getLogger(__name__)

_CURSOR_PATTERN = re.compile(r"[0-9]{15}-[0-9a-f]{12}")
#: How many entries one read takes, and the most reads for one page: a filter that finds little gives a short page.
_LIST_BATCH_SIZE = 500
_MAX_READS = 20


def audit_view(entry: AuditEntry) -> dict[str, Any]:
    """Return an entry as plain JSON."""
    return {
        "at": format_time(entry.at),
        "by": entry.by,
        "action": entry.action,
        "target": entry.target,
        "reason": entry.reason,
        "details": entry.details,
        "refusal": entry.refusal,
    }


class Noted:
    """An action that was recorded; its code may set why the action was refused."""

    def __init__(self) -> None:
        self.refusal: str | None = None


class AuditLog:
    """The record of all operators' actions; each action is recorded here before it is done."""

    def __init__(self, records: Records, now: Callable[[], datetime], kept: timedelta | None) -> None:
        """Prepare.

        Args:
            records: where the entries are.
            now: returns the store's time.
            kept: how long an entry is kept; None means for ever.
        """
        self._records = records
        self._now = now
        self._kept = kept

    @asynccontextmanager
    async def noted(
        self, action: str, target: str | None, *, by: str, reason: str | None = None, **details: Json
    ) -> AsyncIterator[Noted]:
        """Record an action, then run the block; if the block raises an error or sets a refusal, record that too. API
        keys in the texts are cut to their prefixes.

        Args:
            action: what is done to which sort of thing, such as `queue.pause`.
            target: the name or id of the thing.
            by: the operator.
            reason: why the action is done.
            details: further facts; a value of None is left out.

        Raises:
            StoreUnavailableError: if the action could not be recorded; then nothing is done.
        """
        target, reason = (None if text is None else with_prefixes_only(text) for text in (target, reason))
        given_details = {name: value for name, value in details.items() if value is not None}
        entry = AuditEntry(self._now(), by, action, target, reason, given_details)
        [record] = await self._records.write_records([audit_record(entry, self._kept)])
        noted = Noted()
        try:
            yield noted
        except TaskframeworkError as error:
            if not isinstance(error, StoreError):  # after a StoreError the action may still have been done
                noted.refusal = error.message
            raise
        finally:
            if record is not None and noted.refusal is not None:
                await self._add_refusal(record, replace(entry, refusal=with_prefixes_only(noted.refusal)))

    async def _add_refusal(self, record: Record, refused: AuditEntry) -> None:
        try:
            await self._records.write_records([AUDIT.changed(record, refused, expires_at=record.expires_at)])
        except StoreError as error:  # the caller gets the refusal, and not this error in its place
            logger.warning("the audit log lacks the refusal of %s: %s", refused.action, error.message)

    async def list_entries(
        self, *, limit: int, cursor: str | None = None, by: str | None = None, action: str | None = None
    ) -> Page[AuditEntry]:
        """Return entries from the newest to the oldest. A page may be short although further pages follow.

        Args:
            limit: the most entries of the page.
            cursor: `next_cursor` of the page before.
            by: only entries of this operator.
            action: only this action, or actions on this sort of thing: `queue` for `queue.pause` and `queue.resume`.

        Raises:
            CursorInvalidError: if the cursor does not belong to this list.
        """
        if cursor is not None and _CURSOR_PATTERN.fullmatch(cursor) is None:
            raise CursorInvalidError
        found: list[AuditEntry] = []
        for _ in range(_MAX_READS):
            after = "" if cursor is None else AUDIT.id_of(cursor)
            records = await self._records.list_records(AUDIT.name, limit=_LIST_BATCH_SIZE, after=after)
            readable = AUDIT.contents(records)
            for record in records:
                if len(found) == limit:
                    return Page(tuple(found), cursor)
                cursor, entry = cursor_of(record), readable.get(record.id)
                if entry is None or by not in (None, entry.by):
                    continue
                if action in (None, entry.action, entry.action.partition(".")[0]):
                    found.append(entry)
            if len(records) < _LIST_BATCH_SIZE:
                return Page(tuple(found), None)
        return Page(tuple(found), cursor)
