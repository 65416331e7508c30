"""Work beside an earlier release that keeps idempotency keys unique by an index, and does not know records.

Both releases may write to one database for a while, and no key may be accepted twice during this time. So

- a task still contains its key, and the index refuses a second task with the key from any release. Then `find_by_keys`
  finds the first task, and the submission lets the key's record name it;
- when no process of an earlier release can write any more, each stored key gets a record, and the index is dropped;
- if a process of an earlier release starts later, it creates the index again, and these steps begin again.

A database that no earlier release has used does not have this index. This file can be deleted when no installation
upgrades from such a release any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic_core import from_json

from taskframework.background import end
from taskframework.errors import StoreError, StoreUnavailableError
from taskframework.model.idempotency import GRACE, IDEMPOTENCY, IdempotencyKey, key_id
from taskframework.model.records import Record, RecordKind
from taskframework.model.status import TaskStatus
from taskframework.model.wording import pluralize
from taskframework.stores.base import Records
from taskframework.stores.mongo.client import Connection, time_limit
from taskframework.stores.mongo.collection import BY_ID
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.expressions import in_status
from taskframework.stores.mongo.indexes import INDEX_BUILD, LIST_BY_STATUS
from taskframework.tasks.declarations import DECLARATION

logger = logging.getLogger(__name__)

INDEX = "idempotency"
#: The name with which earlier releases connect; this release adds a number (`APP_NAME`).
_APP_NAME = "taskframework"
_DECLARATIONS = "task_types"
#: Time between two looks.
_LOOK_INTERVAL = timedelta(minutes=1)
#: If the server does not say who is connected, an earlier release counts as gone if it stored no task for this long.
_QUIET_PERIOD = timedelta(days=1)
#: How long after its creation a task may become visible to a look. Less than `GRACE`, within which no key expires.
_MAX_VISIBILITY_DELAY = timedelta(minutes=2)
#: How long a submission may take between its two writes, each of which may take `store.timeout` (by default 10 s).
_MAX_SUBMISSION_TIME = timedelta(seconds=50)
_FIELDS = ("user_id", "idempotency_key", "parameters_hash")
_KEYED: Document = {"idempotency_key": {"$type": "string"}}


@dataclass(frozen=True, slots=True)
class Quiet:
    """Since when no earlier release has inserted a task with a key, and up to which time this was checked."""

    since: datetime
    looked_until: datetime


QUIET = RecordKind("migration", Quiet)
_RECORD = QUIET.id_of("idempotency-index")


class EarlierRelease:
    """Works beside processes of an earlier release, and removes the index and collection that only they need when they
    are gone.
    """

    def __init__(self, connection: Connection, records: Records, now: Callable[[], datetime]) -> None:
        """Prepare; `now` is the store's clock."""
        self._connection = connection
        self._tasks = connection.tasks
        self._records = records
        self._now = now
        #: Since when a record, by id and revision, names a task that is not stored: its submission may still run.
        self._doubts: dict[tuple[str, str | None], datetime] = {}
        self._cleaning_up: asyncio.Task[None] | None = None

    async def find_by_keys(self, documents: Sequence[Any]) -> dict[int, Document]:
        """The stored tasks with the idempotency keys of these documents, which the index refused; by position."""
        keys = [(document["user_id"], document["idempotency_key"]) for document in documents]  # may contain duplicates
        pairs = [{"user_id": user, "idempotency_key": key} for user, key in set(keys) if key is not None]
        found = await self._tasks.find({"$or": pairs}) if pairs else []
        by_key = {(task["user_id"], task["idempotency_key"]): task for task in found}
        return {at: by_key[key] for at, key in enumerate(keys) if key in by_key}

    async def start(self) -> None:
        """Look now, and every minute until `stop`."""
        await self.clean_up()
        self._cleaning_up = asyncio.create_task(self._keep_cleaning_up())

    async def stop(self) -> None:
        if self._cleaning_up is not None:
            await end(self._cleaning_up)

    async def _keep_cleaning_up(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_INTERVAL.total_seconds())
            await self.clean_up()

    async def clean_up(self) -> None:
        """Remove the index and collection of an earlier release, if no such process is left."""
        try:
            with time_limit(INDEX_BUILD):
                if INDEX in await self._tasks.indexes():
                    await self._copy_declarations()
                    await self._replace_index()
        except StoreUnavailableError as error:  # the outage is logged
            logger.debug("what is left of an earlier release is looked for later: %s", error.message)
        except StoreError as error:
            logger.warning("the index %r of an earlier release stays for now: %s", INDEX, error.message)

    async def _replace_index(self) -> None:
        began = self._now()
        connected = await count_connections(self._connection)
        if connected != 0 and not await self._is_quiet():
            return
        _, is_in_doubt = await self._record_keys(None)
        if is_in_doubt:
            return  # a later look decides: by then the running submission, or its process, has ended
        await self._tasks.drop_index(INDEX)
        await self._record_keys(began - _MAX_VISIBILITY_DELAY)  # in case a process started and stopped during this time
        await self._connection.collection(_DECLARATIONS).drop()
        logger.info("the index %r of an earlier release is dropped: each idempotency key has a record now", INDEX)

    async def _is_quiet(self) -> bool:
        """Return whether no earlier release has inserted a task with a key for a day."""
        now = self._now()
        record = (await self._records.read_records([_RECORD])).get(_RECORD)
        if record is None:
            await self._records.write_records([QUIET.new("idempotency-index", content=Quiet(now, now))])
            return False
        quiet = QUIET.content(record)
        found, _ = await self._record_keys(quiet.looked_until - _MAX_VISIBILITY_DELAY)
        since = now if found else quiet.since
        [written] = await self._records.write_records([QUIET.changed(record, Quiet(since, now))])
        return written is not None and now - since >= _QUIET_PERIOD

    async def _record_keys(self, created_since: datetime | None) -> tuple[int, bool]:
        """Give each key of a stored task a record; with a time, only keys of tasks created since that time.

        Returns:
            How many keys had no record, and whether it is still unknown for some keys which tasks they stand for.
        """
        found, is_in_doubt, index, wanted = 0, False, INDEX, _KEYED
        if created_since is not None:
            index = LIST_BY_STATUS
            wanted = {**_KEYED, "status": in_status(*TaskStatus), "created_at": {"$gte": created_since}}
        async for tasks in self._tasks.batches(wanted, _FIELDS, index):
            by_key = {key_id(task["user_id"], task["idempotency_key"]): task for task in tasks}
            existing = await self._records.read_records(by_key)
            new = [_record_of(task, self._now() + GRACE) for place, task in by_key.items() if place not in existing]
            await self._records.write_records(new)
            found += len(new)
            is_in_doubt |= await self._correct([(record, by_key[place]) for place, record in existing.items()])
        return found, is_in_doubt

    async def _correct(self, pairs: Sequence[tuple[Record, Document]]) -> bool:
        """Let records that name a missing task name the task with the key; return whether some records are in doubt."""
        named = {record.id: IDEMPOTENCY.content(record).task_id for record, _ in pairs}
        others = [(record, task) for record, task in pairs if named[record.id] != task["_id"]]
        if not others:
            return False
        ids = {"_id": {"$in": [named[record.id] for record, _ in others]}}
        existing = {task["_id"] for task in await self._tasks.find(ids, fields=("_id",), index=BY_ID)}
        wrong = [(record, task) for record, task in others if named[record.id] not in existing]
        now = self._now()
        for record, _ in wrong:
            self._doubts.setdefault((record.id, record.revision), now)
        sure = [
            (record, task)
            for record, task in wrong
            if now - self._doubts[record.id, record.revision] >= _MAX_SUBMISSION_TIME
        ]
        await self._records.write_records(
            [IDEMPOTENCY.changed(record, _content(task), expires_at=record.expires_at) for record, task in sure]
        )
        return len(sure) < len(wrong)

    async def _copy_declarations(self) -> None:
        """Copy the declarations of task types by workers of an earlier release, unless a newer declaration exists."""
        found = await self._connection.collection(_DECLARATIONS).find({})
        await self._records.write_records(
            [
                Record(DECLARATION.id_of(declared["_id"]), DECLARATION.name, from_json(declared["declaration"]))
                for declared in found
            ]
        )


async def count_connections(connection: Connection) -> int | None:
    """How many connections of an earlier release there are; None if the server does not say this."""
    if (await connection.hello()).get("msg") == "isdbgrid":
        return None  # a router knows only its own clients
    try:
        return await connection.count_clients(_APP_NAME)
    except StoreUnavailableError:
        raise
    except StoreError:
        return None


async def describe_state(connection: Connection) -> str | None:
    """The text of `doctor` about the index; None if the index does not exist."""
    if INDEX not in await connection.tasks.indexes():
        return None
    connected = await count_connections(connection)
    if connected:
        open_ones = f"{pluralize(connected, 'connection')} of it {'is' if connected == 1 else 'are'} open"
        return f"its index {INDEX!r} stays while {open_ones}, or it inserts keys"
    if connected == 0:
        return f"nothing of it is connected; its index {INDEX!r} goes within a minute, or with the next start"
    return (
        f"its index {INDEX!r} stays for a day without a new key of it, since it cannot be seen here (privilege inprog)"
    )


def _record_of(task: Document, expires_at: datetime) -> Record:
    return IDEMPOTENCY.new(task["user_id"], task["idempotency_key"], content=_content(task), expires_at=expires_at)


def _content(task: Document) -> IdempotencyKey:
    return IdempotencyKey(task["_id"], task["parameters_hash"])
