"""Pending deliveries, and how long each may stay unanswered: a share of the broker's consumer timeout.

If a delivery is not acknowledged within this timeout, the broker closes its channel and delivers all its messages
again. A running attempt does not need its message, because it has a lease; so the delivery of a long attempt is
acknowledged early. A delivery that has waited for long is handed over, so that another worker can run its task.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from taskframework import failpoint
from taskframework.brokers.base import Delivery
from taskframework.clock import Clock, happens_within
from taskframework.model.message import TaskMessage
from taskframework.model.status import Priority, lane_of
from taskframework.model.stream_moves import ClaimTurn

#: A delivery whose task is not claimed is handed over after this share of the consumer timeout.
_MAX_UNCLAIMED_SHARE = 1 / 4
#: The delivery of a running attempt is acknowledged after this share.
_MAX_RUNNING_SHARE = 1 / 2
#: The same for a delivery whose consumer was stopped. The prefetch of the next consumer does not count the slot of its
#: task. Once the delivery is acknowledged, `acked_early` counts it, and the next prefetch is smaller.
_MAX_RUNNING_SHARE_AFTER_STOP = 1 / 8
#: The pause between two searches for such deliveries, as a share of the timeout, and at most this many seconds.
_LOOK_INTERVAL_SHARE = 1 / 16
_MAX_PAUSE_SECONDS = 1.0
#: A task that was started without a message has a slot that the prefetch does not know of. After this many seconds, the
#: slot is counted like that of a delivery that was acknowledged early. With one second, a crowded worker with short
#: tasks registered new consumers again and again.
_MAX_UNCOUNTED_SECONDS = 5.0


class Stage(enum.Enum):
    """How far the work for a delivery has come."""

    WAITING = "waiting"  # for a slot
    CLAIMING = "claiming"
    RUNNING = "running"
    HANDING_OVER = "handing over"  # to the sweeper


@dataclass(slots=True)
class TurnWithoutMessage:
    """`Delivery` of a task of a stream that a worker starts without a message. Whoever asked for that waits for the
    answer whether the task is claimed, as the broker waits for an answer to a message.
    """

    claim: ClaimTurn
    #: Whether the task is claimed, once that is answered. If it is not, it has to be unblocked.
    is_claimed: bool = False
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    body: bytes = b""

    @property
    def queue(self) -> str:
        return self.claim.task_type

    @property
    def lane(self) -> Priority:
        return lane_of(self.claim.priority)

    @property
    def headers(self) -> Mapping[str, str]:
        return {}

    async def ack(self) -> None:
        self._answer(False)

    async def reject(self) -> None:
        self._answer(False)

    async def put_back(self) -> None:
        self._answer(False)

    def mark_claimed(self) -> None:
        """Answer that the task is claimed; later answers have no effect."""
        self._answer(True)

    def _answer(self, is_claimed: bool) -> None:
        if not self.answered.is_set():
            self.is_claimed = is_claimed
            self.answered.set()


class PendingDelivery:
    """A delivery from its arrival to the end of its work. The broker gets one answer only."""

    __slots__ = (
        "arrived_at",
        "consumed_as",
        "delivery",
        "is_answered",
        "is_consumer_stopped",
        "is_task_known",
        "message",
        "stage",
    )

    def __init__(self, delivery: Delivery, message: TaskMessage, consumed_as: str, arrived_at: float) -> None:
        self.delivery = delivery
        self.message = message
        #: The task type from whose queues the delivery came.
        self.consumed_as = consumed_as
        self.arrived_at = arrived_at
        self.stage = Stage.WAITING
        #: Whether its consumer has been stopped.
        self.is_consumer_stopped = False
        self.is_answered = False
        #: Whether its task was read from the store while the delivery was here.
        self.is_task_known = False

    async def ack(self) -> None:
        if self._mark_answered():
            await self.delivery.ack()

    async def ack_early(self) -> None:
        """Acknowledge a delivery whose attempt still runs. The prefetch does not count it any more."""
        await failpoint.reached("early_ack.before")
        await self.ack()
        await failpoint.reached("early_ack.after")

    async def put_back(self) -> None:
        if self._mark_answered():
            await self.delivery.put_back()

    async def reject(self) -> None:
        """Dead-letter the message. If it was acknowledged early, the task's document is the only dead letter."""
        if self._mark_answered():
            await self.delivery.reject()

    def _mark_answered(self) -> bool:
        is_first, self.is_answered = not self.is_answered, True
        return is_first


class PendingDeliveries:
    """All pending deliveries of a worker, in the order of their arrival."""

    def __init__(self, clock: Clock, consumer_timeout: Callable[[], timedelta | None]) -> None:
        """Start with no delivery.

        Args:
            clock: tells how long a delivery has been here.
            consumer_timeout: returns the broker's timeout; None means no timeout. Called each time, because the timeout
                may become shorter.
        """
        self._clock = clock
        self._consumer_timeout = consumer_timeout
        self._pending: dict[PendingDelivery, None] = {}

    def add(self, delivery: Delivery, message: TaskMessage, consumed_as: str) -> PendingDelivery:
        pending = PendingDelivery(delivery, message, consumed_as, self._clock.monotonic())
        self._pending[pending] = None
        return pending

    def remove(self, pending: PendingDelivery) -> None:
        """Forget a delivery whose work is done."""
        self._pending.pop(pending, None)

    def mark_consumers_stopped(self, task_type: str) -> None:
        """Note that the consumers of this type were stopped; later deliveries come from new consumers."""
        for pending in self._pending:
            pending.is_consumer_stopped = pending.is_consumer_stopped or pending.consumed_as == task_type

    @property
    def unanswered(self) -> int:
        return sum(not pending.is_answered for pending in self._pending)

    @property
    def acked_early(self) -> int:
        """Slots held by attempts whose delivery is acknowledged."""
        return sum(pending.is_answered and pending.stage is Stage.RUNNING for pending in self._pending)

    @property
    def types_left_over(self) -> set[str]:
        """The task types with deliveries of stopped consumers that are still to be claimed."""
        unclaimed = (Stage.WAITING, Stage.CLAIMING)
        return {
            pending.consumed_as
            for pending in self._pending
            if pending.is_consumer_stopped and not pending.is_answered and pending.stage in unclaimed
        }

    async def answered_within(self, turn: TurnWithoutMessage, seconds: float) -> None:
        """Wait for the answer to a turn, at most for so long."""
        await happens_within(turn.answered, seconds, self._clock)

    async def pause(self) -> None:
        """Wait until the next search for deliveries that take long."""
        timeout = self._timeout_seconds
        await self._clock.sleep(
            _MAX_PAUSE_SECONDS if timeout is None else min(_MAX_PAUSE_SECONDS, timeout * _LOOK_INTERVAL_SHARE)
        )

    def long_waiting(self) -> list[PendingDelivery]:
        """Deliveries that have waited for a slot for too long."""
        return [pending for pending in self._older_than(_MAX_UNCLAIMED_SHARE) if pending.stage is Stage.WAITING]

    def waiting_for(self, seconds: float) -> list[PendingDelivery]:
        """Deliveries that have waited for a slot for at least so many seconds."""
        return [pending for pending in self._here_for(seconds) if pending.stage is Stage.WAITING]

    def long_running(self) -> list[PendingDelivery]:
        """Deliveries whose attempts have run for so long that they must be acknowledged now."""
        late = set(self._older_than(_MAX_RUNNING_SHARE))
        due = [
            pending
            for pending in self._older_than(_MAX_RUNNING_SHARE_AFTER_STOP)
            if pending.is_consumer_stopped or pending in late
        ]
        uncounted = [
            pending
            for pending in self._here_for(_MAX_UNCOUNTED_SECONDS)
            if isinstance(pending.delivery, TurnWithoutMessage)
        ]
        return [
            pending
            for pending in dict.fromkeys(due + uncounted)
            if pending.stage is Stage.RUNNING and not pending.is_answered
        ]

    def seconds_to_claim(self, pending: PendingDelivery) -> float | None:
        """Return how many more seconds a delivery may wait for its claim; None means without limit."""
        timeout = self._timeout_seconds
        return (
            None if timeout is None else pending.arrived_at + timeout * _MAX_UNCLAIMED_SHARE - self._clock.monotonic()
        )

    async def wait_until_overdue(self, pending: PendingDelivery) -> None:
        """Wait until a delivery may not wait for its claim any longer."""
        while (seconds := self.seconds_to_claim(pending)) is None or seconds > 0:
            await self._clock.sleep(_MAX_PAUSE_SECONDS if seconds is None else min(seconds, _MAX_PAUSE_SECONDS))

    def _older_than(self, share: float) -> Iterator[PendingDelivery]:
        timeout = self._timeout_seconds
        return iter(()) if timeout is None else self._here_for(timeout * share)

    def _here_for(self, seconds: float) -> Iterator[PendingDelivery]:
        latest = self._clock.monotonic() - seconds
        return itertools.takewhile(lambda pending: pending.arrived_at <= latest, self._pending)

    @property
    def _timeout_seconds(self) -> float | None:
        timeout = self._consumer_timeout()
        return None if timeout is None else timeout.total_seconds()
