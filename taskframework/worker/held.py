"""Deliveries in our hands, and how long the broker is patient with each: three shares of its consumer timeout.

The broker takes back what is not acknowledged in time, closes the channel under all its neighbours and delivers them
again. An attempt does not need its message, the lease carries on, so what runs for long is acknowledged early. What
waits for long is of no use to anybody here, so it is handed over to whoever has time for it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from datetime import timedelta

from taskframework import failpoint
from taskframework.brokers.base import Delivery
from taskframework.clock import Clock
from taskframework.model.message import TaskMessage

#: A delivery that nobody claimed is handed over after this share of the consumer timeout.
_UNCLAIMED = 1 / 4
#: The delivery of a running attempt is acknowledged after this share.
_RUNNING = 1 / 2
#: The same for one whose consumer was stopped. It holds a slot that the prefetch of the next consumer does not count,
#: so a task that runs this long already is counted as a long one.
_RUNNING_OF_FORMER = 1 / 8
#: What is due is looked for as often as this share of the timeout, at least once a second.
_LOOK = 1 / 16
_LONGEST_PAUSE = 1.0


class Stage(enum.Enum):
    """How far we are with a delivery."""

    WAITING = "waiting"  # for a slot
    CLAIMING = "claiming"
    RUNNING = "running"
    LEAVING = "leaving"  # being handed over


class HeldDelivery:
    """A delivery from its arrival to the end of its work, answered once."""

    __slots__ = ("_is_answered", "arrived_at", "delivery", "is_former", "message", "stage")

    def __init__(self, delivery: Delivery, message: TaskMessage, arrived_at: float) -> None:
        self.delivery = delivery
        self.message = message
        self.arrived_at = arrived_at
        self.stage = Stage.WAITING
        #: Whether its consumer was stopped since.
        self.is_former = False
        self._is_answered = False

    @property
    def is_answered(self) -> bool:
        return self._is_answered

    async def ack(self) -> None:
        if self._answer():
            await self.delivery.ack()

    async def ack_early(self) -> None:
        """Acknowledge what still runs. From now on the prefetch does not count it."""
        await failpoint.reached("early_ack.before")
        await self.ack()
        await failpoint.reached("early_ack.after")

    async def put_back(self) -> None:
        if self._answer():
            await self.delivery.put_back()

    async def reject(self) -> None:
        """Dead-letter it, if it is still there: an early acknowledgement leaves the document as the only record."""
        if self._answer():
            await self.delivery.reject()

    def _answer(self) -> bool:
        first = not self._is_answered
        self._is_answered = True
        return first


class InHand:
    """All deliveries of a worker, in the order of their arrival."""

    def __init__(self, clock: Clock, consumer_timeout: Callable[[], timedelta | None]) -> None:
        """Start with empty hands.

        Args:
            clock: tells how long a delivery is here.
            consumer_timeout: the broker's, asked each time because it may become shorter; None is for ever.
        """
        self._clock = clock
        self._consumer_timeout = consumer_timeout
        self._held: dict[HeldDelivery, None] = {}

    def take(self, delivery: Delivery, message: TaskMessage) -> HeldDelivery:
        held = HeldDelivery(delivery, message, self._clock.monotonic())
        self._held[held] = None
        return held

    def drop(self, held: HeldDelivery) -> None:
        """Forget one whose work is done."""
        self._held.pop(held, None)

    def retire(self) -> None:
        """Their consumer was stopped: what comes from now on is another one's."""
        for held in self._held:
            held.is_former = True

    @property
    def unanswered(self) -> int:
        return sum(not held.is_answered for held in self._held)

    @property
    def acked_early(self) -> int:
        """Slots held by attempts whose delivery is acknowledged."""
        return sum(held.is_answered and held.stage is Stage.RUNNING for held in self._held)

    @property
    def left_over(self) -> int:
        """Deliveries whose consumer was stopped and that are still to be claimed."""
        unclaimed = (Stage.WAITING, Stage.CLAIMING)
        return sum(held.is_former and not held.is_answered and held.stage in unclaimed for held in self._held)

    async def rest(self) -> None:
        """Wait until it is worth while to look again for what takes long."""
        timeout = self._seconds
        await self._clock.sleep(_LONGEST_PAUSE if timeout is None else min(_LONGEST_PAUSE, timeout * _LOOK))

    def long_waiting(self) -> list[HeldDelivery]:
        """What nobody claimed for too long and nobody is about to claim."""
        return [held for held in self._older_than(_UNCLAIMED) if held.stage is Stage.WAITING]

    def long_running(self) -> list[HeldDelivery]:
        """What runs for so long that its delivery must be acknowledged now."""
        late = set(self._older_than(_RUNNING))
        return [
            held
            for held in self._older_than(_RUNNING_OF_FORMER)
            if held.stage is Stage.RUNNING and not held.is_answered and (held.is_former or held in late)
        ]

    def seconds_to_claim(self, held: HeldDelivery) -> float | None:
        """How much longer a delivery may wait for its claim; None is for ever."""
        timeout = self._seconds
        return None if timeout is None else held.arrived_at + timeout * _UNCLAIMED - self._clock.monotonic()

    def _older_than(self, share: float) -> Iterator[HeldDelivery]:
        timeout = self._seconds
        if timeout is None:
            return
        latest = self._clock.monotonic() - timeout * share
        for held in self._held:
            if held.arrived_at > latest:
                return
            yield held

    @property
    def _seconds(self) -> float | None:
        timeout = self._consumer_timeout()
        return None if timeout is None else timeout.total_seconds()
