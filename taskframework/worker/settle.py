"""Settlement: the outcome is stored first, the message is acknowledged last."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from taskframework import failpoint
from taskframework.bus import EventBus
from taskframework.clock import Clock
from taskframework.errors import StoreUnavailableError
from taskframework.model.events import AttemptFinished, Settlement, Stale
from taskframework.model.outcome import Failed, Outcome
from taskframework.model.retry import RetryPolicy
from taskframework.model.status import DEAD
from taskframework.tasks.registry import Registration
from taskframework.worker.attempt import RunningAttempt
from taskframework.worker.held import HeldDelivery
from taskframework.worker.patience import until_available

logger = logging.getLogger(__name__)


class SettleStation:
    """Ends attempts for one worker."""

    def __init__(
        self, bus: EventBus, clock: Clock, worker_id: str, policy: RetryPolicy, on_stale: Callable[[str], None]
    ) -> None:
        """Prepare to settle.

        Args:
            bus: where the state aggregator listens.
            clock: tells when a lease has surely ended.
            worker_id: written into the history.
            policy: the retry policy of task types that have none of their own.
            on_stale: told the task type of each refused write.
        """
        self._bus = bus
        self._clock = clock
        self._worker_id = worker_id
        self._policy = policy
        self._on_stale = on_stale

    async def settle(
        self, registration: Registration, attempt: RunningAttempt, outcome: Outcome, delivery: HeldDelivery
    ) -> None:
        """Store the outcome, then acknowledge; an attempt that ends dead is rejected to the dead-letter exchange.

        The store being away is no reason to lose a result: the write is tried until the lease has surely ended, and
        then the message is acknowledged, because by now the reaper owns the task.
        """
        request = AttemptFinished(
            attempt.task, attempt.fence, self._worker_id, self._with_delay(registration, attempt, outcome)
        )
        reply = await self._store_outcome(request, attempt)
        await failpoint.reached("settle.before_ack")
        if isinstance(reply, Stale):
            self.discard(attempt)
        if isinstance(reply, Settlement) and reply.status in DEAD:
            await delivery.reject()
        else:
            await delivery.ack()

    def discard(self, attempt: RunningAttempt) -> None:
        """Count and report an outcome that may not be written."""
        self._on_stale(attempt.task.task_type)
        logger.warning(
            "task %s: the outcome of the attempt with fencing token %d is discarded, its lease was lost",
            attempt.task.task_id,
            attempt.fence.fencing_token,
        )

    async def _store_outcome(self, request: AttemptFinished, attempt: RunningAttempt) -> Settlement | Stale:
        try:
            reply: Settlement | Stale = await until_available(
                lambda: self._bus.ask(request), lambda: self._clock.monotonic() > attempt.lease_ends
            )
        except StoreUnavailableError:
            return Stale(request.task.task_id, request.fence.fencing_token)
        return reply

    def _with_delay(self, registration: Registration, attempt: RunningAttempt, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Failed) or outcome.delay is not None or not outcome.retryable:
            return outcome
        options = registration.executable.options
        policy = replace(
            self._policy,
            initial_delay=options.initial_delay if options.initial_delay is not None else self._policy.initial_delay,
            max_delay=options.max_delay if options.max_delay is not None else self._policy.max_delay,
        )
        return replace(outcome, delay=policy.delay(attempt.task.attempts))
