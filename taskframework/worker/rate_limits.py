"""Rate limits without a key: an attempt begins with a permit from the bucket of its task type.

A delivery waits here for its permit while other deliveries use its slot. The worker takes few deliveries at a time; all
other messages stay in the queue. A wait counts no attempt.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

from taskframework.clock import Clock
from taskframework.limits.buckets import Buckets
from taskframework.limits.permits import Permit, Permits, lateness_of
from taskframework.model.rate_limits import RATE, BucketLimit
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import JointReads
from taskframework.tasks.registry import Registration, TaskRegistry
from taskframework.worker.admission import WAITED_TOO_LONG, Candidate, PutOff
from taskframework.worker.slot_lead import SlotLead, sleep_until, with_time

#: Deliveries that a worker takes beyond those that run: as many as get permits in this many seconds, at least a few.
_SECONDS_OF_PERMITS_AHEAD = 0.5
_MIN_DELIVERIES_AHEAD = 2


class RateLimits:
    """`AdmissionCheck` for the task types of one worker that have a rate limit, and `Ceiling` of its intake."""

    def __init__(
        self,
        buckets: Buckets,
        limits: Mapping[str, BucketLimit],
        store: TaskStore,
        registry: TaskRegistry,
        clock: Clock,
        on_taken: Callable[[str, int], None] = lambda name, count: None,
    ) -> None:
        """Begin with no permits.

        Args:
            buckets: where the buckets are.
            limits: how much each bucket lets through, by its name.
            store: has the tasks.
            registry: says which task type has which limit; `limits` has all of them.
            clock: of this process, for the waiting.
            on_taken: called with the name of a bucket and how many permits were taken from it.
        """
        self._buckets = buckets
        self._limits = limits
        self._tasks = JointReads(store)
        self._registry = registry
        self._clock = clock
        self._on_taken = on_taken
        self._permits: dict[str, Permits] = {}
        self._running: Counter[str] = Counter()
        self._ceilings: dict[str, int] = {}
        self._lead = SlotLead()

    async def admit(self, candidate: Candidate) -> PutOff | None:
        """Wait until there is a permit for the delivery, if its type needs a permit."""
        if (name := _bucket_of(candidate.registration)) is None:
            return None
        if await candidate.claimable(self._tasks) is None:
            return None  # the claim will refuse the task: a duplicate would waste a permit that another task needs
        permits, task_type = self._permits_of(name), candidate.message.task_type
        if (permit := await self._take_permit(candidate, permits, lateness_of(self._limits[name]))) is None:
            return WAITED_TOO_LONG
        candidate.unless_claimed.callback(permits.give_back, permit)
        self._running[task_type] += 1
        candidate.holding.callback(self._running.subtract, [task_type])
        return None

    async def _take_permit(self, candidate: Candidate, permits: Permits, lateness: float) -> Permit | None:
        """Wait for a permit without a slot, then take the slot again; None if the delivery may not wait any longer.

        If that took too long, the permit is lost; the next one comes earlier, so that it is in time.
        """
        while True:
            permits.lead = self._lead.seconds_before(lateness)
            given = await candidate.without_slot(with_time(self._clock, permits.next))
            if given is None:
                return None
            permit, given_at = given
            now = self._clock.monotonic()
            self._lead.note(now - given_at)
            if permit.is_late(now):
                continue
            if permit.not_before <= now or await candidate.with_slot(sleep_until(self._clock, permit.not_before)):
                return permit
            permits.give_back(permit)
            return None

    def ceiling(self, task_type: str) -> int | None:
        """Return, as `Ceiling`, for a type whose deliveries wait here, as many slots as run now and a few more.

        The ceiling is a power of two. It grows at once and shrinks late, because each change costs new consumers.
        """
        if (name := _bucket_of(self._registry.get(task_type))) is None:
            return None
        ahead = math.ceil(self._limits[name].rate * _SECONDS_OF_PERMITS_AHEAD)
        needed = self._running[task_type] + max(_MIN_DELIVERIES_AHEAD, ahead)
        present = self._ceilings.get(task_type, 0)
        if not needed <= present <= 4 * needed:
            present = self._ceilings[task_type] = 1 << (needed - 1).bit_length()
        return present

    async def close(self) -> None:
        """Take no more permits."""
        for permits in self._permits.values():
            await permits.close()

    def _permits_of(self, name: str) -> Permits:
        if (permits := self._permits.get(name)) is None:
            permits = self._permits[name] = Permits(self._buckets, RATE.id_of(name), self._limits[name], self._clock)
            permits.on_taken = lambda count: self._on_taken(name, count)
        return permits


def _bucket_of(registration: Registration | None) -> str | None:
    return None if registration is None else registration.bucket
