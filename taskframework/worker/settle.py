"""Settlement: the outcome is stored first, the message is acknowledged last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

from taskframework import failpoint
from taskframework.bus import EventBus
from taskframework.clock import Clock
from taskframework.errors import StoreError, StoreUnavailableError, TaskframeworkError, ValueNotStorableError
from taskframework.model.events import AttemptFinished, Settlement, Stale
from taskframework.model.outcome import Failed, Outcome, failure
from taskframework.model.retry import RetryPolicy
from taskframework.model.scope import EVERYONE
from taskframework.model.status import DEAD
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.tasks.limits import as_timedelta
from taskframework.tasks.registry import Registration
from taskframework.worker.attempt import RunningAttempt
from taskframework.worker.deliveries import PendingDelivery
from taskframework.worker.store_breaker import until_available

logger = logging.getLogger(__name__)

#: Seconds that the store has to say which worker has the task now. A slot waits for the answer, and only the log
#: needs it.
_HOLDER_TIMEOUT_SECONDS = 2.0
#: Seconds that the call may take by which a rate limit is held. If it fails, the next refused attempt tries again.
_HOLD_TIMEOUT_SECONDS = 2.0

HoldLimit = Callable[[Registration, Task, timedelta], Awaitable[None]]


class SettleStation:
    """Ends attempts for one worker."""

    def __init__(
        self,
        store: TaskStore,
        bus: EventBus,
        clock: Clock,
        worker_id: str,
        policy: RetryPolicy,
        on_stale: Callable[[str], None],
        on_store_away: Callable[[StoreUnavailableError], None],
        hold_limit: HoldLimit,
    ) -> None:
        """Prepare to settle.

        Args:
            store: tells which worker has a task whose lease was lost.
            bus: where the state aggregator listens.
            clock: tells when a lease may be over.
            worker_id: written into the history.
            policy: the retry policy for task types without their own policy.
            on_stale: called with the task type of each attempt that lost its lease.
            on_store_away: called for each write that did not reach the store.
            hold_limit: holds the rate limit of a task when its code asked for this.
        """
        self._store = store
        self._bus = bus
        self._clock = clock
        self._worker_id = worker_id
        self._policy = policy
        self._on_stale = on_stale
        self._on_store_away = on_store_away
        self._hold = hold_limit

    async def settle(
        self, registration: Registration, attempt: RunningAttempt, outcome: Outcome, delivery: PendingDelivery
    ) -> None:
        """Store the outcome, then acknowledge the delivery; if the task is dead, reject it to the dead-letter exchange.

        While the store is away, the write is repeated until the lease may be over. After that the reaper continues
        the task, so the message is acknowledged in any case.
        """
        outcome = self._with_delay(registration, attempt, outcome)
        if isinstance(outcome, Failed) and outcome.pauses_limit and outcome.delay is not None:
            await self._hold_limit(registration, attempt.task, outcome.delay)
        request = AttemptFinished(attempt.task, attempt.fence, self._worker_id, outcome)
        try:
            reply = await self._store_outcome(request, attempt)
        except ValueNotStorableError as error:  # the task's values are too large together, in the form of the store
            reply = await self._store_outcome(replace(request, outcome=failure(error, "bad_result")), attempt)
        await failpoint.reached("settle.before_ack")
        if isinstance(reply, Stale):
            self._on_stale(attempt.task.task_type)
            _log_discarded(attempt, reply.current_token, reply.held_by)
        if isinstance(reply, Settlement) and reply.status in DEAD:
            await delivery.reject()
        else:
            await delivery.ack()

    async def discard(self, attempt: RunningAttempt) -> None:
        """Count and log an attempt that lost its lease while it ran: its outcome may not be written."""
        self._on_stale(attempt.task.task_type)
        task = await self._read_task(attempt.task.task_id)
        holder = task.lease.worker_id if task and task.lease else None
        _log_discarded(attempt, task.fencing_token if task else None, holder)

    async def _read_task(self, task_id: str) -> Task | None:
        try:
            async with asyncio.timeout(_HOLDER_TIMEOUT_SECONDS):
                return await self._store.get(task_id, EVERYONE)
        except (StoreError, TimeoutError):
            return None

    async def _hold_limit(self, registration: Registration, task: Task, delay: timedelta) -> None:
        try:
            async with asyncio.timeout(_HOLD_TIMEOUT_SECONDS):
                await self._hold(registration, task, delay)
                await failpoint.reached("limits.after_hold")
        except (TaskframeworkError, TimeoutError) as error:
            logger.warning("task %s: its rate limit could not be held: %s", task.task_id, error)

    async def _store_outcome(self, request: AttemptFinished, attempt: RunningAttempt) -> Settlement | Stale:
        try:
            reply: Settlement | Stale = await until_available(
                lambda: self._bus.ask(request),
                lambda: attempt.lease_may_be_over(self._clock),
                self._on_store_away,
            )
        except StoreUnavailableError:
            return Stale()
        return reply

    def _with_delay(self, registration: Registration, attempt: RunningAttempt, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Failed) or outcome.delay is not None or not outcome.retryable:
            return outcome
        options = registration.executable.options
        first, longest = options.initial_delay, options.max_delay
        policy = self._policy.with_own(
            None if first is None else as_timedelta(first), None if longest is None else as_timedelta(longest)
        )
        return replace(outcome, delay=policy.delay(attempt.task.attempts))


def _log_discarded(attempt: RunningAttempt, current_token: int | None, held_by: str | None) -> None:
    token = attempt.fence.fencing_token
    if current_token is None:
        holder = "who has the task now could not be read"
    else:
        holder = f"the task now has token {current_token} and is held by {held_by or 'nobody'}"
    logger.warning(
        "task %s: the outcome of the attempt with fencing token %d is discarded because its lease was lost; %s",
        attempt.task.task_id,
        token,
        holder,
        extra={
            "task_id": attempt.task.task_id,
            "task_type": attempt.task.task_type,
            "fencing_token": token,
            "current_token": current_token,
            "held_by": held_by,
        },
    )
