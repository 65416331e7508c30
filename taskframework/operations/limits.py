"""The limits as an operator sees them: what each bucket would let through now."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import unquote

from taskframework.limits.buckets import Buckets
from taskframework.model.message import rfc3339
from taskframework.model.rate_limits import ROUNDING, Bucket, BucketLimit, seconds_of


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
            "name": self.name,
            "key": self.key,
            "rate": self.limit.rate,
            "burst_capacity": self.limit.burst,
            "available": self.available,
            "next_at": None if self.next_at is None else rfc3339(self.next_at),
            "last_turn_at": None if self.last_turn_at is None else rfc3339(self.last_turn_at),
        }


class LimitOperations:
    """Shows the buckets of rate limits."""

    def __init__(self, buckets: Buckets, limits: Mapping[str, BucketLimit], now: Callable[[], datetime]) -> None:
        """Prepare to look.

        Args:
            buckets: where they are; those in memory are this process's own.
            limits: how much each lets through, by its name.
            now: tells the store's time.
        """
        self._buckets = buckets
        self._limits = limits
        self._now = now

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
        now = self._now()
        states = [_state(name, key, self._limits[name], bucket, now) for (name, key), bucket in found.items()]
        return sorted(states, key=lambda state: (state.name, state.key is not None, state.key or ""))[:limit]


def _state(name: str, key: str | None, limit: BucketLimit, bucket: Bucket, now: datetime) -> LimitState:
    seconds = seconds_of(now)
    missing = max(0.0, bucket.full_at - seconds) * limit.rate
    available = max(0, math.floor(limit.burst - missing + ROUNDING))
    next_at = None if available else now + timedelta(seconds=(missing - limit.burst + 1) / limit.rate)
    last_turn = bucket.line_at - 1 / limit.rate - seconds
    last_turn_at = now + timedelta(seconds=last_turn) if last_turn > 0 else None
    return LimitState(name, key, limit, available, next_at, last_turn_at)
