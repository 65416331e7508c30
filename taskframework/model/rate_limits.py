"""The arithmetic of rate limits: GCRA, a token bucket that is one number. Its tokens are called permits here.

A bucket holds at most `burst` permits and gets `rate` permits a second. Only the time at which the bucket is full again
has to be stored; each permit that is taken moves this time on by `1 / rate`. So no process has to refill a bucket,
rounding errors do not add up, and a full bucket needs no record. In any window of time, at most
`burst + rate * seconds` permits are used.

A process may take a permit a little before its time and wait for that time: then no other process has the permit, and
the process need not ask repeatedly. A task that must wait longer gets a *turn*: a time in a line, in which the turns
are `1 / rate` apart. At its turn a task takes a permit like any other task, so a turn that is used late cannot exceed
the limit.

Times are seconds since 1970 as the server of the bucket counts them, with fractions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from taskframework.clock import EPOCH, to_timestamp
from taskframework.model.records import Record, RecordKind

#: The part of a permit by which the arithmetic may be wrong: a double holds a current time to within 0.2 µs.
ROUNDING = 1e-3
#: How long the record of a bucket is kept after the bucket is full.
KEPT_AFTER_FULL = timedelta(minutes=1)
#: At most the permits of this many seconds are held back from attempts that begin at once. A claim takes 5 to 50 ms, on
#: a busy machine some tenths of a second.
MAX_HELD_BACK_SECONDS = 0.5
#: A bucket may be full while turns are still to come, for this many seconds and the time of one more permit. After that
#: the tasks with these turns must be gone, for example cancelled: a turn is used within some seconds of its time.
UNUSED_TURNS_SECONDS = 10.0
#: A bucket that is full for this many seconds is idle: a task takes its permit at most some seconds after its turn.
IDLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class BucketLimit:
    """How much a bucket lets through."""

    #: Permits a second.
    rate: float
    #: Most permits in the bucket: this many may be taken at once after a quiet time.
    burst: int

    @property
    def held_back_seconds(self) -> float:
        """The permits of the burst that the bucket never has, as the seconds in which it would get them."""
        return 0.0

    @property
    def capacity(self) -> float:
        """How many permits a full bucket has."""
        return self.burst - self.held_back_seconds * self.rate

    @property
    def burst_seconds(self) -> float:
        """The permits of a full bucket beyond its first permit, as the seconds in which it gets them."""
        return (self.capacity - 1) / self.rate


@dataclass(frozen=True, slots=True)
class AttemptLimit(BucketLimit):
    """How many attempts may begin. An attempt begins some time after its permit was taken, since the claim takes time.

    Permits that are taken at once from a full bucket and used late add to the permits of the time that follows. Because
    a part is held back, both together are still no more than `burst + rate * seconds`.
    """

    @property
    def held_back_seconds(self) -> float:
        """The seconds for half of the burst beyond its first permit, but at most `MAX_HELD_BACK_SECONDS`."""
        return min((self.burst - 1) / self.rate / 2, MAX_HELD_BACK_SECONDS)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket after a request, and the permits or turns that this request got."""

    #: When the bucket is full again if no permit is taken. If this time has passed, the bucket is full.
    full_at: float = 0.0
    #: The next turn that would be given.
    line_at: float = 0.0
    #: The next turn that would be given to a task that had a turn and found no permit. These turns form a second line:
    #: at the end of the first line, a task that came a little late would wait for all tasks that came after it.
    late_at: float = 0.0
    #: When the request was made.
    asked_at: float = 0.0
    #: How many permits the request got.
    granted: int = 0
    #: When the first of these permits may be used; each other permit `1 / rate` later. If the request got no permit:
    #: when to ask again; or the first of its turns, one turn for each wanted permit, also `1 / rate` apart.
    first_at: float = 0.0

    @property
    def last_turn_over_at(self) -> float:
        """When both lines are empty."""
        return max(self.line_at, self.late_at)

    @property
    def expires_at(self) -> datetime:
        """When the record can be deleted."""
        return EPOCH + timedelta(seconds=max(self.full_at, self.last_turn_over_at)) + KEPT_AFTER_FULL


#: The record of a bucket: `rate/<name>` or `rate/<name>/<key>`.
RATE = RecordKind("rate", Bucket)


def moved_back(bucket: Bucket, seconds: float) -> Bucket:
    """The same bucket after the clock by which its times count was set back by so many seconds."""
    return replace(
        bucket,
        full_at=bucket.full_at - seconds,
        line_at=bucket.line_at - seconds,
        late_at=bucket.late_at - seconds,
        asked_at=bucket.asked_at - seconds,
        first_at=bucket.first_at - seconds,
    )


def has_unused_turns(bucket: Bucket, limit: BucketLimit, now: float) -> bool:
    """Return whether the turns that are still to come will not be used, since the last ones were not used."""
    return now - bucket.full_at > UNUSED_TURNS_SECONDS + 1 / limit.rate


def has_idle_permits(bucket: Bucket, limit: BucketLimit, now: float) -> bool:
    """Return whether no task uses the permits although tasks wait: their turns are later than they need be."""
    return now - bucket.full_at > IDLE_SECONDS and bucket.last_turn_over_at > now + 1 / limit.rate


def next_turn_at(bucket: Bucket, limit: BucketLimit, now: float) -> float:
    """When the next task that comes to this bucket may begin; a time that has passed if it may begin at once."""
    line_over_at = 0.0 if has_unused_turns(bucket, limit, now) else bucket.last_turn_over_at
    return max(bucket.full_at - limit.burst_seconds, line_over_at)


@dataclass(frozen=True, slots=True)
class _BucketChange:
    """One guarded write on a bucket. `apply` defines it; every adapter that keeps buckets implements the same rule."""

    #: `rate/<name>` or `rate/<name>/<key>`, made by `RATE.id_of`.
    record_id: str
    limit: BucketLimit

    def apply(self, bucket: Bucket | None, now: float) -> Bucket:
        """The bucket after this request; None stands for a bucket without a record, which is full."""
        raise NotImplementedError

    def change(self, record: Record | None, now: datetime) -> Record:
        """`RecordChange.change`."""
        bucket = self.apply(None if record is None else RATE.content(record), to_timestamp(now))
        return RATE.with_id(self.record_id, record, bucket, expires_at=bucket.expires_at)


@dataclass(frozen=True, slots=True)
class TakePermits(_BucketChange):
    """Take at most `most` permits whose time has come or comes soon."""

    most: int = 1
    #: How many seconds before its time a permit may be taken.
    ahead: float = 0.0
    #: Whether a request that gets no permit gets turns. It also gets no permit while earlier turns are to come, unless
    #: nobody uses those.
    in_line: bool = False
    #: Whether the request is for tasks whose turn has come.
    has_turn: bool = False

    def apply(self, bucket: Bucket | None, now: float) -> Bucket:
        bucket = bucket or Bucket()
        if self.in_line and not self.has_turn and has_unused_turns(bucket, self.limit, now):
            bucket = replace(bucket, line_at=0.0, late_at=0.0)
        rate, start = self.limit.rate, max(bucket.full_at, now)
        ready = math.floor((now + self.ahead - start) * rate + self.limit.capacity + ROUNDING)
        must_wait = self.in_line and not self.has_turn and bucket.last_turn_over_at > now
        granted = 0 if must_wait else max(0, min(self.most, ready))
        first_at, line_at, late_at = start - self.limit.burst_seconds, bucket.line_at, bucket.late_at
        if self.in_line and not granted:
            first_at = max(first_at, late_at if self.has_turn else bucket.last_turn_over_at, now)
            if self.has_turn:
                late_at = first_at + self.most / rate
            else:
                line_at = first_at + self.most / rate
        # Who gets nothing leaves this time alone: it also tells since when nobody has used the permits.
        full_at = start + granted / rate if granted else bucket.full_at
        return Bucket(full_at, line_at, late_at, now, granted, first_at)


@dataclass(frozen=True, slots=True)
class HoldBucket(_BucketChange):
    """Give no permits for a time, as a service requests that answers 429. A longer hold from before stays. After the
    hold the bucket has one permit.
    """

    seconds: float

    def apply(self, bucket: Bucket | None, now: float) -> Bucket:
        bucket = bucket or Bucket()
        full_at = max(bucket.full_at, now + self.seconds + self.limit.burst_seconds)
        return replace(bucket, full_at=full_at, asked_at=now, granted=0, first_at=now + self.seconds)
