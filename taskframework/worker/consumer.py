"""The consumer: handles each delivery from the broker's push to the acknowledgement."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from opentelemetry.trace import SpanKind

from taskframework import failpoint
from taskframework.background import Background, is_failure, surviving
from taskframework.brokers.base import Delivery
from taskframework.errors import MessageUnreadableError, StoreError, StoreUnavailableError
from taskframework.model.attempts import Claim
from taskframework.model.message import TRACE_HEADER, TaskMessage, claimable_since, read_message
from taskframework.model.outcome import Failed
from taskframework.model.status import Priority
from taskframework.model.stream_moves import ClaimTurn
from taskframework.tasks.registry import Registration, TaskRegistry
from taskframework.telemetry import log_with, mark_failed, span
from taskframework.worker.admission import Admission, Candidate, PutOff
from taskframework.worker.attempt import LeaseLostError, RunningAttempt
from taskframework.worker.claim import ClaimStation, Refusal
from taskframework.worker.deliveries import PendingDeliveries, PendingDelivery, Stage, TurnWithoutMessage
from taskframework.worker.executor import TaskExecutorService
from taskframework.worker.heartbeat import Heartbeat
from taskframework.worker.lanes import LanePolicy, Lanes
from taskframework.worker.settle import SettleStation
from taskframework.worker.store_breaker import StoreBreaker

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that the store has at most to write the mark of a delivery that is handed over.
_MARK_TIMEOUT_SECONDS = 5.0
#: Seconds that a delivery waits for a slot here while another worker has a free one. Messages come in turns to all
#: workers that run a type, also to those whose slots are taken by tasks that take long.
_MAX_WAIT_BESIDE_IDLE_SECONDS = 3.0
#: Seconds that the next task of a stream waits for a slot here. Then it gets a message, which any worker may take. When
#: many short tasks wait, a slot comes sooner; when all slots have long tasks, another worker may be idle.
_MAX_WAIT_OF_TURN_SECONDS = 1.0
#: For a delivery that is handed over although no admission check put it off: its task is due at once.
_DUE_AT_ONCE = PutOff(timedelta(0))


class TaskConsumer:
    """Takes deliveries, gives each a slot in its lane, and handles it to its end."""

    def __init__(
        self,
        registry: TaskRegistry,
        claims: ClaimStation,
        executor: TaskExecutorService,
        settlement: SettleStation,
        heartbeat: Heartbeat,
        breaker: StoreBreaker,
        deliveries: PendingDeliveries,
        admission: Admission,
        lanes: LanePolicy,
        now: Callable[[], datetime],
        can_begin_elsewhere: Callable[[str, Priority], Awaitable[bool]],
        *,
        slots: int,
    ) -> None:
        """Put the stations together.

        Args:
            registry: the task types of this process.
            claims: claims tasks for this worker.
            executor: runs their code.
            settlement: writes how an attempt ended.
            heartbeat: keeps the leases of running attempts.
            breaker: open while the store is away.
            deliveries: all deliveries whose work this worker has not finished yet.
            admission: asked before a claim.
            lanes: decides which lane gets the next free slot.
            now: the store's clock.
            can_begin_elsewhere: returns whether another worker could begin a task of this type and lane at once.
            slots: how many attempts may run at once.
        """
        self._registry = registry
        self._claims = claims
        self._executor = executor
        self._settlement = settlement
        self._heartbeat = heartbeat
        self._breaker = breaker
        self.deliveries = deliveries
        self._admission = admission
        self.slots = slots
        self._now = now
        self._can_begin_elsewhere = can_begin_elsewhere
        self.lanes: Lanes[PendingDelivery] = Lanes(slots, self._start, lanes, self._waited_time)
        self._handling = Background()
        #: What deliveries wait for before their claim.
        self._waits: set[asyncio.Future[Any]] = set()
        self._unreadable: list[tuple[Delivery, str]] = []
        self._context = contextvars.copy_context()
        self._is_closing = False

    def take_delivery(self, consumed_as: str, delivery: Delivery) -> None:
        """Take a delivery; the broker's callback for the queues of a task type. Never runs task code, never waits.

        Unreadable messages are rejected at once: thousands of them must not stand in line before readable messages.
        """
        try:
            message = read_message(delivery.body)
        except MessageUnreadableError as error:
            self._reject_later(delivery, error.reason)
        else:
            self.lanes.put(self.deliveries.add(delivery, message, consumed_as), delivery.lane)

    async def try_start_turn(self, claim: ClaimTurn) -> bool:
        """Claim a task that got the turn of its stream, and start it, if it soon gets a slot.

        It stands in line for the slot like the messages that wait here.

        Returns:
            Whether the task is claimed. Its attempt runs on.
        """
        if self._is_closing:
            return False
        turn = TurnWithoutMessage(claim)
        message = TaskMessage(claim.task_id, claim.task_type, 0, turn.lane)
        pending = self.deliveries.add(turn, message, claim.task_type)
        self.lanes.put(pending, turn.lane)
        if pending.stage is Stage.WAITING:
            await self.deliveries.answered_within(turn, _MAX_WAIT_OF_TURN_SECONDS)
            if pending.stage is Stage.WAITING:
                self._hand_over_all([pending])
        await turn.answered.wait()
        return turn.is_claimed

    async def watch_deliveries(self) -> None:
        """Until cancelled, acknowledge deliveries that run for long, and hand over deliveries that wait for long."""
        while True:
            with surviving(logger, "the watch over deliveries"):
                self._hand_over_all(self.deliveries.long_waiting())
                await self.acknowledge_early()
                await self._hand_over_to_idle_workers()
            await self.deliveries.pause()

    async def _hand_over_to_idle_workers(self) -> None:
        """Hand over deliveries that wait for a slot here, if another worker has a slot for their tasks."""
        waiting = self.deliveries.waiting_for(_MAX_WAIT_BESIDE_IDLE_SECONDS)
        queues = list({(it.consumed_as, it.delivery.lane) for it in waiting})
        # All at once: the broker has the same few seconds for all answers, and early acknowledgements come after them.
        answers = await asyncio.gather(*(self._can_begin_elsewhere(*queue) for queue in queues))
        wanted = {queue for queue, can_begin in zip(queues, answers, strict=True) if can_begin}
        self._hand_over_all(
            [it for it in waiting if (it.consumed_as, it.delivery.lane) in wanted and it.stage is Stage.WAITING]
        )

    async def acknowledge_early(self) -> None:
        """Acknowledge each delivery whose attempt may run longer than the broker's consumer timeout."""
        await asyncio.gather(*(pending.ack_early() for pending in self.deliveries.long_running()))

    def hand_over_waiting(self) -> None:
        """Hand over every delivery that waits for a slot, so that a worker with a free slot can run its task."""
        self._hand_over_all(self.lanes.clear())

    async def close(self) -> None:
        """Start no more deliveries, and give those that have not started back to the broker."""
        self._is_closing = True
        self._breaker.stop_waiting()
        for awaited in self._waits:
            awaited.cancel()
        unstarted = self.lanes.close()
        for pending in unstarted:  # before the first answer: otherwise the watch may hand them over as well
            pending.stage = Stage.HANDING_OVER
        await asyncio.gather(*(pending.put_back() for pending in unstarted))

    async def finished(self) -> None:
        """Wait until the work for every started delivery has ended."""
        await self._handling.finished()

    def abandon(self) -> None:
        """Cancel all work that still waits, such as a claim that waits for the store. No other work begins."""
        self._is_closing = True
        self.lanes.close()
        for task in self._handling.tasks:
            task.cancel()

    def _reject_later(self, delivery: Delivery, reason: str) -> None:
        self._unreadable.append((delivery, reason))
        if len(self._unreadable) == 1:
            self._start_work(self._reject_unreadable())

    async def _reject_unreadable(self) -> None:
        """Reject all unreadable messages that came since the last call, with one line in the log."""
        rejected, self._unreadable = self._unreadable, []
        first, reason = rejected[0]
        logger.warning("unreadable messages rejected: %d, the first from %s: %s", len(rejected), first.queue, reason)
        for delivery, _ in rejected:
            await delivery.reject()

    def _waited_time(self, pending: PendingDelivery) -> timedelta:
        since = claimable_since(pending.delivery.headers)
        return timedelta(0) if since is None else self._now() - since

    def _start(self, pending: PendingDelivery, lane: Priority) -> None:
        pending.stage = Stage.CLAIMING
        self._start_work(self._handle_to_end(pending, lane))

    def _start_work(self, work: Coroutine[Any, Any, None]) -> None:
        # Each delivery gets its own copy of the context: log fields and spans of one task must not reach the next.
        self._handling.start(work, self._context.copy())

    async def _handle_to_end(self, pending: PendingDelivery, lane: Priority) -> None:
        try:
            await self._finish(pending, self.handle(pending))
        finally:
            self.lanes.release(lane)

    async def _finish(self, pending: PendingDelivery, work: Awaitable[None]) -> None:
        """Do the work for a delivery, then forget the delivery. Acknowledge it if the work fails."""
        try:
            await work
        except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not is_failure(error):
                raise  # this work was abandoned
            logger.exception("a delivery of %s could not be handled", pending.delivery.queue)
            # The task has a driver, so it is not lost. Without an answer, the message would use up prefetch for ever.
            await pending.ack()
        finally:
            self.deliveries.remove(pending)

    async def handle(self, pending: PendingDelivery) -> None:
        """Admit, claim, execute and settle one delivery."""
        if isinstance(pending.delivery, TurnWithoutMessage):
            await self._claim_turn_and_run(pending, pending.delivery)
            return
        registration = self._registry.get(pending.message.task_type)
        claim = self._claims.request(pending.message)
        async with AsyncExitStack() as holding:
            candidate = Candidate(
                pending.message,
                pending.delivery.headers,
                registration,
                claim.claim_id,
                holding,
                partial(self._without_slot, pending),
                partial(self._with_slot, pending),
                lane=pending.delivery.lane,
            )
            result = await self._admit_and_claim(pending, candidate, claim)
            if isinstance(result, PutOff | Refusal):
                candidate.unless_claimed.close()
                pending.is_task_known = candidate.is_task_known
            if isinstance(result, PutOff):
                await (pending.put_back() if self._is_closing else self._hand_over(pending, result))
            elif isinstance(result, Refusal):
                await self._answer(pending, result)
            elif registration is not None:
                pending.stage = Stage.RUNNING
                await self._run(registration, result, pending)

    async def _claim_turn_and_run(self, pending: PendingDelivery, turn: TurnWithoutMessage) -> None:
        """Claim and execute a task that has no message."""
        try:
            attempt, registration = await self._claim_turn(pending, turn.claim), self._registry.get(pending.consumed_as)
            if attempt is not None and registration is not None:
                turn.mark_claimed()
                pending.stage = Stage.RUNNING
                await self._run(registration, attempt, pending)
        finally:
            await turn.put_back()  # if it is not claimed: who asked for the start waits for the answer

    async def _claim_turn(self, pending: PendingDelivery, claim: ClaimTurn) -> RunningAttempt | None:
        is_repeated = False
        while await self._breaker.wait_until_closed(within=self.deliveries.seconds_to_claim(pending)):
            try:
                return await self._claims.claim_turn(claim, is_repeated=is_repeated)
            except StoreUnavailableError as error:
                is_repeated = True
                self._breaker.open(error)
        return None

    async def _admit_and_claim(
        self, pending: PendingDelivery, candidate: Candidate, claim: Claim
    ) -> PutOff | RunningAttempt | Refusal:
        """Ask the checks, then claim. While the store is away the delivery stays here, without an answer to the broker.

        Returns:
            The attempt, or why there is none: `PutOff` also if the store was away too long or the worker stops.
        """
        is_admitted = is_repeated = False
        while await self._breaker.wait_until_closed(within=self.deliveries.seconds_to_claim(pending)):
            try:
                if not is_admitted:
                    if (put_off := await self._admission.admit(candidate)) is not None:
                        return put_off
                    is_admitted = True
                    claim = candidate.conditions(claim)
                    await failpoint.reached("deliver.before_claim")
                return await self._claims.claim(claim, is_repeated=is_repeated)
            except StoreUnavailableError as error:
                if is_admitted:
                    is_repeated = True
                    candidate.unless_claimed.pop_all()  # the store may have applied the claim: give nothing back
                self._breaker.open(error)
        return _DUE_AT_ONCE

    async def _without_slot(self, pending: PendingDelivery, awaited: Awaitable[T]) -> T | None:
        """Implement `Candidate.without_slot`."""
        self.lanes.release(pending.delivery.lane)
        try:
            return await self._with_slot(pending, awaited)
        finally:
            await self.lanes.take_slot_again(pending.delivery.lane)

    async def _with_slot(self, pending: PendingDelivery, awaited: Awaitable[T]) -> T | None:
        """Implement `Candidate.with_slot`."""
        work = asyncio.ensure_future(awaited)
        too_late = asyncio.create_task(self.deliveries.wait_until_overdue(pending))
        self._waits.add(work)
        try:
            if self._is_closing:
                work.cancel()
            await asyncio.wait([work, too_late], return_when=asyncio.FIRST_COMPLETED)
        finally:
            too_late.cancel()
            work.cancel()
            self._waits.discard(work)
        return work.result() if work.done() and not work.cancelled() else None

    def _hand_over_all(self, deliveries: Iterable[PendingDelivery]) -> None:
        for pending in deliveries:
            pending.stage = Stage.HANDING_OVER
            self.lanes.remove(pending, pending.delivery.lane)
            self._start_work(self._finish(pending, self._hand_over(pending)))

    async def _hand_over(self, pending: PendingDelivery, put_off: PutOff = _DUE_AT_ONCE) -> None:
        """Leave a task that this worker may not or cannot claim now to the sweeper.

        If the store does not take the mark, the task is late but not lost: its document says when it is due.
        """
        if isinstance(pending.delivery, TurnWithoutMessage):
            await pending.put_back()  # who asked for the start sends a message instead
            return
        refusal = Refusal.NOT_OURS
        try:
            async with asyncio.timeout(_MARK_TIMEOUT_SECONDS):
                refusal = await self._claims.hand_over(pending.message, put_off)
        except (StoreError, TimeoutError) as error:
            logger.info("task %s waits for its due time: %s", pending.message.task_id, error)
        await failpoint.reached("hand_over.after_write")
        await self._answer(pending, refusal)

    async def _answer(self, pending: PendingDelivery, refusal: Refusal) -> None:
        """Answer a message whose task is not run here.

        A message without a task is a dead letter, because its task may be lost. But if the task was there while the
        delivery waited, then it has ended and was deleted, after another message or by a request: nothing is lost.
        """
        is_orphan = refusal is Refusal.NO_DOCUMENT and not pending.is_task_known
        await (pending.reject() if is_orphan else pending.ack())

    async def _run(self, registration: Registration, attempt: RunningAttempt, pending: PendingDelivery) -> None:
        task, delivery = attempt.task, pending.delivery
        traceparent = delivery.headers.get(TRACE_HEADER) or task.traceparent
        attributes: dict[str, str | int] = {
            "messaging.system": "rabbitmq",
            "messaging.operation.type": "process",
            "messaging.destination.name": delivery.queue,
            "messaging.message.id": task.task_id,
            "taskframework.attempt": task.attempts,
        }
        self._heartbeat.add(attempt)
        try:
            with span(f"process {task.task_type}", SpanKind.CONSUMER, traceparent, attributes) as active:
                log_with(
                    task_id=task.task_id,
                    task_type=task.task_type,
                    attempt=task.attempts,
                    correlation_id=task.correlation_id,
                    user_id=task.user_id,
                )
                await failpoint.reached("execute.before")
                outcome = await self._executor.execute(registration, attempt)
                if active is not None and isinstance(outcome, Failed) and outcome.error.code != "cancelled":
                    error = outcome.error
                    mark_failed(active, error.type, error.message, error.traceback)
                await self._settlement.settle(registration, attempt, outcome, pending)
        except LeaseLostError:
            await self._settlement.discard(attempt)
            await pending.ack()
        finally:
            self._heartbeat.remove(attempt)
