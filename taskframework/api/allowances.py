"""How many requests each of many callers may make: token buckets in the memory of this process only.

So with N processes behind one address, a caller may make N times as many. The buckets need not survive a restart, and
asking a store for each request would cost more than to answer the requests that are refused.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from taskframework.model.rate_limits import Bucket, BucketLimit, TakePermits

#: The most buckets that are kept, so that a caller with many addresses cannot fill the memory. Beyond that, the bucket
#: that was unused for longest is forgotten; for its caller it is then full again.
_MAX_BUCKETS = 10_000


class Allowances:
    """A bucket for each name."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Begin with all buckets full.

        Args:
            monotonic: returns seconds of a clock that is never set.
        """
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, name: str, limit: BucketLimit) -> float:
        """Take one permit out of a bucket.

        Returns:
            0 if there was a permit, otherwise the seconds until there is one.
        """
        bucket, wait = self._try_take(name, limit)
        self._buckets[name] = bucket
        self._buckets.move_to_end(name)
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return wait

    def wait(self, name: str, limit: BucketLimit) -> float:
        """Return what `take` would return, but take nothing."""
        return self._try_take(name, limit)[1] if name in self._buckets else 0.0

    def _try_take(self, name: str, limit: BucketLimit) -> tuple[Bucket, float]:
        now = self._monotonic()
        bucket = TakePermits(name, limit).apply(self._buckets.get(name), now)
        return bucket, 0.0 if bucket.granted else max(0.001, bucket.first_at - now)
