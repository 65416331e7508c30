"""The bucket port, and the buckets that need no extra server: in the store, or in the memory of this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from taskframework.clock import Clock, to_timestamp
from taskframework.errors import TaskframeworkError
from taskframework.grouping import Grouping
from taskframework.model.rate_limits import RATE, Bucket, HoldBucket, TakePermits, moved_back
from taskframework.stores.base import Records
from taskframework.stores.reading import read_record


class LimiterUnavailableError(TaskframeworkError):
    """The server of the rate limits cannot be reached."""

    hint = "Check that it runs and that rate_limiter.redis_url is right."


class Buckets(Protocol):
    """The buckets of rate limits. The rules in `taskframework.model.rate_limits` define what each call does."""

    async def take(self, take: TakePermits) -> Bucket:
        """Take permits; may wait while the buckets cannot be reached.

        Returns:
            The bucket after the request, with the permits that the request got.

        Raises:
            StoreUnavailableError: if the buckets are in the store, and the store is away.
        """
        ...

    async def hold(self, hold: HoldBucket) -> None:
        """Let no attempt begin for a time.

        Raises:
            TaskframeworkError: if the buckets are away.
        """
        ...

    async def read(self, record_id: str) -> Bucket | None:
        """Return a bucket as the last request left it; None if it is full and no task waits for it.

        Raises:
            TaskframeworkError: if the buckets are away.
        """
        ...

    async def list_known(self, limit: int) -> Sequence[tuple[str, Bucket]]:
        """Return buckets that are not known to be full, by their ids.

        Raises:
            TaskframeworkError: if the buckets are away.
        """
        ...

    async def close(self) -> None: ...


class StoreBuckets:
    """Buckets as records in the store, by its clock: one limit for all processes that share the store."""

    def __init__(self, store: Records) -> None:
        self._store = store

    async def take(self, take: TakePermits) -> Bucket:
        return RATE.content(await self._store.change_record(take))

    async def hold(self, hold: HoldBucket) -> None:
        await self._store.change_record(hold)

    async def read(self, record_id: str) -> Bucket | None:
        record = await read_record(self._store, record_id)
        return None if record is None else RATE.content(record)

    async def list_known(self, limit: int) -> Sequence[tuple[str, Bucket]]:
        return list(RATE.contents(await self._store.list_records(RATE.name, limit=limit)).items())

    async def close(self) -> None:
        """Do nothing: the code that opened the store closes it."""


class MemoryBuckets:
    """Buckets of this process only. Another process, or this process after a restart, begins with full buckets."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[str, Bucket] = {}
        self._forget_at = 0.0
        #: The time of the last look at the clock.
        self._seen_at = 0.0

    async def take(self, take: TakePermits) -> Bucket:
        return self.change(take)

    async def hold(self, hold: HoldBucket) -> None:
        self.change(hold)

    async def read(self, record_id: str) -> Bucket | None:
        self._read_clock()
        return self._buckets.get(record_id)

    async def list_known(self, limit: int) -> Sequence[tuple[str, Bucket]]:
        self._read_clock()
        return sorted(self._buckets.items())[:limit]

    async def close(self) -> None:
        """Do nothing."""

    def change(self, change: TakePermits | HoldBucket) -> Bucket:
        """Make a request; return the bucket after it."""
        now = self._read_clock()
        self._forget_full_buckets(now)
        bucket = self._buckets[change.record_id] = change.apply(self._buckets.get(change.record_id), now)
        return bucket

    def _read_clock(self) -> float:
        """Return the time. If the clock of the machine was set back, its buckets go back too: otherwise they would have
        no permit for as long as the clock was set back.
        """
        now = to_timestamp(self._clock.now())
        if (back := self._seen_at - now) > 0:
            self._buckets = {name: moved_back(it, back) for name, it in self._buckets.items()}
            self._forget_at -= back
        self._seen_at = now
        return now

    def _forget_full_buckets(self, now: float) -> None:
        """Forget full buckets once a minute, because with a key for each user there may be many."""
        if now >= self._forget_at:
            self._forget_at = now + 60
            self._buckets = {name: it for name, it in self._buckets.items() if to_timestamp(it.expires_at) > now}


class JointTakes:
    """Takes single permits of many buckets. Requests for one bucket that come while others are under way are joined."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._group: Grouping[TakePermits, Bucket] = Grouping(self._take_all)

    async def take(self, take: TakePermits) -> Bucket:
        """Take a single permit or turn; otherwise as `Buckets.take`."""
        return await self._group(take)

    async def _take_all(self, takes: Sequence[TakePermits]) -> Sequence[Bucket | Exception]:
        wanted = Counter(takes)
        given = await asyncio.gather(*map(self._take_permits, wanted, wanted.values()))
        answers = dict(zip(wanted, map(iter, given), strict=True))
        return [next(answers[take]) for take in takes]

    async def _take_permits(self, take: TakePermits, wanted: int) -> list[Bucket | Exception]:
        """Take as many permits as there are, and turns for the other requests."""
        answers: list[Bucket | Exception] = []
        while left := wanted - len(answers):
            try:
                bucket = await self._buckets.take(replace(take, most=left))
            except Exception as error:
                return answers + [error] * left
            for place in range(bucket.granted or left):
                first_at = bucket.first_at + place / take.limit.rate
                answers.append(replace(bucket, granted=min(1, bucket.granted), first_at=first_at))
        return answers
