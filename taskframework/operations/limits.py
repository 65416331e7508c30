"""The limits as an operator sees them: what each bucket would let through now, and who holds and wants which slot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import unquote

from taskframework.limits.buckets import Buckets
from taskframework.model.message import rfc3339
from taskframework.model.query import MAX_LIMIT
from taskframework.model.rate_limits import ROUNDING, Bucket, BucketLimit, seconds_of
from taskframework.model.slots import SLOTS, Slots, moment_of
from taskframework.operations.traffic import read_traffic
from taskframework.stores.base import TaskStore


@dataclass(frozen=True, slots=True)
class LimitState:
    """One bucket at one moment."""

    name: str
    #: The value of the field that the limit has for its key; None: the bucket of all that have no key.
    key: str | None
    limit: BucketLimit
    #: How many attempts may begin at once.
    available: int
    #: When the next one may begin, if none may now.
    next_at: datetime | None
    #: The last turn that was given to a task in the store; None: none waits for its turn.
    last_turn_at: datetime | None

    def view(self) -> dict[str, object]:
        """What callers get."""
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
    #: The value of the field that the limit has for its key; None: the slots of the whole type.
    key: str | None
    slots: Slots
    #: How many tasks wait for one: of a key up to `MAX_LIMIT`, of a whole type as many as its queues show.
    waiting: int

    def view(self) -> dict[str, object]:
        """What callers get."""
        return {
            "kind": "concurrency",
            "name": self.name,
            "key": self.key,
            "number": self.slots.number,
            "holders": [
                {"task_id": it.task_id, "worker_id": it.worker_id, "since": rfc3339(moment_of(it.since))}
                for it in self.slots.holders
            ],
            "waiting": self.waiting,
        }


class LimitOperations:
    """Shows the buckets of rate limits, and the slots of concurrency limits."""

    def __init__(self, buckets: Buckets, limits: Mapping[str, BucketLimit], store: TaskStore) -> None:
        """Prepare to look.

        Args:
            buckets: where they are; those in memory are this process's own.
            limits: how much each lets through, by its name.
            store: where the slots are, and what waits for one; tells the time.
        """
        self._buckets = buckets
        self._limits = limits
        self._store = store

    async def list_slots(self, limit: int) -> Sequence[SlotsState]:
        """The slots of each task type, and of each key, that were taken lately; by name and key.

        Args:
            limit: most of them.

        Raises:
            StoreUnavailableError: if the store is away.
        """
        states = []
        if records := await self._store.list_records(SLOTS.name, limit=limit):
            traffic = await read_traffic(self._store)
        for record in records:
            _, name, *keys = map(unquote, record.id.split("/"))
            if keys:
                waiting = len(await self._store.waiting_for(record.id, MAX_LIMIT))
            else:
                waiting = traffic.of_type(name).waiting
            states.append(SlotsState(name, keys[0] if keys else None, SLOTS.content(record), waiting))
        return states

    async def list_limits(self, limit: int) -> Sequence[LimitState]:
        """The buckets of the settings, and one for each key from which permits were taken lately; by name and key.

        Args:
            limit: most buckets.

        Raises:
            StoreUnavailableError: if they are in the store, and that is away.
            LimiterUnavailableError: if they are in Redis, and that is away.
        """
        found: dict[tuple[str, str | None], Bucket] = {(name, None): Bucket() for name in self._limits}
        for record_id, bucket in await self._buckets.known(limit):
            _, name, *key = map(unquote, record_id.split("/"))
            if name in self._limits:  # not one that was taken out of the settings
                found[name, key[0] if key else None] = bucket
        now = self._store.now()
        states = [state_of(name, key, self._limits[name], bucket, now) for (name, key), bucket in found.items()]
        return sorted(states, key=lambda state: (state.name, state.key is not None, state.key or ""))[:limit]


def state_of(name: str, key: str | None, limit: BucketLimit, bucket: Bucket, now: datetime) -> LimitState:
    """What a bucket would let through now."""
    seconds = seconds_of(now)
    missing = max(0.0, bucket.full_at - seconds) * limit.rate
    available = max(0, math.floor(limit.burst - missing + ROUNDING))
    next_at = None if available else now + timedelta(seconds=(missing - limit.at_once + 1) / limit.rate)
    last_turn = bucket.last_turn_over_at - 1 / limit.rate - seconds
    last_turn_at = now + timedelta(seconds=last_turn) if last_turn > 0 else None
    return LimitState(name, key, limit, available, next_at, last_turn_at)
