"""The consumer: one delivery from the broker to the acknowledgement, as one readable sequence."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import Any

from opentelemetry.trace import SpanKind

from taskframework import failpoint
from taskframework.brokers.base import Delivery
from taskframework.errors import MessageUnreadableError, StoreError, StoreUnavailableError
from taskframework.model.message import read_message
from taskframework.model.status import Priority
from taskframework.tasks.registry import Registration, TaskRegistry
from taskframework.telemetry import log_with, span
from taskframework.worker.attempt import RunningAttempt
from taskframework.worker.claim import ClaimStation, Refusal
from taskframework.worker.executor import LeaseLostError, TaskExecutorService
from taskframework.worker.heartbeat import Heartbeat
from taskframework.worker.held import HeldDelivery, InHand, Stage
from taskframework.worker.lanes import Lanes
from taskframework.worker.patience import StoreBreaker
from taskframework.worker.settle import SettleStation
from taskframework.worker.suspects import Suspects

logger = logging.getLogger(__name__)

#: Longest wait for the store to take the mark of a delivery that is handed over, in seconds.
_MARK_SECONDS = 5.0
#: When a suspect that could not have its turn comes again.
_PUT_OFF = timedelta(seconds=5)


class TaskConsumer:
    """Takes deliveries, gives each a slot in its lane, and sees it through."""

    def __init__(
        self,
        registry: TaskRegistry,
        claims: ClaimStation,
        executor: TaskExecutorService,
        settlement: SettleStation,
        heartbeat: Heartbeat,
        breaker: StoreBreaker,
        in_hand: InHand,
        suspects: Suspects,
        *,
        slots: int,
    ) -> None:
        self._registry = registry
        self._claims = claims
        self._executor = executor
        self._settlement = settlement
        self._heartbeat = heartbeat
        self._breaker = breaker
        self.in_hand = in_hand
        self._suspects = suspects
        self.slots = slots
        self.lanes: Lanes[HeldDelivery] = Lanes(slots, self._start)
        self._handling: set[asyncio.Task[None]] = set()
        self._unreadable: list[tuple[Delivery, str]] = []
        self._context = contextvars.copy_context()
        self._is_closing = False

    def take(self, delivery: Delivery) -> None:
        """The broker's callback: never runs task code, never waits.

        What nobody can read leaves at once: thousands of such messages must not wait in the line of those in between.
        """
        try:
            message = read_message(delivery.body)
        except MessageUnreadableError as error:
            self._turn_away(delivery, error.reason)
        else:
            self.lanes.put(self.in_hand.take(delivery, message), delivery.lane)

    async def keep_time(self) -> None:
        """Until cancelled, acknowledge early what runs for long and hand over what waited for long."""
        while True:
            try:
                self._hand_over_all(self.in_hand.long_waiting())
                await self._acknowledge_early()
            except Exception:
                logger.exception("deliveries in hand could not be looked after; trying again")
            await self.in_hand.rest()

    async def retire(self) -> None:
        """The consumers of what is in hand were stopped."""
        self.in_hand.retire()
        await self._acknowledge_early()

    def hand_over_what_waits(self) -> None:
        """Leave everything that has no slot to whoever has one."""
        self._hand_over_all(self.lanes.clear())

    async def close(self) -> None:
        """Start nothing more, and give what has not started back to the broker."""
        self._is_closing = True
        self._breaker.give_up()
        await asyncio.gather(*(held.put_back() for held in self.lanes.close()))

    async def finished(self) -> None:
        """Wait until every started delivery is done with."""
        while self._handling:
            await asyncio.wait(self._handling)

    def abandon(self) -> None:
        """Stop what is still held up, such as a claim that waits for the store."""
        for task in self._handling:
            task.cancel()

    def _turn_away(self, delivery: Delivery, reason: str) -> None:
        self._unreadable.append((delivery, reason))
        if len(self._unreadable) == 1:
            self._begin(self._reject_unreadable())

    async def _reject_unreadable(self) -> None:
        """Send what came unreadable in one moment to the dead letters."""
        rejected, self._unreadable = self._unreadable, []
        first, reason = rejected[0]
        logger.warning("unreadable messages rejected: %d, the first from %s: %s", len(rejected), first.queue, reason)
        for delivery, _ in rejected:
            await delivery.reject()

    def _start(self, held: HeldDelivery, lane: Priority) -> None:
        held.stage = Stage.CLAIMING
        self._begin(self._see_through(held, lane))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        # A copy for each: what is set for one task, for its log lines and spans, is not seen by the next.
        task = asyncio.create_task(work, context=self._context.copy())
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _see_through(self, held: HeldDelivery, lane: Priority) -> None:
        try:
            await self.handle(held)
        except Exception:
            logger.exception("a delivery of %s could not be handled", held.delivery.queue)
            # Its document has its own driver; kept in hand, the message would cost a place of the prefetch for good.
            await held.ack()
        finally:
            self.in_hand.drop(held)
            self.lanes.release(lane)

    async def handle(self, held: HeldDelivery) -> None:
        """Claim, execute and settle one delivery."""
        async with self._suspects.turn(held.delivery.headers) as is_its_turn:
            await (self._claim_and_run(held) if is_its_turn else self._hand_over(held, _PUT_OFF))

    async def _claim_and_run(self, held: HeldDelivery) -> None:
        registration = self._registry.get(held.message.task_type)
        await failpoint.reached("deliver.before_claim")
        attempt = await self._claim(held, registration)
        if attempt is None:
            await (held.put_back() if self._is_closing else self._hand_over(held))
        elif isinstance(attempt, Refusal):
            await (held.reject() if attempt is Refusal.NO_DOCUMENT else held.ack())
        elif registration is not None:
            held.stage = Stage.RUNNING
            await self._run(registration, attempt, held)

    async def _claim(self, held: HeldDelivery, registration: Registration | None) -> RunningAttempt | Refusal | None:
        """Claim; while the store is away the delivery is held, neither acknowledged nor sent back.

        Returns:
            None if the store was away for too long, or is away when the worker stops.
        """
        claim = self._claims.request(held.message)
        while await self._breaker.closed(within=self.in_hand.seconds_to_claim(held)):
            try:
                if registration is None:
                    return await self._claims.postpone(held.message)
                return await self._claims.claim(claim)
            except StoreUnavailableError as error:
                self._breaker.open(error)
        return None

    def _hand_over_all(self, leaving: Iterable[HeldDelivery]) -> None:
        for held in leaving:
            held.stage = Stage.LEAVING
            self.lanes.remove(held, held.delivery.lane)
            self._begin(self._leave(held))

    async def _leave(self, held: HeldDelivery) -> None:
        try:
            await self._hand_over(held)
        finally:
            self.in_hand.drop(held)

    async def _hand_over(self, held: HeldDelivery, delay: timedelta = timedelta(0)) -> None:
        """Leave a task that nobody here came to claim to the sweeper.

        If the store does not take the mark, the task is late and not lost: its document says when it is due.
        """
        refusal = Refusal.NOT_OURS
        try:
            async with asyncio.timeout(_MARK_SECONDS):
                refusal = await self._claims.hand_over(held.message, delay)
        except (StoreError, TimeoutError) as error:
            logger.info("task %s waits for its due time: %s", held.message.task_id, error)
        await failpoint.reached("hand_over.after_write")
        await (held.reject() if refusal is Refusal.NO_DOCUMENT else held.ack())

    async def _acknowledge_early(self) -> None:
        await asyncio.gather(*(held.ack_early() for held in self.in_hand.long_running()))

    async def _run(self, registration: Registration, attempt: RunningAttempt, held: HeldDelivery) -> None:
        task, delivery = attempt.task, held.delivery
        traceparent = delivery.headers.get("traceparent") or task.traceparent
        attributes: dict[str, str | int] = {
            "messaging.system": "rabbitmq",
            "messaging.operation.type": "process",
            "messaging.destination.name": delivery.queue,
            "messaging.message.id": task.task_id,
            "taskframework.attempt": task.attempts,
        }
        self._heartbeat.add(attempt)
        try:
            with span(f"process {task.task_type}", SpanKind.CONSUMER, traceparent, attributes):
                log_with(
                    task_id=task.task_id,
                    task_type=task.task_type,
                    attempt=task.attempts,
                    correlation_id=task.correlation_id,
                    user_id=task.user_id,
                )
                await failpoint.reached("execute.before")
                outcome = await self._executor.execute(registration, attempt)
                await self._settlement.settle(registration, attempt, outcome, held)
        except LeaseLostError:
            await self._settlement.discard(attempt)
            await held.ack()
        finally:
            self._heartbeat.remove(attempt)
