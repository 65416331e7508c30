"""The heartbeat: renews the leases of a worker, and stops attempts that lost their lease or are to be cancelled.

Three loops run side by side, and none waits for another. One renews all leases with one write per beat. One looks for
cancel requests with one read per second. One only looks at the clock: it stops attempts whose leases could not be
renewed, before another worker may start their tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

from taskframework import failpoint
from taskframework.background import surviving
from taskframework.clock import Clock
from taskframework.errors import StoreError, StoreUnavailableError
from taskframework.model.events import TaskCancelRequestedEvent
from taskframework.model.task_fields import CancelRequest
from taskframework.model.transitions import Fence
from taskframework.stores.base import TaskStore
from taskframework.worker.attempt import RunningAttempt, StopReason

logger = logging.getLogger(__name__)

#: An attempt whose lease could not be renewed is stopped this share of the lease before its end.
_STOP_MARGIN_SHARE = 1 / 6
#: All leases are renewed once in this share of the lease, so that a lease survives one beat that fails. A renewal may
#: take as long, because then the next one is due.
_BEAT_SHARE = 1 / 3
#: After a beat that failed, the next one comes after this share of the lease: several more before the lease ends.
_BEAT_SHARE_AFTER_FAILURE = 1 / 12
#: The pause between two looks for leases that were not renewed, as a share of the lease, and at most this many seconds.
#: It is a quarter of the margin, so that a look that is late still stops the attempt before its lease ends.
_CHECK_SHARE = _STOP_MARGIN_SHARE / 4
_MAX_CHECK_PAUSE_SECONDS = 1.0
#: Seconds between two looks for cancel requests from other processes.
_CANCEL_LOOK_SECONDS = 1.0


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
        self._lease_seconds = lease.total_seconds()
        self._check_pause = min(_MAX_CHECK_PAUSE_SECONDS, self._lease_seconds * _CHECK_SHARE)
        self._last_check_at = clock.monotonic()
        self._attempts: dict[str, RunningAttempt] = {}
        self._is_releasing = False

    @property
    def attempts(self) -> tuple[RunningAttempt, ...]:
        return tuple(self._attempts.values())

    def add(self, attempt: RunningAttempt) -> None:
        """Keep the lease of this attempt. If the lease is over already, because the process paused, no code runs."""
        self._attempts[attempt.fence.claim_id] = attempt
        if not self._holds_lease(attempt, self._clock.monotonic()):
            self._stop_lost(attempt)
        elif self._is_releasing:  # its claim was slow, and now its code must not begin
            attempt.stop(StopReason.RELEASED)

    def release_all(self) -> None:
        """Hand back every attempt, also each attempt that is added from now on."""
        self._is_releasing = True
        for attempt in self.attempts:
            attempt.stop(StopReason.RELEASED)

    def remove(self, attempt: RunningAttempt) -> None:
        self._attempts.pop(attempt.fence.claim_id, None)

    def on_cancel_requested(self, event: TaskCancelRequestedEvent) -> None:
        """Stop an attempt at once, as a listener, if this process asked for its cancel."""
        lease = event.task.lease
        attempt = self._attempts.get(lease.claim_id) if lease is not None else None
        if attempt is not None:
            attempt.stop(StopReason.CANCELLED, event.task.cancel)

    async def run(self) -> None:
        """Run until cancelled."""
        # Not a TaskGroup: it passes on only the first cancellation, and a driver may lose one. With `return_exceptions`
        # this ends no earlier than the last loop.
        await asyncio.gather(
            self._repeat(self._beat_and_pause, self._lease_seconds * _BEAT_SHARE),
            self._repeat(self.look_for_cancels, _CANCEL_LOOK_SECONDS),
            self._repeat(self._stop_unrenewed, self._check_pause),
            return_exceptions=True,
        )

    async def beat(self) -> bool:
        """Renew every lease once.

        A lease that is over by this process's clock is not renewed: its attempt was stopped, and a renewal would only
        make the reaper wait.

        Returns:
            Whether the store answered.
        """
        self._stop_ending_within(0)
        asked_at = self._clock.monotonic()
        attempts = [attempt for attempt in self.attempts if self._holds_lease(attempt, asked_at)]
        if not attempts:
            return True
        await failpoint.reached("heartbeat.before_write")
        held = await self._renew(attempts)
        if held is None:
            return False
        await failpoint.reached("heartbeat.after_write")
        for attempt in attempts:
            if attempt.fence in held:
                attempt.lease_ends = asked_at + self._lease_seconds
            else:
                self._stop_lost(attempt)
        _stop_cancelled(attempts, held)
        return True

    async def look_for_cancels(self) -> None:
        """Stop attempts with a cancel request. If the read fails, nothing happens; the beat reports the problem."""
        attempts = [attempt for attempt in self.attempts if attempt.stop_reason is None]
        if not attempts:
            return
        try:
            # Only the store's own time limit applies: if this gave up on a read that hangs, more and more such reads
            # would take the connections that the beat needs.
            cancels = await self._store.cancel_requests([attempt.fence for attempt in attempts])
        except StoreError:
            return
        _stop_cancelled(attempts, cancels)

    async def _renew(self, attempts: list[RunningAttempt]) -> Cancels | None:
        try:
            async with asyncio.timeout(self._lease_seconds * _BEAT_SHARE):
                return await self._store.renew([attempt.fence for attempt in attempts], self._lease)
        except TimeoutError:
            problem: StoreError = StoreUnavailableError("The store did not renew the leases in time.")
        except StoreError as error:
            problem = error
        if isinstance(problem, StoreUnavailableError):
            self._on_store_away(problem)  # the breaker logs it once, not with each beat
        else:
            logger.warning("leases not renewed: %s", problem)
        return None

    async def _repeat(self, step: Callable[[], Awaitable[float | None]], pause: float) -> None:
        """Repeat a step for ever, each time after a pause; the step may return the next pause. No error ends this."""
        while True:
            await self._clock.sleep(pause)
            with surviving(logger, "the heartbeat"):
                pause = await step() or pause

    async def _beat_and_pause(self) -> float:
        renewed = await self.beat()
        return self._lease_seconds * (_BEAT_SHARE if renewed else _BEAT_SHARE_AFTER_FAILURE)

    async def _stop_unrenewed(self) -> None:
        """Stop attempts whose leases could not be renewed. This does no I/O, so that nothing can delay it.

        If the whole process paused, a beat is due as well: then this stops only attempts whose leases end before the
        next look, so that the beat can still renew the others.
        """
        woke_late = self._clock.monotonic() - self._last_check_at > 2 * self._check_pause
        self._last_check_at = self._clock.monotonic()
        self._stop_ending_within(self._check_pause if woke_late else self._lease_seconds * _STOP_MARGIN_SHARE)

    @staticmethod
    def _holds_lease(attempt: RunningAttempt, now: float) -> bool:
        return attempt.lease_ends > now and attempt.stop_reason is not StopReason.LEASE_LOST

    def _stop_ending_within(self, seconds: float) -> None:
        for attempt in self.attempts:
            if attempt.lease_ends - seconds <= self._clock.monotonic():
                self._stop_lost(attempt)

    def _stop_lost(self, attempt: RunningAttempt) -> None:
        # If the code has ended, there is nothing to stop, and the store decides whether it accepts the outcome.
        if attempt.code_has_ended or attempt.stop_reason is StopReason.LEASE_LOST:
            return
        if attempt.fence.claim_id in self._attempts:
            logger.warning("task %s: lease lost, the attempt is stopped", attempt.task.task_id)
            attempt.stop(StopReason.LEASE_LOST)


def _stop_cancelled(attempts: Sequence[RunningAttempt], cancels: Cancels) -> None:
    for attempt in attempts:
        if (cancel := cancels.get(attempt.fence)) is not None:
            attempt.stop(StopReason.CANCELLED, cancel)
