"""A worker's sign of life: a record in the store, from which operators see which workers exist."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from datetime import datetime

from taskframework.errors import StoreError
from taskframework.model.records import Record
from taskframework.model.workers import FORGOTTEN_AFTER, PRESENCE, Presence
from taskframework.settings.release import RELEASE
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_all_records, read_record

#: Seconds that a stop waits for the store. If the record stays, operators see a lost worker until the record is deleted
#: after ten minutes.
_WITHDRAW_TIMEOUT_SECONDS = 1.0


class SignOfLife:
    """Keeps the record of one worker. Nothing depends on it: only leases decide which worker may run a task."""

    def __init__(
        self,
        store: TaskStore,
        worker_id: str,
        task_types: Callable[[], Sequence[str]],
        concurrency: int,
        in_flight: Callable[[], int],
    ) -> None:
        """Prepare without writing.

        Args:
            store: has the record, and the clock for its times.
            worker_id: the same id as in the leases of this worker.
            task_types: returns the task types that the worker executes.
            concurrency: how many attempts the worker can run at once.
            in_flight: returns how many attempts the worker runs now.
        """
        self._store = store
        self._worker_id = worker_id
        self._record_id = PRESENCE.id_of(worker_id)
        self._task_types = task_types
        self._concurrency = concurrency
        self._in_flight = in_flight
        self._started_at: datetime | None = None
        self._is_withdrawn = False
        self._write_lock = asyncio.Lock()

    async def write(self) -> None:
        """Write the record again; after `withdraw` do nothing.

        Raises:
            StoreUnavailableError: if the record could not be written.
        """
        async with self._write_lock:
            if not self._is_withdrawn:
                # Read the record each time: the retention may have deleted it while the store was out of reach.
                stored, presence = await read_record(self._store, self._record_id), self._presence()
                until = presence.seen_at + FORGOTTEN_AFTER
                record = PRESENCE.with_id(self._record_id, stored, presence, expires_at=until)
                await self._store.write_records([record])

    async def withdraw(self) -> None:
        """Delete the record of this worker, because it stops, and the record of the lost worker that it replaced, so
        that no operator looks for that one. If the store is away, this waits only for a moment.
        """
        self._is_withdrawn = True
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_WITHDRAW_TIMEOUT_SECONDS), self._write_lock:
                if (stored := await read_record(self._store, self._record_id)) is not None:
                    replaced = await self._find_replaced(PRESENCE.content(stored))
                    await self._store.delete_records([stored, *replaced])

    async def _find_replaced(self, own: Presence) -> list[Record]:
        """The record of the lost worker in whose place this worker was started, if there is one."""
        lost = [
            (presence.seen_at, record)
            for record in await read_all_records(self._store, PRESENCE)
            if PRESENCE.is_readable(record)
            and (presence := PRESENCE.content(record)).is_lost(self._store.now())
            and own.replaces(presence)
        ]
        return [max(lost, key=lambda found: found[0])[1]] if lost else []

    def _presence(self) -> Presence:
        now = self._store.now()
        self._started_at = self._started_at or now
        return Presence(
            self._worker_id,
            socket.gethostname(),
            os.getpid(),
            RELEASE,
            tuple(sorted(self._task_types())),
            self._concurrency,
            self._in_flight(),
            self._started_at,
            now,
        )
