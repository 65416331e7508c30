"""Brings turns of rate limits forward that are later than they need be.

A turn is given at the rate of that moment. After the rate was raised, or tasks before it were cancelled, the bucket of
a key is full while its tasks still wait for their old turns. Without this repair they would wait as long as the old
rate says, and later tasks of the key behind them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from taskframework.clock import to_timestamp
from taskframework.errors import TaskUnreadableError
from taskframework.limits.buckets import Buckets, LimiterUnavailableError
from taskframework.model.marks import MakeDue
from taskframework.model.rate_limits import Bucket, BucketLimit, has_idle_permits
from taskframework.model.records import parts_of
from taskframework.stores.base import TaskStore

#: At most this many buckets are looked at: of those that are in use, the first by their ids.
_MAX_BUCKETS = 1_000
#: One look gives new turns to the tasks of this many seconds. If the bucket is idle again, a look finds it before that.
_SECONDS_AHEAD = 60.0
#: But at most this many turns of a bucket: the tasks are read and written together.
_MAX_TURNS = 2_000


class RateTurnRepair:
    """Gives new turns to the first tasks of each key whose bucket is idle."""

    def __init__(
        self,
        buckets: Buckets,
        limits: Mapping[str, BucketLimit],
        store: TaskStore,
        is_paused: Callable[[str], bool],
    ) -> None:
        """Prepare.

        Args:
            buckets: where the buckets are.
            limits: how much the buckets of a name let through.
            store: where the tasks are.
            is_paused: whether a task type is paused; its tasks begin after the pause.
        """
        self._buckets = buckets
        self._limits = limits
        self._store = store
        self._is_paused = is_paused

    async def run_once(self) -> None:
        """Look at the buckets once.

        Raises:
            StoreError: if the store failed.
        """
        now = to_timestamp(self._store.now())
        for record_id, bucket in await self._known_buckets():
            limit = self._limits.get(parts_of(record_id)[0])
            if limit is not None and has_idle_permits(bucket, limit, now):
                with contextlib.suppress(TaskUnreadableError):  # the processes of the newer release that wrote it do it
                    await self._bring_forward(record_id, limit)

    async def _known_buckets(self) -> Sequence[tuple[str, Bucket]]:
        try:
            return await self._buckets.list_known(_MAX_BUCKETS)
        except LimiterUnavailableError:  # logged once by the buckets themselves; no task could get a permit now
            return []

    async def _bring_forward(self, record_id: str, limit: BucketLimit) -> None:
        now = self._store.now()
        at_once = math.floor(limit.capacity)
        most = min(_MAX_TURNS, at_once + math.ceil(limit.rate * _SECONDS_AHEAD))
        turns = []
        for place, task in enumerate(await self._store.waiting_for(record_id, most)):
            wait = timedelta(seconds=max(0, place + 1 - at_once) / limit.rate)
            # A task that was dispatched has its message: it waits for a worker, and needs no second message.
            if task.dispatches == 0 and task.due > now + wait and not self._is_paused(task.task_type):
                turns.append(MakeDue(task.task_id, task.dispatch_epoch, wait, record_id, due=task.due))
        await self._store.mark(*turns)
