"""The producer: gets the events of tasks that became claimable, and sends their messages to the broker.

It never raises an error to the caller. If it cannot send a message, because the broker is away or this process dies,
the sweeper sends the message when the task's `next_dispatch_at` has come.
"""

from __future__ import annotations

import contextvars
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from opentelemetry.trace import SpanKind

from taskframework import failpoint
from taskframework.background import Background, end
from taskframework.brokers.base import Broker
from taskframework.clock import EARLY_RETRY_PAUSES_SECONDS, Clock
from taskframework.errors import BrokerError, BrokerUnavailableError, StoreError
from taskframework.limits.dispatch_turns import DispatchTurns
from taskframework.model.events import TaskEvent
from taskframework.model.marks import MakeDue, MarkDispatched, ReserveDispatch
from taskframework.model.message import TaskMessage
from taskframework.model.status import CLAIMABLE, Priority, TaskStatus, lane_below
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.stores.delayed_marks import MAX_MARK_DELAY, DelayedMarks
from taskframework.stores.replies import DueTask
from taskframework.telemetry import current_traceparent, is_tracing, span

logger = logging.getLogger(__name__)

#: The most publications under way at once. A publication that waits for its confirm does not delay the others.
_MAX_SENDERS = 256


@dataclass(frozen=True, slots=True)
class DispatchPolicy:
    """When a message is sent again, and up to which length the broker or a timer may hold a delay."""

    redispatch: timedelta = timedelta(seconds=20)
    redispatch_max: timedelta = timedelta(minutes=15)
    delay_limit: timedelta = timedelta(minutes=10)
    #: How long the mark of a confirmed message waits. Most tasks are claimed before that and need no mark.
    mark_after: timedelta = MAX_MARK_DELAY
    #: The most tasks that wait to be published, and the most that wait for their time. All others are left to the
    #: sweeper, so that memory stays bounded.
    max_pending: int = 20_000
    #: Whether a repeated attempt travels one lane below the lane of its task.
    lowers_retries: bool = False


class _Dispatch(NamedTuple):
    """A message to publish, and what is written after it. It has no parameters, which may be large: thousands wait."""

    message: TaskMessage
    not_before: datetime
    next_dispatch_at: datetime | None
    #: How long the broker holds the message; None to deliver it at once.
    delay: timedelta | None = None


class TaskMessageProducer:
    """Publishes the message of each task that becomes claimable in this process."""

    def __init__(
        self,
        store: TaskStore,
        broker: Broker,
        clock: Clock,
        policy: DispatchPolicy,
        on_refused: Callable[[], None] = lambda: None,
        is_paused: Callable[[str], bool] = lambda task_type: False,
        turns: DispatchTurns | None = None,
    ) -> None:
        """Prepare to publish.

        Args:
            store: where reservations and marks go.
            broker: where messages go.
            clock: for the timers.
            policy: when to send.
            on_refused: called when the broker refuses a message: a queue may be missing.
            is_paused: returns whether the tasks of a type are left to the sweeper.
            turns: takes over the tasks whose key of a rate limit has too many tasks; None if there are no such limits.
        """
        self._store = store
        self._broker = broker
        self._clock = clock
        self._policy = policy
        self._on_refused = on_refused
        self._is_paused = is_paused
        self._turns = turns
        if turns is not None:
            turns.publish = self._publish
        #: Why the broker refused the last message; None if it took it.
        self.refusal: str | None = None
        #: The messages to publish now, and the senders; each sender publishes one message after the other.
        self._outgoing: deque[_Dispatch] = deque()
        self._senders = Background()
        self._timers = Background()
        self._delayed_marks = DelayedMarks(MarkDispatched, self._write_marks, clock, policy.mark_after)

    def on_event(self, event: TaskEvent) -> None:
        """Publish the task of an event, or plan it, as a listener for every event after which a task is claimable."""
        task = event.task
        if task.status not in CLAIMABLE or len(self._outgoing) >= self._policy.max_pending:
            return
        if self._is_paused(task.task_type):
            return
        # A task that was due when it was written is due now: asking for the time would cost as much as all the rest.
        wait = timedelta(0) if task.not_before <= task.updated_at else task.not_before - self._store.now()
        if wait <= timedelta(0):
            if not self._is_taken_over(task):
                self._publish(task)
        elif wait > self._policy.delay_limit:
            return  # the task waits in the store, where it can be listed and cancelled; the sweeper sends it in time
        elif self._broker.holds_delays:
            self._publish(task, wait)
        elif len(self._timers.tasks) < self._policy.max_pending:
            self._timers.start(self._publish_later(_without_parameters(task), wait), contextvars.Context())

    async def dispatch(self, task: Task) -> bool:
        """Publish a reserved task for the sweeper.

        Returns:
            Whether the broker confirmed the message, or the task needs no message before its turn.
        """
        return self._is_taken_over(task) or await self._send(self._dispatch_of(task))

    async def dispatch_now(self, task: DueTask) -> None:
        """Publish a task that was just made due, instead of leaving it to the next sweep."""
        if self._broker.is_connected and not self._is_paused(task.task_type):
            reserved = await self._store.apply(self.reservation(task.task_id, task.dispatch_epoch))
            if reserved is not None:
                await self._send(self._dispatch_of(reserved))

    def reservation(self, task_id: str, dispatch_epoch: int) -> ReserveDispatch:
        """Return the transition by which one of several sweepers gets a due task."""
        return ReserveDispatch(task_id, dispatch_epoch, self._policy.redispatch, self._policy.redispatch_max)

    def lane_of(self, task: Task | DueTask) -> Priority:
        """Return the lane in which the message of a task travels."""
        is_lowered = self._policy.lowers_retries and task.status is TaskStatus.RETRYING
        return lane_below(task.lane) if is_lowered else task.lane

    async def wait_until_sent(self) -> None:
        """Wait until every message to send until now is confirmed, or left to the sweeper."""
        if self._turns is not None:
            await self._turns.finished()
        await self._senders.finished()

    async def close(self) -> None:
        """Finish the running publications; forget the timers, because the store has their times."""
        await end(*self._timers.tasks)
        await self.wait_until_sent()
        await self._delayed_marks.drain()

    def _is_taken_over(self, task: Task) -> bool:
        return self._turns is not None and self._turns.take_over(task)

    def _dispatch_of(self, task: Task, delay: timedelta | None = None) -> _Dispatch:
        message = TaskMessage.for_task(task, self.lane_of(task))
        return _Dispatch(message, task.not_before, task.next_dispatch_at, delay)

    def _publish(self, task: Task, delay: timedelta | None = None) -> None:
        self._outgoing.append(self._dispatch_of(task, delay))
        if len(self._senders.tasks) < _MAX_SENDERS:
            # In a separate context: a sender runs on after the caller of its first task, whose spans end.
            self._senders.start(self._send_outgoing(), contextvars.Context())

    async def _send_outgoing(self) -> None:
        while self._outgoing:
            dispatch = self._outgoing.popleft()
            try:
                if await self._send(dispatch):
                    self._mark_dispatched(dispatch)
            except Exception:
                logger.exception("task %s is left to the sweeper", dispatch.message.task_id)
        self._senders.leave()

    def _mark_dispatched(self, dispatch: _Dispatch) -> None:
        policy, message = self._policy, dispatch.message
        self._delayed_marks.add(
            message.task_id,
            message.dispatch_epoch,
            policy.redispatch,
            policy.redispatch_max,
            dispatch.next_dispatch_at,
        )

    async def _write_marks(self, marks: Sequence[MarkDispatched]) -> None:
        await failpoint.reached("dispatch.before_mark")
        await self._store.mark(*marks)

    async def _publish_later(self, task: Task, wait: timedelta) -> None:
        await self._clock.sleep(wait.total_seconds())
        if not self._broker.is_connected or self._is_paused(task.task_type):
            return
        try:
            reserved = await self._reserve(task)
        except StoreError as error:
            logger.debug("task %s is left to the sweeper: %s", task.task_id, error)
            return
        if reserved is not None:
            await failpoint.reached("retry.after_reserve")
            await self._send(self._dispatch_of(reserved))

    async def _reserve(self, task: Task) -> Task | None:
        reservation = self.reservation(task.task_id, task.dispatch_epoch)
        for pause in EARLY_RETRY_PAUSES_SECONDS:
            if (reserved := await self._store.apply(reservation)) is not None:
                return reserved
            await self._clock.sleep(pause)
        return await self._store.apply(reservation)

    async def _send(self, dispatch: _Dispatch) -> bool:
        if not is_tracing():
            return await self._send_message(dispatch)
        message = dispatch.message
        attributes = {
            "messaging.system": "rabbitmq",
            "messaging.operation.type": "send",
            "messaging.destination.name": message.task_type,
            "messaging.message.id": message.task_id,
        }
        with span(f"publish {message.task_type}", SpanKind.PRODUCER, message.traceparent, attributes):
            return await self._send_message(dispatch._replace(message=message.in_trace(current_traceparent())))

    async def _send_message(self, dispatch: _Dispatch) -> bool:
        message = dispatch.message
        await failpoint.reached("dispatch.before_publish")
        try:
            await self._broker.publish(message, delay=dispatch.delay)
        except BrokerUnavailableError as error:  # the connection logs the outage
            logger.debug("task %s is left to the sweeper: %s", message.task_id, error.message)
            return False
        except BrokerError as error:
            level = logging.INFO if self.refusal is None else logging.DEBUG  # thousands may follow
            text = "the message of task %s was refused and is sent again later: %s"
            logger.log(level, text, message.task_id, error.message)
            self.refusal = error.message
            self._on_refused()
            await self._put_off(dispatch)
            return False
        self.refusal = None
        await failpoint.reached("dispatch.after_publish")
        return True

    async def _put_off(self, dispatch: _Dispatch) -> None:
        """Write that a task has no message, so that it does not count as sent, nor wait longer after each refusal."""
        delay = max(self._policy.redispatch, dispatch.not_before - self._store.now())
        task_id, epoch = dispatch.message.task_id, dispatch.message.dispatch_epoch
        try:
            await self._store.mark(MakeDue(task_id, epoch, delay, was_refused=True))
        except StoreError as error:
            logger.debug("task %s waits as if it had a message: %s", task_id, error.message)


def _without_parameters(task: Task) -> Task:
    """Return the task without its parameters, which may be large and are in no message."""
    return task.evolve(parameters=None)
