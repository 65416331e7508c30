"""The limits as an operator sees them: what each bucket lets through now, and who holds or waits for which slot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from taskframework.clock import from_timestamp, to_timestamp
from taskframework.limits.buckets import Buckets
from taskframework.model.limits import ReachedLimit, name_and_key
from taskframework.model.message import rfc3339
from taskframework.model.query import MAX_LIMIT
from taskframework.model.rate_limits import ROUNDING, Bucket, BucketLimit
from taskframework.model.slots import SLOTS, Slots
from taskframework.operations.traffic import read_traffic
from taskframework.stores.base import TaskStore
from taskframework.tasks.declarations import TaskDeclaration


@dataclass(frozen=True, slots=True)
class LimitState:
    """One bucket at one moment."""

    name: str
    #: The value of the field that is the key of the limit; None for the bucket of all tasks without a key.
    key: str | None
    limit: BucketLimit
    #: How many attempts may begin at once.
    available: int
    #: When the next attempt may begin, if none may begin now.
    next_at: datetime | None
    #: The last turn that was given to a task in the store; None if no task waits for its turn.
    last_turn_at: datetime | None

    def view(self) -> dict[str, object]:
        """Return the fields that callers get."""
        return {
            "kind": "rate",
            "name": self.name,
            "key": self.key,
            "rate": self.limit.rate,
            "burst_capacity": self.limit.burst,
            "available": self.available,
            "next_at": None if self.next_at is None else rfc3339(self.next_at),
            "last_turn_at": None if self.last_turn_at is None else rfc3339(self.last_turn_at),
        }


@dataclass(frozen=True, slots=True)
class SlotsState:
    """The slots of one concurrency limit at one moment."""

    #: The task type.
    name: str
    #: The value of the field that is the key of the limit; None for the slots of the whole type.
    key: str | None
    slots: Slots
    #: How many tasks wait for a slot: for a key up to `MAX_LIMIT`, for a whole type as many as its queues show.
    waiting: int

    def view(self) -> dict[str, object]:
        """Return the fields that callers get."""
        return {
            "kind": "concurrency",
            "name": self.name,
            "key": self.key,
            "number": self.slots.number,
            "holders": [
                {"task_id": it.task_id, "worker_id": it.worker_id, "since": rfc3339(from_timestamp(it.since))}
                for it in self.slots.holders
            ],
            "waiting": self.waiting,
        }


class LimitOperations:
    """Shows the buckets of rate limits, and the slots of concurrency limits."""

    def __init__(self, buckets: Buckets, limits: Mapping[str, BucketLimit], store: TaskStore) -> None:
        """Prepare to look.

        Args:
            buckets: the buckets; if they are in memory, only those of this process are seen.
            limits: how much each bucket lets through, by its name.
            store: has the slots and the tasks that wait for a slot; tells the time.
        """
        self._buckets = buckets
        self._limits = limits
        self._store = store

    async def list_slots(self, limit: int) -> Sequence[SlotsState]:
        """Return the slots of each task type, and of each key, that were taken lately; by name and key.

        Args:
            limit: the most entries.

        Raises:
            StoreUnavailableError: if the store is away.
        """
        states = []
        found = SLOTS.contents(await self._store.list_records(SLOTS.name, limit=limit))
        limits = {record_id: name_and_key(record_id) for record_id in found}
        if found:
            traffic = await read_traffic(self._store, {name for name, _ in limits.values()})
        for record_id, (name, key) in limits.items():
            if key is not None:
                waiting = len(await self._store.waiting_for(record_id, MAX_LIMIT))
            else:
                waiting = traffic.of_type(name).waiting
            states.append(SlotsState(name, key, found[record_id], waiting))
        return states

    async def reached(self, task_types: Iterable[TaskDeclaration]) -> Mapping[str, Sequence[ReachedLimit]]:
        """Return which limits let no more tasks of each of these types begin now, as far as this process sees them.

        Raises:
            StoreUnavailableError: if the store is away.
            LimiterUnavailableError: if the buckets are in Redis, and Redis is away.
        """
        slots = [
            ReachedLimit("concurrency", *name_and_key(record_id))
            for record_id, found in SLOTS.contents(await self._store.list_records(SLOTS.name, limit=MAX_LIMIT)).items()
            if found.are_all_in_use
        ]
        rates = [
            ReachedLimit("rate", state.name, state.key)
            for state in await self.list_limits(MAX_LIMIT)
            if state.available == 0 or state.last_turn_at is not None
        ]
        return {
            declared.task_type: [limit for limit in rates if limit.name == declared.rate_limit]
            + [limit for limit in slots if limit.name == declared.task_type]
            for declared in task_types
        }

    async def list_limits(self, limit: int) -> Sequence[LimitState]:
        """Return the buckets of the settings, and the buckets of keys that gave permits lately; by name and key.

        Args:
            limit: the most buckets.

        Raises:
            StoreUnavailableError: if the buckets are in the store, and the store is away.
            LimiterUnavailableError: if the buckets are in Redis, and Redis is away.
        """
        found: dict[tuple[str, str | None], Bucket] = {(name, None): Bucket() for name in self._limits}
        for record_id, bucket in await self._buckets.list_known(limit):
            name, key = name_and_key(record_id)
            if name in self._limits:  # it may have been removed from the settings
                found[name, key] = bucket
        now = self._store.now()
        states = [state_of(name, key, self._limits[name], bucket, now) for (name, key), bucket in found.items()]
        return sorted(states, key=lambda state: (state.name, state.key is not None, state.key or ""))[:limit]


def state_of(name: str, key: str | None, limit: BucketLimit, bucket: Bucket, now: datetime) -> LimitState:
    """Return what a bucket lets through now."""
    seconds = to_timestamp(now)
    missing = max(0.0, bucket.full_at - seconds) * limit.rate
    available = max(0, math.floor(limit.burst - missing + ROUNDING))
    next_at = None if available else now + timedelta(seconds=(missing - limit.capacity + 1) / limit.rate)
    last_turn = bucket.last_turn_over_at - 1 / limit.rate - seconds
    last_turn_at = now + timedelta(seconds=last_turn) if last_turn > 0 else None
    return LimitState(name, key, limit, available, next_at, last_turn_at)
