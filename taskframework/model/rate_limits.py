"""The arithmetic of rate limits: GCRA, a token bucket that is one number. Its tokens are called permits here.

A bucket holds `burst` permits at most and gets `rate` of them a second. All that has to be stored is the time at which
the bucket is full again; each permit that is taken moves that time on by `1 / rate`. So nothing has to refill a bucket,
rounding errors do not add up, and a full bucket needs no record. In no window of time are more permits used than
`burst + rate * seconds`.

A process may take a permit a little before its time and wait for that time: then nobody else has the permit, and the
process need not ask again and again. A task that must wait longer gets a *turn*: a time in a line, in which the turns
are `1 / rate` apart. At its turn a task takes a permit like any other, so a turn that is used late exceeds nothing.

Times are seconds since 1970 as the server of the bucket counts them, with fractions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from taskframework.model.records import Record, RecordKind

#: The part of a permit by which the arithmetic may be wrong: a double holds a time of today to within 0.2 µs.
ROUNDING = 1e-3
#: A bucket that has been full for this long is forgotten.
KEPT = timedelta(minutes=1)
#: At most so many seconds' worth of permits are held back from attempts that begin at once. A claim takes 5 to 50 ms,
#: on a crowded machine some tenths of a second.
MOST_HELD_BACK = 0.5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BucketLimit:
    """How much a bucket lets through."""

    #: Permits a second.
    rate: float
    #: Most permits in the bucket: so many may be taken at once after a quiet time.
    burst: int

    @property
    def held_back(self) -> float:
        """How many seconds' worth of permits the bucket never has."""
        return 0.0

    @property
    def at_once(self) -> float:
        """How many permits a full bucket has."""
        return self.burst - self.held_back * self.rate

    @property
    def ahead(self) -> float:
        """For how many seconds a full bucket has permits beyond its first one."""
        return (self.at_once - 1) / self.rate


@dataclass(frozen=True, slots=True)
class AttemptLimit(BucketLimit):
    """How many attempts may begin. An attempt begins some time after its permit was taken, since the claim takes time.

    What is taken at once from a full bucket and used late meets the permits of the time that follows. With a part held
    back, these are together still no more than `burst + rate * seconds`.
    """

    @property
    def held_back(self) -> float:
        """Half of the burst, or less if that is enough."""
        return min((self.burst - 1) / self.rate / 2, MOST_HELD_BACK)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket as it is after a request, and what that request got."""

    #: When it is full again if nothing is taken. If that time has passed, it is full.
    full_at: float = 0.0
    #: The next turn that would be given.
    line_at: float = 0.0
    #: The next turn that would be given to who had one and found no permit. These turns are a line of their own: at the
    #: end of the first one whoever came a little late would wait for all who came after it.
    late_at: float = 0.0
    #: When the request was made.
    asked_at: float = 0.0
    #: How many permits it got.
    granted: int = 0
    #: When the first of them may be used, the others each `1 / rate` later. If it got none: when to ask again; or the
    #: first of its turns, of which there are as many as it wanted permits, also `1 / rate` apart.
    first_at: float = 0.0

    @property
    def last_turn_over_at(self) -> float:
        """When nobody is in a line any more."""
        return max(self.line_at, self.late_at)

    @property
    def expires_at(self) -> datetime:
        """When the record can be deleted."""
        return _EPOCH + timedelta(seconds=max(self.full_at, self.last_turn_over_at)) + KEPT


#: The record of a bucket: `rate/<name>` or `rate/<name>/<key>`.
RATE = RecordKind("rate", Bucket)


def seconds_of(moment: datetime) -> float:
    """A time as seconds since 1970."""
    return (moment - _EPOCH) / timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class _OfBucket:
    """One guarded write on a bucket: `apply` is its meaning, which every place that keeps buckets implements."""

    #: `rate/<name>` or `rate/<name>/<key>`, made by `RATE.id_of`.
    record_id: str
    limit: BucketLimit

    def apply(self, bucket: Bucket | None, now: float) -> Bucket:
        """The bucket after this request; None stands for a bucket without a record, which is full."""
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
    #: Whether a request that gets no permit is given turns. Then it gets none either while earlier turns are to come.
    in_line: bool = False
    #: Whether it is for tasks that were given a turn, and that has come.
    has_turn: bool = False

    def apply(self, bucket: Bucket | None, now: float) -> Bucket:
        bucket = bucket or Bucket()
        rate, start = self.limit.rate, max(bucket.full_at, now)
        ready = math.floor((now + self.ahead - start) * rate + self.limit.at_once + ROUNDING)
        must_wait = self.in_line and not self.has_turn and bucket.last_turn_over_at > now
        granted = 0 if must_wait else max(0, min(self.most, ready))
        first_at, line_at, late_at = start - self.limit.ahead, bucket.line_at, bucket.late_at
        if self.in_line and not granted:
            first_at = max(first_at, late_at if self.has_turn else bucket.last_turn_over_at, now)
            if self.has_turn:
                late_at = first_at + self.most / rate
            else:
                line_at = first_at + self.most / rate
        return Bucket(start + granted / rate, line_at, late_at, now, granted, first_at)


@dataclass(frozen=True, slots=True)
class HoldBucket(_OfBucket):
    """Let nothing through for a time, as a service that answers 429 asks for. A longer hold from before stays. After it
    the bucket has one permit.
    """

    seconds: float

    def apply(self, bucket: Bucket | None, now: float) -> Bucket:
        bucket = bucket or Bucket()
        full_at = max(bucket.full_at, now + self.seconds + self.limit.ahead)
        return replace(bucket, full_at=full_at, asked_at=now, granted=0, first_at=now + self.seconds)
