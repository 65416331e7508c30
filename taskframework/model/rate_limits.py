"""The arithmetic of rate limits: GCRA, a token bucket that is one number. Its tokens are called permits here.

A bucket holds `burst` permits at most and gets `rate` of them a second. All that has to be kept of it is the time at
which it is full again; each permit that is taken moves that time on by `1 / rate`. So nothing refills a bucket, no
rounding adds up, and a bucket that is full needs no record at all. In no window of time are more permits used than
`burst + rate * seconds`.

A permit may be taken before its time by a process that waits so long: then nobody else has it, and nobody asks again
and again. Who must wait for longer gets a *turn*: a time in a line that goes on by one permit with each turn given. At
its turn a task takes its permit like any other, so that a turn which comes late exceeds nothing.

Times are seconds since 1970 as the server of the bucket counts them, with fractions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from taskframework.model.records import Record, RecordKind

#: By this part of a permit the arithmetic may be wrong: a double has 0.2 µs left of a time of today.
ROUNDING = 1e-3
#: A bucket that has been full for this long is forgotten.
KEPT = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BucketLimit:
    """How much a bucket lets through."""

    #: Permits a second.
    rate: float
    #: Permits that are there at once when none was taken for a while.
    burst: int

    @property
    def seconds_to_fill(self) -> float:
        """How long an empty bucket takes until it is full."""
        return self.burst / self.rate


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket as it is after a request, and what that request got."""

    #: When it is full again if nothing is taken; a time that has passed: it is full.
    full_at: float = 0.0
    #: The turn that would be given next.
    line_at: float = 0.0
    #: When the request was made.
    asked_at: float = 0.0
    #: How many permits it got.
    granted: int = 0
    #: When the first of them may be used, the others each `1 / rate` later. With none: when to ask again, or the turn.
    first_at: float = 0.0

    @property
    def expires_at(self) -> datetime:
        """When nothing of it needs to be known any more."""
        return _EPOCH + timedelta(seconds=max(self.full_at, self.line_at)) + KEPT


#: The record of a bucket: `rate/<name>` or `rate/<name>/<key>`.
RATE = RecordKind("rate", Bucket)


def seconds_of(moment: datetime) -> float:
    """A time as the arithmetic takes it."""
    return (moment - _EPOCH) / timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class _OfBucket:
    """One guarded write on a bucket: `apply` says what it means, and each kind of bucket does just that."""

    #: `rate/<name>` or `rate/<name>/<key>`, made by `RATE.id_of`.
    record_id: str
    limit: BucketLimit

    def apply(self, bucket: Bucket | None, now: float) -> Bucket:
        """The bucket after this request; None is one that nobody knows, so it is full."""
        raise NotImplementedError

    def change(self, record: Record | None, now: datetime) -> Record:
        """`RecordChange.change`."""
        bucket = self.apply(None if record is None else RATE.content(record), seconds_of(now))
        return RATE.with_id(self.record_id, record, bucket, expires_at=bucket.expires_at)


@dataclass(frozen=True, slots=True)
class TakePermits(_OfBucket):
    """Take permits whose time has come or comes soon, up to `most`."""

    most: int = 1
    #: How many seconds before its time a permit may be taken.
    ahead: float = 0.0
    #: Whether a request that gets none is given a turn, and waits for those that were given one before.
    in_line: bool = False
    #: Whether it has been given one, which has come.
    has_turn: bool = False

    def apply(self, bucket: Bucket | None, now: float) -> Bucket:
        bucket = bucket or Bucket()
        rate, start = self.limit.rate, max(bucket.full_at, now)
        ready = math.floor((now + self.ahead - start) * rate + self.limit.burst + ROUNDING)
        must_wait = self.in_line and not self.has_turn and bucket.line_at > now
        granted = 0 if must_wait else max(0, min(self.most, ready))
        first_at, line_at = start + (1 - self.limit.burst) / rate, bucket.line_at
        if self.in_line and not granted:
            first_at = max(first_at, line_at, now)
            line_at = first_at + 1 / rate
        return Bucket(start + granted / rate, line_at, now, granted, first_at)


@dataclass(frozen=True, slots=True)
class HoldBucket(_OfBucket):
    """Let nothing through for a time, as a service asks for that answers 429. A longer hold that is there stays; after
    it the bucket has one permit.
    """

    seconds: float

    def apply(self, bucket: Bucket | None, now: float) -> Bucket:
        bucket = bucket or Bucket()
        full_at = max(bucket.full_at, now + self.seconds + (self.limit.burst - 1) / self.limit.rate)
        return replace(bucket, full_at=full_at, asked_at=now, granted=0, first_at=now + self.seconds)
