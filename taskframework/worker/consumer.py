"""The consumer: one delivery from the broker to the acknowledgement, as one readable sequence."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from opentelemetry.trace import SpanKind

from taskframework import failpoint
from taskframework.brokers.base import Delivery
from taskframework.errors import MessageUnreadableError
from taskframework.model.message import TaskMessage, read_message
from taskframework.model.status import Priority
from taskframework.tasks.registry import Registration, TaskRegistry
from taskframework.telemetry import log_context, span
from taskframework.worker.attempt import RunningAttempt
from taskframework.worker.claim import ClaimStation, Refusal
from taskframework.worker.executor import LeaseLostError, TaskExecutorService
from taskframework.worker.heartbeat import Heartbeat
from taskframework.worker.held import HeldDelivery
from taskframework.worker.lanes import Lanes
from taskframework.worker.patience import until_available
from taskframework.worker.settle import SettleStation

logger = logging.getLogger(__name__)


class TaskConsumer:
    """Takes deliveries, gives each a slot in its lane, and sees it through."""

    def __init__(
        self,
        registry: TaskRegistry,
        claims: ClaimStation,
        executor: TaskExecutorService,
        settlement: SettleStation,
        heartbeat: Heartbeat,
        *,
        slots: int,
        ack_early_after: timedelta,
    ) -> None:
        self._registry = registry
        self._claims = claims
        self._executor = executor
        self._settlement = settlement
        self._heartbeat = heartbeat
        self._ack_early_after = ack_early_after.total_seconds()
        self.lanes: Lanes[Delivery] = Lanes(slots, self._start)
        self._handling: set[asyncio.Task[None]] = set()

    def take(self, delivery: Delivery) -> None:
        """The broker's callback: never runs task code, never waits."""
        self.lanes.put(delivery, delivery.lane)

    async def finished(self) -> None:
        """Wait until every started delivery is done with."""
        while self._handling:
            await asyncio.wait(self._handling)

    def abandon(self) -> None:
        """Stop what is still held up, such as a claim that waits for the store."""
        for task in self._handling:
            task.cancel()

    def _start(self, delivery: Delivery, lane: Priority) -> None:
        task = asyncio.create_task(self._see_through(delivery, lane))
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _see_through(self, delivery: Delivery, lane: Priority) -> None:
        try:
            await self.handle(delivery)
        except Exception:
            # Not acknowledged: the broker delivers it again when the channel closes, and the lease has its reaper.
            logger.exception("a delivery of %s could not be handled", delivery.queue)
        finally:
            self.lanes.release(lane)

    async def handle(self, delivery: Delivery) -> None:
        """Claim, execute and settle one delivery."""
        try:
            message = read_message(delivery.body)
        except MessageUnreadableError as error:
            logger.warning("a message of %s goes to the dead letters: %s", delivery.queue, error.reason)
            await delivery.reject()
            return
        registration = self._registry.get(message.task_type)
        attempt = await self._claim(message, registration)
        if isinstance(attempt, Refusal):
            await (delivery.reject() if attempt is Refusal.NO_DOCUMENT else delivery.ack())
        elif registration is not None:
            await self._run(registration, attempt, delivery)

    async def _claim(self, message: TaskMessage, registration: Registration | None) -> RunningAttempt | Refusal:
        """Claim; while the store is away the delivery is held, neither acknowledged nor sent back."""
        if registration is None:
            return await until_available(lambda: self._claims.postpone(message))
        claim = self._claims.request(message)
        return await until_available(lambda: self._claims.claim(claim))

    async def _run(self, registration: Registration, attempt: RunningAttempt, delivery: Delivery) -> None:
        task = attempt.task
        traceparent = delivery.headers.get("traceparent") or task.traceparent
        attributes: dict[str, str | int] = {
            "messaging.system": "rabbitmq",
            "messaging.operation.type": "process",
            "messaging.destination.name": delivery.queue,
            "messaging.message.id": task.task_id,
            "taskframework.attempt": task.attempts,
        }
        self._heartbeat.add(attempt)
        held = HeldDelivery(delivery, self._ack_early_after)
        try:
            with (
                span(f"process {task.task_type}", SpanKind.CONSUMER, traceparent, attributes),
                log_context(task_id=task.task_id, correlation_id=task.correlation_id, user_id=task.user_id),
            ):
                await failpoint.reached("execute.before")
                outcome = await self._executor.execute(registration, attempt)
                await self._settlement.settle(registration, attempt, outcome, held)
        except LeaseLostError:
            self._settlement.discard(attempt)
            await held.ack()
        finally:
            held.close()
            self._heartbeat.remove(attempt)
