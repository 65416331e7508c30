"""`TurnRule` of rate limits with a key: a task whose bucket is empty for long gets the next turn of its bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from taskframework import failpoint
from taskframework.clock import Clock, to_timestamp
from taskframework.limits.buckets import Buckets, MemoryBuckets
from taskframework.limits.task_limits import bucket_id
from taskframework.model.rate_limits import BucketLimit, TakePermits, next_turn_at
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.tasks.registry import Registration

#: A task that has to wait less than this many seconds gets its message: a worker lets it wait for its permit.
_MIN_WAIT_SECONDS = 2.0


class RateTurns:
    """Gives turns one after the other, as far apart as the rate says."""

    def __init__(
        self,
        buckets: Buckets,
        limits: Mapping[str, BucketLimit],
        store: TaskStore,
        clock: Clock,
        on_put_off: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Prepare.

        Args:
            buckets: where the buckets are.
            limits: how much the buckets of a name let through.
            store: has the time.
            clock: of this process.
            on_put_off: called with the name of the limit for each task that got a turn.
        """
        self._buckets = buckets
        self._limits = limits
        self._store = store
        self._on_put_off = on_put_off
        #: Buckets from which this process takes a permit for each message. While they have permits, the real bucket
        #: need not be asked: at the usual rates, dispatch costs nothing more.
        self._published = MemoryBuckets(clock)

    def record_to_ask(self, registration: Registration, task: Task) -> str | None:
        """As in `TurnRule`."""
        if (limit := registration.rate_limit) is None or limit.key is None:
            return None
        record_id = bucket_id(limit, registration, task.parameters)
        take = TakePermits(record_id, self._limits[limit.name], ahead=_MIN_WAIT_SECONDS)
        return None if self._published.change(take).granted else record_id

    async def waits_of(self, record_id: str, registration: Registration, count: int) -> Sequence[timedelta | None]:
        """Take a turn for each task, if the next turn is not soon. As in `TurnRule`."""
        assert registration.rate_limit is not None
        name = registration.rate_limit.name
        limit = self._limits[name]
        bucket = await self._buckets.read(record_id)
        now = to_timestamp(self._store.now())
        if bucket is None or next_turn_at(bucket, limit, now) - now < _MIN_WAIT_SECONDS:
            return [None] * count
        bucket = await self._buckets.take(TakePermits(record_id, limit, most=count, in_line=True))
        await failpoint.reached("limits.after_take")
        if bucket.granted:
            return [None] * count
        for _ in range(count):
            self._on_put_off(name)
        wait = bucket.first_at - bucket.asked_at
        return [timedelta(seconds=wait + place / limit.rate) for place in range(count)]

    async def after_write(self, record_id: str, published: int) -> None:
        """Do nothing: the sweeper sends each task at its turn."""
