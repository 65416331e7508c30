"""Retention: deletes tasks and records after the time for which they are kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from taskframework.errors import TaskUnreadableError, ValueNotStorableError
from taskframework.model.debounce import WINDOWS
from taskframework.model.idempotency import IDEMPOTENCY, kept_until
from taskframework.model.plans import PLAN, PLAN_CHECK_INTERVAL, are_plan_parts_needed
from taskframework.model.records import Record, RecordKind
from taskframework.model.scope import EVERYONE
from taskframework.model.streams import STREAMS, record_kept_for, stream_key_of
from taskframework.model.versions import VERSIONS
from taskframework.model.wording import pluralize
from taskframework.stores.base import TaskStore

logger = logging.getLogger(__name__)

#: The kinds whose records name a task, and all kinds whose records are read before they are deleted.
_KEY_KINDS = (IDEMPOTENCY, VERSIONS, WINDOWS)
_READ_KINDS: dict[str, RecordKind[Any]] = {kind.name: kind for kind in (*_KEY_KINDS, STREAMS, PLAN)}
#: When to look again at a record that this release cannot read. Until then it holds up no records that came later.
_UNREADABLE_CHECK_INTERVAL = timedelta(hours=1)


def _is_readable(record: Record) -> bool:
    kind = _READ_KINDS.get(record.kind)
    return kind is None or kind.is_readable(record)


class RetentionRepair:
    """Deletes finished tasks, dead letters and records after their time."""

    def __init__(
        self,
        store: TaskStore,
        *,
        finished: timedelta | None,
        dead_letters: timedelta | None,
        idempotency_keys: timedelta,
        limit: int,
    ) -> None:
        """Prepare to delete at most `limit` tasks or records of each sort at once. None keeps a sort for ever."""
        self._store = store
        self._finished = finished
        self._dead_letters = dead_letters
        self._keys = idempotency_keys
        self._limit = limit

    async def purge(self) -> bool:
        """Delete one group of tasks and one group of records.

        Returns:
            Whether there may be more.
        """
        expired = await self._store.expired_records(self._limit)
        by_kind: dict[str, list[Record]] = {}
        stuck = 0
        for record in expired:
            if _is_readable(record):
                by_kind.setdefault(record.kind, []).append(record)
            elif not await self._look_later(record):
                stuck += 1
        for kind in _KEY_KINDS:
            if keys := by_kind.pop(kind.name, None):
                await self._check_keys(kind, keys)
        if streams := by_kind.pop(STREAMS.name, None):
            await self._check_streams(streams)
        if parts := by_kind.pop(PLAN.name, None):
            await self._check_plans(parts)
        await self._store.delete_records([record for records in by_kind.values() for record in records])
        removed = await self._store.purge(finished=self._finished, dead_letters=self._dead_letters, limit=self._limit)
        if removed:
            logger.info("deleted %s whose retention is over", pluralize(removed, "ended task"))
        # Whatever was deleted, others may be free to go now: a parent stays while its sub-tasks are stored.
        return (len(expired) == self._limit and stuck < self._limit) or removed > 0

    async def _look_later(self, record: Record) -> bool:
        """Move the look at an unreadable record; return False if its data cannot be written as they are."""
        if record.data is None:  # damaged: what is left of it is for who repairs it
            return False
        until = self._store.now() + _UNREADABLE_CHECK_INTERVAL
        try:
            await self._store.write_records([replace(record, expires_at=until)])
        except ValueNotStorableError:  # a value that was written by hand and is not JSON
            return False
        return True

    async def _check_keys(self, kind: RecordKind[Any], records: Sequence[Record]) -> None:
        """Keep a key whose task is live, or ended too recently, and look at it again later; delete any other key.

        So the writes that end tasks need not change keys. If two processes look at the same record, the second process
        changes nothing, because the record has a new revision.
        """
        contents = {record.id: kind.content(record) for record in records}
        ends = await self._store.finished_at([content.task_id for content in contents.values()])
        now = self._store.now()
        kept, expired = [], []
        for record in records:
            content = contents[record.id]
            until = kept_until(ends[content.task_id], now, self._keys) if content.task_id in ends else None
            if until is None:
                expired.append(record)
            else:
                kept.append(kind.changed(record, content, expires_at=until))
        await self._store.write_records(kept)
        await self._store.delete_records(expired)

    async def _check_streams(self, records: Sequence[Record]) -> None:
        """Keep the record of a stream while a task of the stream is stored, so that no position is given twice.

        The record of a halted stream stays until somebody lets the stream continue, even if all its tasks are deleted.
        """
        until = self._store.now() + record_kept_for(self._finished)
        for record in records:
            content = STREAMS.content(record)
            if content.is_halted or await self._store.stream_times(stream_key_of(record.id), limit=1):
                kept = STREAMS.changed(record, content, expires_at=until)
                await self._store.write_records([kept])
            else:
                await self._store.delete_records([record])

    async def _check_plans(self, records: Sequence[Record]) -> None:
        """Keep a part of a plan while its attempt runs, or while its sub-tasks are still to be stored."""
        until = self._store.now() + PLAN_CHECK_INTERVAL
        needed: dict[tuple[str, int], bool] = {}
        kept, expired = [], []
        for record in records:
            part = PLAN.content(record)
            attempt = (part.task_id, part.fencing_token)
            if attempt not in needed:
                needed[attempt] = await self._are_parts_needed(*attempt)
            if needed[attempt]:
                kept.append(PLAN.changed(record, part, expires_at=until))
            else:
                expired.append(record)
        await self._store.write_records(kept)
        await self._store.delete_records(expired)

    async def _are_parts_needed(self, task_id: str, fencing_token: int) -> bool:
        try:
            return are_plan_parts_needed(await self._store.get(task_id, EVERYONE), fencing_token)
        except TaskUnreadableError:  # a newer release wrote the task, and its processes decide
            return True
