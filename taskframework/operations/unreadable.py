"""Finds tasks and records that cannot be read: lists leave them out, so nothing else shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskframework.model.audit import AUDIT
from taskframework.model.counts import COUNTS
from taskframework.model.debounce import WINDOWS
from taskframework.model.idempotency import IDEMPOTENCY
from taskframework.model.keys import KEY
from taskframework.model.message_repairs import MESSAGE_REPAIR
from taskframework.model.pauses import PAUSE, RESUMED
from taskframework.model.plans import PLAN
from taskframework.model.query import MAX_LIMIT, TaskFilter
from taskframework.model.rate_limits import RATE
from taskframework.model.records import RecordKind
from taskframework.model.replay_keys import REPLAY_KEY
from taskframework.model.replays import REPLAY, RUNNING_ACTION
from taskframework.model.schedules import SCHEDULE
from taskframework.model.scope import EVERYONE
from taskframework.model.slots import SLOTS
from taskframework.model.status import DEAD, LIVE
from taskframework.model.streams import STREAMS
from taskframework.model.versions import VERSIONS
from taskframework.model.workers import PRESENCE
from taskframework.stores.base import Records, TaskStore
from taskframework.tasks.declarations import DECLARATION

#: How many records of a kind, and pages of tasks of a status, are looked at.
_MAX_RECORDS, _MAX_PAGES = 1_000, 2
_KINDS: Sequence[RecordKind[Any]] = (
    AUDIT,
    COUNTS,
    DECLARATION,
    IDEMPOTENCY,
    KEY,
    MESSAGE_REPAIR,
    PAUSE,
    PLAN,
    PRESENCE,
    RATE,
    REPLAY,
    REPLAY_KEY,
    RESUMED,
    RUNNING_ACTION,
    SCHEDULE,
    SLOTS,
    STREAMS,
    VERSIONS,
    WINDOWS,
)


async def find_unreadable_records(store: Records) -> list[str]:
    """Return the ids of records that cannot be read, among the first thousand of each kind."""
    found: list[str] = []
    for kind in _KINDS:
        records = await store.list_records(kind.name, limit=_MAX_RECORDS)
        readable = kind.contents(records)
        found += [record.id for record in records if record.id not in readable]
    return found


async def find_unreadable_tasks(store: TaskStore) -> list[str]:
    """Return the ids of tasks that cannot be read, among the newest thousand of each status that is not a success."""
    found: list[str] = []
    for status in sorted(LIVE | DEAD):
        cursor = None
        for _ in range(_MAX_PAGES):
            page = await store.list_tasks(EVERYONE, TaskFilter(status=status), limit=MAX_LIMIT, cursor=cursor)
            found += page.left_out
            if (cursor := page.next_cursor) is None:
                break
    return found
