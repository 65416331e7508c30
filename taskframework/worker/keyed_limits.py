"""Rate limits with a key: each value of a field of the parameters has its own bucket.

In the queue the tasks of all keys stand in one line, so a task whose bucket is empty must not block the line. Such a
task is put off in the store with a turn, and gets another message when its turn comes. So each task costs one more
message, however many wait. No attempt is counted. Deliveries of one key that are here at the same time ask its bucket
together. All workers write to the record of that bucket, one after the other, and slow writes would also hold back the
tasks of other keys behind them in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial

from taskframework import failpoint
from taskframework.clock import Clock
from taskframework.limits.buckets import Buckets, JointTakes
from taskframework.limits.permits import TAKE_AHEAD_SECONDS, Permit, lateness_of, permits_of
from taskframework.limits.task_limits import bucket_id
from taskframework.model.rate_limits import BucketLimit, TakePermits
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import JointReads
from taskframework.tasks.limits import RateLimit
from taskframework.worker.admission import WAITED_TOO_LONG, Candidate, PutOff
from taskframework.worker.slot_lead import SlotLead, sleep_until, with_slot_at_first, with_time

#: The most seconds that a task waits here for a permit after its turn has come. One look of the sweeper sends all tasks
#: whose turns came in the last second, and a small bucket gives them their permits one after the other.
_MAX_TURN_WAIT_SECONDS = 2.0


class KeyedRateLimits:
    """`AdmissionCheck` for the task types that have a rate limit with a key."""

    def __init__(
        self,
        buckets: Buckets,
        limits: Mapping[str, BucketLimit],
        store: TaskStore,
        clock: Clock,
        on_taken: Callable[[str, int], None] = lambda name, count: None,
        on_put_off: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Prepare.

        Args:
            buckets: where the buckets are.
            limits: how much the buckets of a name let through.
            store: has the parameters of a task, which are not in its message.
            clock: of this process, for the waiting.
            on_taken: called with the name of a limit and how many permits were taken from its buckets.
            on_put_off: called with the name of the limit for each task that got a turn instead of a permit.
        """
        self._takes = JointTakes(buckets)
        self._limits = limits
        self._store = store
        self._tasks = JointReads(store)
        self._clock = clock
        self._on_taken = on_taken
        self._on_put_off = on_put_off
        self._lead = SlotLead()

    async def admit(self, candidate: Candidate) -> PutOff | None:
        """Take a permit for the task if there is one; otherwise give the task a turn."""
        registration = candidate.registration
        if registration is None or (limit := registration.rate_limit) is None or limit.key is None:
            return None
        task = await candidate.claimable(self._tasks)
        if task is None:
            return None  # the claim will refuse the task, so it needs no permit
        return await self._admit(candidate, limit, bucket_id(limit, registration, task.parameters), task)

    async def _admit(self, candidate: Candidate, limit: RateLimit, record_id: str, task: Task) -> PutOff | None:
        turn = task.waits_for_limit
        has_turn = turn is not None and (turn.limit, turn.dispatch_epoch) == (record_id, task.dispatch_epoch)
        if has_turn and turn is not None and turn.until - self._store.now() > timedelta(seconds=_MAX_TURN_WAIT_SECONDS):
            return PutOff(turn.until, record_id)  # a further message of the task came before its turn
        while True:
            ahead = _MAX_TURN_WAIT_SECONDS if has_turn else TAKE_AHEAD_SECONDS
            take = TakePermits(record_id, self._limits[limit.name], ahead=ahead, in_line=True, has_turn=has_turn)
            asking = with_time(self._clock, partial(self._takes.take, take))
            taken = await with_slot_at_first(candidate, asking)
            if taken is None:
                return WAITED_TOO_LONG
            bucket, received_at = taken
            await failpoint.reached("limits.after_take")
            self._on_taken(limit.name, bucket.granted)
            if not bucket.granted:
                self._on_put_off(limit.name)
                return PutOff(timedelta(seconds=bucket.first_at - bucket.asked_at), record_id)
            [permit] = permits_of(bucket, take.limit, received_at)
            if not await self._wait_until_due(candidate, permit, lateness_of(take.limit)):
                return WAITED_TOO_LONG
            if not permit.is_late(self._clock.monotonic()):
                return None
            has_turn = True  # the task waited long for a slot in the worker, and now its permit is too late

    async def _wait_until_due(self, candidate: Candidate, permit: Permit, lateness: float) -> bool:
        """Wait for the time of a permit, without a slot as long as getting one again is quick enough; return False if
        the delivery may not wait any longer.
        """
        until = permit.not_before - self._lead.seconds_before(lateness)
        if until > self._clock.monotonic():
            waited = await candidate.without_slot(with_time(self._clock, partial(sleep_until, self._clock, until)))
            if waited is None:
                return False
            self._lead.note(self._clock.monotonic() - waited[1])
        if permit.not_before <= self._clock.monotonic():
            return True
        return await candidate.with_slot(sleep_until(self._clock, permit.not_before)) is not None
