"""The heartbeat: keeps the leases of a worker, brings back who lost one or is to stop, and fences the worker itself.

Three things go on beside each other, and none waits for another: a write per beat renews all leases, a read per second
looks for cancels, and a look at our own clock stops what could not be renewed before anybody else may start it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

from taskframework import failpoint
from taskframework.background import is_failure
from taskframework.clock import Clock
from taskframework.errors import StoreError, StoreUnavailableError
from taskframework.model.events import TaskCancelRequestedEvent
from taskframework.model.task import CancelRequest
from taskframework.model.transitions import Fence
from taskframework.stores.base import TaskStore
from taskframework.worker.attempt import RunningAttempt, StopReason

logger = logging.getLogger(__name__)

#: A worker that could not renew stops its tasks this share of the lease before the lease ends.
_MARGIN = 1 / 6
#: Seconds between two looks for cancels that another process asked for.
_CANCEL_LOOK = 1.0


Cancels = Mapping[Fence, CancelRequest | None]


class Heartbeat:
    """Knows the attempts that run in this worker and keeps their leases."""

    def __init__(
        self,
        store: TaskStore,
        clock: Clock,
        lease: timedelta,
        on_store_away: Callable[[StoreUnavailableError], None] = lambda error: None,
    ) -> None:
        self._store = store
        self._on_store_away = on_store_away
        self._clock = clock
        self._lease = lease
        self._seconds = lease.total_seconds()
        self._fence_pause = min(1.0, self._seconds / 24)
        self._fenced_at = clock.monotonic()
        self._attempts: dict[str, RunningAttempt] = {}
        self._is_releasing = False

    @property
    def attempts(self) -> tuple[RunningAttempt, ...]:
        return tuple(self._attempts.values())

    def add(self, attempt: RunningAttempt) -> None:
        """Keep the lease of this attempt; one that is over already, after a pause of the process, never runs."""
        self._attempts[attempt.fence.claim_id] = attempt
        if not self._is_ours(attempt, self._clock.monotonic()):
            self._lose(attempt)
        elif self._is_releasing:  # a claim that was slow: its code must not begin
            attempt.stop(StopReason.RELEASED)

    def release_all(self) -> None:
        """Hand back every attempt, and those that are claimed from now on."""
        self._is_releasing = True
        for attempt in self.attempts:
            attempt.stop(StopReason.RELEASED)

    def remove(self, attempt: RunningAttempt) -> None:
        self._attempts.pop(attempt.fence.claim_id, None)

    def hear(self, event: TaskCancelRequestedEvent) -> None:
        """Listener: a cancel asked for in this very process need not wait for the next look."""
        lease = event.task.lease
        attempt = self._attempts.get(lease.claim_id) if lease is not None else None
        if attempt is not None:
            attempt.stop(StopReason.CANCELLED, event.task.cancel)

    async def run(self) -> None:
        """Go on until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self._beat_and_pause, self._seconds / 3))
            group.create_task(self._repeat(self.look_for_cancels, _CANCEL_LOOK))
            group.create_task(self._repeat(self._fence, self._fence_pause))

    async def beat(self) -> bool:
        """Renew every lease once.

        What our own clock says is over is not asked for: nobody may run it on a lease that comes too late, and its
        reaper must not wait for another one.

        Returns:
            Whether the store answered.
        """
        self._stop_what_ends_within(0)
        asked_at = self._clock.monotonic()
        attempts = [attempt for attempt in self.attempts if self._is_ours(attempt, asked_at)]
        if not attempts:
            return True
        await failpoint.reached("heartbeat.before_write")
        held = await self._renew(attempts)
        if held is None:
            return False
        await failpoint.reached("heartbeat.after_write")
        for attempt in attempts:
            if attempt.fence in held:
                attempt.lease_ends = asked_at + self._seconds
            else:
                self._lose(attempt)
        _stop_cancelled(attempts, held)
        return True

    async def look_for_cancels(self) -> None:
        """Stop what somebody wants to end. A look that fails is none: the beat reports the trouble."""
        attempts = [attempt for attempt in self.attempts if attempt.stop_reason is None]
        if not attempts:
            return
        try:
            # No time limit but the store's own: a look that hangs must not be followed by more of them, which would
            # take the connections of the beat.
            cancels = await self._store.cancel_requests([attempt.fence for attempt in attempts])
        except StoreError:
            return
        _stop_cancelled(attempts, cancels)

    async def _renew(self, attempts: list[RunningAttempt]) -> Cancels | None:
        try:
            async with asyncio.timeout(self._seconds / 3):
                return await self._store.renew([attempt.fence for attempt in attempts], self._lease)
        except TimeoutError:
            trouble: StoreError = StoreUnavailableError("The store did not renew the leases in time.")
        except StoreError as error:
            trouble = error
        if isinstance(trouble, StoreUnavailableError):
            self._on_store_away(trouble)  # who hears it says so once, not with each beat
        else:
            logger.warning("leases not renewed: %s", trouble)
        return None

    async def _repeat(self, step: Callable[[], Awaitable[float | None]], pause: float) -> None:
        """Take the step for ever, each after a pause; a step may return another pause. No error ends it."""
        while True:
            await self._clock.sleep(pause)
            try:
                pause = await step() or pause
            except asyncio.CancelledError as error:
                if not is_failure(error):
                    raise
                logger.error("the heartbeat heard a cancellation that was not meant for it, and goes on")
            except Exception:
                logger.exception("the heartbeat failed and goes on")

    async def _beat_and_pause(self) -> float:
        renewed = await self.beat()
        return self._seconds / (3 if renewed else 12)

    async def _fence(self) -> None:
        """Stop what could not be renewed. Asks nobody, so that nothing can hold it up.

        After a pause of the whole process the beat, which is due as well, gets the time that is left to renew.
        """
        woke_late = self._clock.monotonic() - self._fenced_at > 2 * self._fence_pause
        self._fenced_at = self._clock.monotonic()
        self._stop_what_ends_within(self._fence_pause if woke_late else self._seconds * _MARGIN)

    @staticmethod
    def _is_ours(attempt: RunningAttempt, now: float) -> bool:
        return attempt.lease_ends > now and attempt.stop_reason is not StopReason.LEASE_LOST

    def _stop_what_ends_within(self, seconds: float) -> None:
        for attempt in self.attempts:
            if attempt.lease_ends - seconds <= self._clock.monotonic():
                self._lose(attempt)

    def _lose(self, attempt: RunningAttempt) -> None:
        # Code that has ended has nothing to be stopped; the store decides on its outcome.
        if attempt.code_has_ended or attempt.stop_reason is StopReason.LEASE_LOST:
            return
        if attempt.fence.claim_id in self._attempts:
            logger.warning("task %s: lease lost, the attempt is stopped", attempt.task.task_id)
            attempt.stop(StopReason.LEASE_LOST)


def _stop_cancelled(attempts: Sequence[RunningAttempt], cancels: Cancels) -> None:
    for attempt in attempts:
        if (cancel := cancels.get(attempt.fence)) is not None:
            attempt.stop(StopReason.CANCELLED, cancel)
